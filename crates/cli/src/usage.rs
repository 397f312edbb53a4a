//! Turns clap's complaints, which are several lines long, into our one line and exit code.

use std::error::Error as _;
use std::ffi::OsString;

use clap::error::{ContextKind, ContextValue, ErrorKind};

use crate::duration::BadDuration;
use crate::exit::Failure;
use crate::out;

/// Help and version go to stdout and are a success; everything else is bad usage.
pub(crate) fn explain(error: &clap::Error) -> Result<u8, Failure> {
    if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) {
        return out::done(&error.render().to_string());
    }
    Err(Failure::usage(one_line(error)))
}

fn one_line(error: &clap::Error) -> String {
    let argument = match error.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(argument)) => Some(argument.as_str()),
        _ => None,
    };
    // Our own parsers name the value and the remedy.
    let ours = error.source().and_then(|source| source.downcast_ref::<BadDuration>());
    if let (Some(argument), Some(why)) = (argument, ours) {
        return escaped(&format!("{argument}: {why}"));
    }
    let rendered = error.render().to_string();
    let text = rendered.strip_prefix("error: ").unwrap_or(&rendered);
    let first = text.split("\n\n").next().unwrap_or(text);
    let words: Vec<&str> =
        first.split('\n').map(str::trim).filter(|line| !line.is_empty()).collect();
    let first = std::env::args_os().nth(1).and_then(|name| name.into_string().ok());
    let command = first.filter(|name| {
        use clap::CommandFactory as _;
        crate::args::Cli::command().find_subcommand(name).is_some()
    });
    let help = command.map_or_else(|| "fencepost".to_owned(), |name| format!("fencepost {name}"));
    // What most people forget.
    let hint = if help == "fencepost run" && forgot_the_dashes(error) {
        " (the command stands after `--`: fencepost run NAME -- CMD)"
    } else {
        ""
    };
    format!("{}{hint}; see `{help} --help`", escaped(&words.join(" ")))
}

fn forgot_the_dashes(error: &clap::Error) -> bool {
    matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::UnknownArgument)
        && !std::env::args_os().any(|argument| argument == "--")
}

fn escaped(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_debug().collect() } else { c.to_string() };
    text.chars().map(escape).collect()
}

/// Whether `--json` was asked for, on a line that could not be read as a whole.
pub(crate) fn wants_json(arguments: impl Iterator<Item = OsString>) -> bool {
    arguments.take_while(|argument| argument != "--").any(|argument| argument == "--json")
}
