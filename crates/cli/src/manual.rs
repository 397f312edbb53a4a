//! `completions` and `man`: files for shells and packagers.

use clap::CommandFactory as _;
use clap_complete::Shell;
use clap_mangen::Man;

use crate::args::Cli;
use crate::exit::Failure;
use crate::out;

pub(crate) fn completions(shell: Shell) -> Result<u8, Failure> {
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "fencepost", &mut script);
    out::done(&String::from_utf8_lossy(&script))
}

/// Prints a man page with a section for each command.
pub(crate) fn man() -> Result<u8, Failure> {
    let mut page = Vec::new();
    render(&mut page)
        .map_err(|error| Failure::internal(format!("cannot render the page: {error}")))?;
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
    for sub in command.get_subcommands().filter(|sub| sub.get_name() != "help") {
        let heading = format!(".SH \"{} COMMAND\"\n", sub.get_name().to_uppercase());
        page.extend_from_slice(heading.as_bytes());
        let man = Man::new(sub.clone());
        let mut section = Vec::new();
        man.render_synopsis_section(&mut section)?;
        man.render_description_section(&mut section)?;
        man.render_options_section(&mut section)?;
        man.render_extra_section(&mut section)?;
        // The sections of a command's own page become subsections of this one.
        let section = String::from_utf8_lossy(&section)
            .replace(".SH ", ".SS ")
            .replace(".SS EXTRA", ".SS NOTES");
        page.extend_from_slice(section.as_bytes());
    }
    let mut notes = Vec::new();
    top.render_extra_section(&mut notes)?;
    let notes = String::from_utf8_lossy(&notes).replace(".SH EXTRA", ".SH NOTES");
    page.extend_from_slice(notes.as_bytes());
    section(page, "ENVIRONMENT", ENVIRONMENT);
    section(page, "FILES", FILES);
    top.render_version_section(page)
}

/// A section of terms and their explanations.
fn section(page: &mut Vec<u8>, heading: &str, terms: &[(&str, &str)]) {
    page.extend_from_slice(format!(".SH {heading}\n").as_bytes());
    for (term, text) in terms {
        let entry = format!(".TP\n\\fB{term}\\fR\n{text}\n").replace('-', "\\-");
        page.extend_from_slice(entry.as_bytes());
    }
}

const ENVIRONMENT: &[(&str, &str)] = &[
    (
        "FENCEPOST_URL",
        "The store, where --on is not given. Must not be empty. Set for a command that runs under a lock, and \
         printed by `acquire`.",
    ),
    ("FENCEPOST_NAME", "Set for the command: the lock that it runs under."),
    (
        "FENCEPOST_TOKEN",
        "Set for the command: the fencing token of its grant. Read by `fence enter` and `fence write`.",
    ),
    ("FENCEPOST_KEY", "Set for the command of `once`: its key."),
    (
        "FENCEPOST_OWNER",
        "Read by `renew` and `release`: the owner that `acquire` printed. A secret.",
    ),
    ("FENCEPOST_TTL_MS", "Printed by `acquire`: the TTL of its grant, in milliseconds."),
    ("FENCEPOST_RESOURCE", "The resource of the `fence` commands, where --resource is not given."),
    (
        "FENCEPOST_LOG",
        "What to log on stderr, such as debug, or fencepost=trace. Without it only near misses and outages are logged.",
    ),
    ("XDG_STATE_HOME, HOME", "Where the embedded store is: see FILES."),
];

const FILES: &[(&str, &str)] = &[
    (
        "$XDG_STATE_HOME/fencepost/locks.db",
        "The embedded store of this user, where neither --on nor FENCEPOST_URL is given. Without XDG_STATE_HOME it is \
         ~/.local/state/fencepost/locks.db.",
    ),
    ("PATH-wal, PATH-shm, PATH.d/", "Parts of every sqlite:PATH. Do not delete them."),
];

#[cfg(test)]
mod tests {
    #[test]
    fn man_page_has_environment_and_files() {
        let mut page = Vec::new();
        super::render(&mut page).unwrap();
        let page = String::from_utf8(page).unwrap();
        let (_, end) = page.split_once("\n.SH ENVIRONMENT\n").unwrap();
        for variable in ["URL", "NAME", "TOKEN", "KEY", "OWNER", "TTL_MS", "RESOURCE", "LOG"] {
            assert!(end.contains(&format!("\\fBFENCEPOST_{variable}\\fR")), "{variable}");
        }
        let (_, files) = end.split_once("\n.SH FILES\n").unwrap();
        assert!(files.contains("fencepost/locks.db"), "{files}");
    }
}
