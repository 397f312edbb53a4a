//! Turns clap's errors, which have several lines, into one line and our exit code.

use std::error::Error as _;
use std::ffi::OsString;

use clap::CommandFactory as _;
use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::duration::BadDuration;
use crate::exit::Failure;
use crate::out;

/// Help and version go to stdout and are a success; everything else is bad usage.
pub(crate) fn explain(error: &clap::Error) -> Result<u8, Failure> {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return out::done(&error.render().to_string());
    }
    if std::env::args_os().len() <= 1 {
        use std::io::Write as _;
        let usage = crate::args::Cli::command().render_help();
        let _ = write!(std::io::stderr(), "{usage}");
        return Err(Failure::usage("").off_stdout());
    }
    Err(Failure::usage(one_line(error)))
}

fn one_line(error: &clap::Error) -> String {
    // Errors of our own parsers already name the value and the remedy.
    let ours = error.source().and_then(|source| source.downcast_ref::<BadDuration>());
    let argument = error.get(ContextKind::InvalidArg);
    if let (Some(ContextValue::String(argument)), Some(why)) = (argument, ours) {
        return out::line(&format!("{argument}: {why}"));
    }
    let rendered = error.render().to_string();
    let text = rendered.strip_prefix("error: ").unwrap_or(&rendered);
    let first = text.split("\n\n").next().unwrap_or(text);
    let words: Vec<&str> =
        first.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect();
    let help = commands_named();
    if matches!(
        error.kind(),
        ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand | ErrorKind::MissingSubcommand
    ) {
        return format!("`{help}` needs a command; see `{help} --help`");
    }
    let hint = match help.as_str() {
        "fencepost run" | "fencepost elect" | "fencepost once" if forgot_the_dashes(error) => {
            let what = if help.ends_with("once") { "KEY" } else { "NAME" };
            format!(" (write the command after `--`: {help} {what} -- CMD)")
        }
        _ => String::new(),
    };
    let what = without_password(&out::line(&words.join(" ")));
    format!("{what}{}{hint}; see `{help} --help`", did_you_mean(error))
}

/// The suggestion for a misspelled word.
fn did_you_mean(error: &clap::Error) -> String {
    let kinds =
        [ContextKind::SuggestedSubcommand, ContextKind::SuggestedArg, ContextKind::SuggestedValue];
    let similar = kinds.into_iter().find_map(|kind| match error.get(kind)? {
        ContextValue::String(one) => Some(one.clone()),
        // The most similar is the last.
        ContextValue::Strings(several) => several.last().cloned(),
        _ => None,
    });
    similar.map_or_else(String::new, |similar| format!(" (did you mean `{similar}`?)"))
}

/// The commands at the start of the line, such as `fencepost fence reset`.
fn commands_named() -> String {
    let mut command = crate::args::Cli::command();
    let mut path = "fencepost".to_owned();
    for word in std::env::args_os().skip(1) {
        let Some(next) = command.find_subcommand(&word) else { break };
        path = format!("{path} {}", next.get_name());
        command = next.clone();
    }
    path
}

/// Hides passwords in URLs: a URL can also be in a place where none is expected.
pub(crate) fn without_password(text: &str) -> String {
    let hidden = |word: &str| {
        let (scheme, rest) = word.split_once("://")?;
        let (login, rest) = rest.rsplit_once('@')?;
        let (user, _) = login.split_once(':')?;
        Some(format!("{scheme}://{user}:...@{rest}"))
    };
    let words = text.split(' ').map(|word| hidden(word).unwrap_or_else(|| word.to_owned()));
    words.collect::<Vec<_>>().join(" ")
}

fn forgot_the_dashes(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::UnknownArgument)
        && !std::env::args_os().any(|argument| argument == "--")
}

/// Whether `--json` was given, on a line that could not be parsed.
pub(crate) fn wants_json(arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.take_while(|argument| argument != "--").any(|argument| argument == "--json")
}
