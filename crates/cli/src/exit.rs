//! How the program ends: its exit codes, and the one line that says why.

use std::io::Write as _;

use fencepost::{Error, ErrorKind};
use rustix::process::Signal;

pub(crate) use crate::say::{be_quiet, is_quiet, note, say};

/// All went well.
pub(crate) const OK: u8 = 0;
/// What a lab shows did not happen.
pub(crate) const NOT_SHOWN: u8 = 1;
/// The work failed before, and its record names no code.
pub(crate) const FAILED_BEFORE: u8 = 1;
/// The call is wrong.
pub(crate) const USAGE: u8 = 64;
/// The store can not be reached or used.
pub(crate) const UNREACHABLE: u8 = 69;
/// A fault of our own or of the system around us.
pub(crate) const INTERNAL: u8 = 70;
/// The lock was not acquired: somebody else has it.
pub(crate) const HELD: u8 = 75;
/// The lock was lost, or the owner given does not hold it.
pub(crate) const LOST: u8 = 76;
/// A fence refused the token: a later holder has entered.
pub(crate) const STALE: u8 = 77;
/// The store can not give what was asked for.
pub(crate) const REFUSED: u8 = 78;
/// The command can not be executed.
pub(crate) const NOT_EXECUTABLE: u8 = 126;
/// There is no such command.
pub(crate) const NOT_FOUND: u8 = 127;
/// Added to a signal's number.
pub(crate) const SIGNAL_BASE: u8 = 128;

/// The list for `--help` and the man page, as a literal so that help texts can be joined around it.
macro_rules! exit_codes {
    () => {
        "\
Exit codes:
  0    done (`run`, `elect`, `once`: the command's own code is passed on)
  1    `lab`: what it shows did not happen; `once`: it failed before
  64   bad usage: fix the value that the message names
  69   the store cannot be reached or used; retry when it is back
  70   a fault of fencepost or of the system
  75   not acquired: somebody else holds the lock (-E gives another code); or
       nobody leads, nothing is recorded
  76   lost: the lock was lost while the command ran, or is not the owner's
  77   stale: the fence refused the token, a later holder has entered
  78   refused: the store cannot give what was asked for
  126  the command cannot be executed
  127  the command was not found
  128+N  the command was ended by signal N

After its clean-up fencepost dies by the signal that ended it (^C), as `flock`
does, so that a loop or script around it stops; a shell shows 128+N.

Lines on stderr begin with `fencepost: `. An error is one such line, with the
store that it is about. With --json it is also one object on stdout,
{\"error\":{\"kind\":\"held\",\"message\":\"...\",\"store\":\"...\"}}, except from a `run`,
`elect` or `once` whose command has started: then stdout is the command's."
    };
}
pub(crate) use exit_codes;

/// Why the program ends with something else than success.
#[derive(Debug)]
pub(crate) struct Failure {
    /// The exit code.
    pub(crate) code: u8,
    /// One word for scripts.
    pub(crate) kind: &'static str,
    /// One line for people.
    pub(crate) message: String,
    /// Whether stdout may carry the error as JSON. Not once a child has it.
    pub(crate) on_stdout: bool,
    /// The signal that ended us: we die by it, so that a shell's loop ends as well.
    pub(crate) signal: Option<Signal>,
    /// Our whole process group gets that signal, as the terminal would have sent it.
    pub(crate) to_group: bool,
    /// The store that the command looked at, without a password.
    pub(crate) store: Option<String>,
}

impl Failure {
    /// A failure with a code, a word and a line.
    pub(crate) fn new(code: u8, kind: &'static str, message: impl Into<String>) -> Self {
        let message = message.into();
        let (on_stdout, to_group) = (true, false);
        Self { code, kind, message, on_stdout, signal: None, to_group, store: None }
    }

    /// The call is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, "invalid", message)
    }

    /// A fault of our own or of the system around us.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(INTERNAL, "internal", message)
    }

    /// Ended by a signal. Without a message it is how one ends this command, and nothing is printed.
    pub(crate) fn signal(signal: Signal, message: Option<String>) -> Self {
        let code = signal_code(signal.as_raw());
        let on_stdout = message.is_some();
        let failure = Self::new(code, "interrupted", message.unwrap_or_default());
        Self { on_stdout, signal: Some(signal), ..failure }
    }

    /// The same failure, with the store named where the message is about what is there.
    pub(crate) fn on_store(mut self, store: &str) -> Self {
        let about_the_call = ["invalid", "internal", "interrupted"].contains(&self.kind);
        if !about_the_call && !self.kind.starts_with("command_") {
            self.store = Some(store.to_owned());
        }
        self
    }

    /// The same failure, kept off stdout: that is the command's, or has the account already.
    pub(crate) fn off_stdout(mut self) -> Self {
        self.on_stdout = false;
        self
    }

    /// Says what went wrong.
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
            // Nobody is left to tell if this fails.
            let _ = writeln!(std::io::stdout(), "{error}");
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let (code, kind) = match error.kind() {
            ErrorKind::Held(_) => (HELD, "held"),
            ErrorKind::Unreachable => (UNREACHABLE, "unreachable"),
            ErrorKind::Lost(_) => (LOST, "lost"),
            ErrorKind::NotHeld(_) => (LOST, "not_held"),
            ErrorKind::Stale => (STALE, "stale"),
            ErrorKind::Refused => (REFUSED, "refused"),
            ErrorKind::Failed => (FAILED_BEFORE, "failed"),
            ErrorKind::Invalid => (USAGE, "invalid"),
            _ => (INTERNAL, "internal"),
        };
        Self::new(code, kind, error.to_string())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Self {
        Self::internal(error.to_string())
    }
}

/// What a shell shows for a process that died by this signal.
pub(crate) fn signal_code(number: i32) -> u8 {
    SIGNAL_BASE.saturating_add(u8::try_from(number).unwrap_or(u8::MAX))
}
