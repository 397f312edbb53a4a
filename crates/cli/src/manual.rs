//! `completions` and `man`: what packagers and shells want to have as files.

use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::exit::Failure;
use crate::out;

/// Prints the completion script.
pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fencepost", &mut script);
    out::done(&String::from_utf8_lossy(&script))
}

/// Prints one page with a section for each command.
pub(crate) fn man() -> Result<u8, Failure> {
    let mut page = Vec::new();
    render(&mut page)
        .map_err(|error| Failure::internal(format!("can not render the page: {error}")))?;
    out::done(&String::from_utf8_lossy(&page))
}

fn render(page: &mut Vec<u8>) -> std::io::Result<()> {
    let mut command = Cli::command();
    command.build();
    let top = Man::new(command.clone()).manual("Fencepost");
    top.render_title(page)?;
    top.render_name_section(page)?;
    top.render_synopsis_section(page)?;
    top.render_description_section(page)?;
    top.render_options_section(page)?;
    for sub in command.get_subcommands() {
        let heading = format!(".SH \"{} COMMAND\"\n", sub.get_name().to_uppercase());
        page.extend_from_slice(heading.as_bytes());
        let man = Man::new(sub.clone());
        let mut section = Vec::new();
        man.render_synopsis_section(&mut section)?;
        man.render_description_section(&mut section)?;
        man.render_options_section(&mut section)?;
        man.render_extra_section(&mut section)?;
        // Sections of a page of their own become parts of this one.
        let section = String::from_utf8_lossy(&section)
            .replace(".SH ", ".SS ")
            .replace(".SS EXTRA", ".SS NOTES");
        page.extend_from_slice(section.as_bytes());
    }
    let mut notes = Vec::new();
    top.render_extra_section(&mut notes)?;
    let notes = String::from_utf8_lossy(&notes).replace(".SH EXTRA", ".SH NOTES");
    page.extend_from_slice(notes.as_bytes());
    top.render_version_section(page)
}
