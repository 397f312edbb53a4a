//! Exit codes, and the one line that says why the program failed.

use std::io::Write as _;

use fencepost::{Error, ErrorKind};
use rustix::process::Signal;

pub(crate) use crate::say::{be_quiet, is_quiet, note, say};

pub(crate) const OK: u8 = 0;
/// What a lab shows did not happen.
pub(crate) const NOT_SHOWN: u8 = 1;
/// The command failed in an earlier run, and its record has no exit code.
pub(crate) const FAILED_BEFORE: u8 = 1;
/// The call is wrong.
pub(crate) const USAGE: u8 = 64;
/// The store cannot be reached or used.
pub(crate) const UNREACHABLE: u8 = 69;
/// An internal error, or an error of the system.
pub(crate) const INTERNAL: u8 = 70;
/// The lock was not acquired: another client holds it.
pub(crate) const HELD: u8 = 75;
/// The lock was lost, or the given owner does not hold it.
pub(crate) const LOST: u8 = 76;
/// A fence refused the token: a later holder has entered.
pub(crate) const STALE: u8 = 77;
/// The store cannot guarantee what was requested.
pub(crate) const REFUSED: u8 = 78;
/// The command cannot be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to a signal's number.
pub(crate) const SIGNAL_BASE: u8 = 128;

/// The list for `--help` and the man page. A macro, so that `concat!` accepts it.
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0    done (`run`, `elect`, `once`: the command's own code is passed on)
  1    `lab`: not the expected result; `once`: a recorded failure
  64   bad usage: fix the value that the message names
  69   the store cannot be reached or used: retry when it is back
  70   an internal error, or one of the operating system
  75   not acquired: another client holds the lock (-E gives another code); or
       nobody leads, or there is no record
  76   lost: the lock was lost while the command ran, or the owner does not hold it
  77   stale: the fence refused the token, because a later holder has entered
  78   refused: the store cannot give what was requested
  126  the command cannot be executed
  127  the command was not found
  128+N  the command was ended by signal N

After its clean-up, fencepost dies by the signal that ended it (^C), as `flock`
does, so that a loop or script around it stops. A shell shows 128+N.

Lines on stderr begin with `fencepost: `. An error is one such line, and names the
store. With --json, an error is also one object on stdout,
{\"error\":{\"kind\":\"held\",\"message\":\"...\",\"store\":\"...\"}}, unless the command of
`run`, `elect` or `once` has started: then stdout belongs to the command."
    };
}
pub(crate) use exit_codes;

/// Why the program does not end with success.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) code: u8,
    /// One word for scripts.
    pub(crate) kind: &'static str,
    /// One line for people.
    pub(crate) message: String,
    /// Whether `--json` prints the error on stdout. Not if a child has written there.
    pub(crate) on_stdout: bool,
    /// The signal that ended this process: it dies by that signal, so that a shell's loop ends too.
    pub(crate) signal: Option<Signal>,
    /// Send that signal to the whole process group, as the terminal would have done.
    pub(crate) to_group: bool,
    /// The store, without a password.
    pub(crate) store: Option<String>,
}

impl Failure {
    pub(crate) fn new(code: u8, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        let (on_stdout, to_group) = (true, false);
        Self { code, kind, message, on_stdout, signal: None, to_group, store: None }
    }

    /// The call is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, "invalid", message)
    }

    /// An internal error, or an error of the system.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(INTERNAL, "internal", message)
    }

    /// Another client holds the lock.
    pub(crate) fn held(message: impl Into<String>) -> Self {
        Self::new(HELD, "held", message)
    }

    /// The lock was lost.
    pub(crate) fn lost(message: impl Into<String>) -> Self {
        Self::new(LOST, "lost", message)
    }

    /// Ended by a signal. Without a message nothing is printed: a signal is the usual end of some commands.
    pub(crate) fn signal(signal: Signal, message: Option<String>) -> Self {
        let code = signal_code(signal.as_raw());
        let on_stdout = message.is_some();
        let failure = Self::new(code, "interrupted", message.unwrap_or_default());
        Self { on_stdout, signal: Some(signal), ..failure }
    }

    /// Names the store, unless the message is about the call or this process.
    pub(crate) fn on_store(mut self, store: &str) -> Self {
        let about_the_call = ["invalid", "internal", "interrupted"].contains(&self.kind);
        if !about_the_call && !self.kind.starts_with("command_") {
            self.store = Some(store.to_owned());
        }
        self
    }

    /// Prints nothing on stdout: the command, or a result, was printed there.
    pub(crate) fn off_stdout(mut self) -> Self {
        self.on_stdout = false;
        self
    }

    /// Prints the error.
    pub(crate) fn report(&self, json: bool) {
        match &self.store {
            Some(store) if !self.message.contains(store.as_str()) => {
                say(&format!("{} (store {store})", self.message));
            }
            _ if self.message.is_empty() => {}
            _ => say(&self.message),
        }
        if json && self.on_stdout {
            let mut error = serde_json::json!({
                "error": { "kind": self.kind, "message": self.message }
            });
            if let Some(store) = &self.store {
                error["error"]["store"] = store.as_str().into();
            }
            let _ = writeln!(std::io::stdout(), "{error}");
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, kind) = match error.kind() {
            ErrorKind::Held => (HELD, "held"),
            ErrorKind::Unreachable => (UNREACHABLE, "unreachable"),
            ErrorKind::Lost => (LOST, "lost"),
            ErrorKind::NotHeld => (LOST, "not_held"),
            ErrorKind::Stale => (STALE, "stale"),
            ErrorKind::Refused => (REFUSED, "refused"),
            ErrorKind::Failed => (FAILED_BEFORE, "failed"),
            ErrorKind::Invalid => (USAGE, "invalid"),
            _ => (INTERNAL, "internal"),
        };
        Self::new(code, kind, error.one_line())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::internal(error.to_string())
    }
}

/// The exit code that a shell shows for a process that died by this signal.
pub(crate) fn signal_code(number: i32) -> u8 {
    SIGNAL_BASE.saturating_add(u8::try_from(number).unwrap_or(u8::MAX))
}
