//! How the program ends: its exit codes, and the one line that says why.

use std::io::Write as _;

use fencepost::{Error, ErrorKind};

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
  69   the store can not be reached or used; retry when it is back
  70   a fault of fencepost or of the system
  75   not acquired: somebody else holds the lock; or nobody leads, nothing is
       recorded
  76   lost: the lock was lost while the command ran, or is not the owner's
  77   stale: the fence refused the token, a later holder has entered
  78   refused: the store can not give what was asked for
  126  the command can not be executed
  127  the command was not found
  128+N  the command, or the wait for the lock, was ended by signal N

An error is one line on stderr. With --json it is also one object on stdout,
{\"error\":{\"kind\":\"held\",\"message\":\"...\"}}, except from a `run`, `elect` or
`once` whose command has started: then stdout is the command's."
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
}

impl Failure {
    /// A failure with a code, a word and a line.
    pub(crate) fn new(code: u8, kind: &'static str, message: impl Into<String>) -> Self {
        Self { code, kind, message: message.into(), on_stdout: true }
    }

    /// The call is wrong.
    pub(crate) fn usage(message: impl Into<String>) -> Self {
        Self::new(USAGE, "invalid", message)
    }

    /// A fault of our own or of the system around us.
    pub(crate) fn internal(message: impl Into<String>) -> Self {
        Self::new(INTERNAL, "internal", message)
    }

    /// Ended by a signal before there was a command to pass it on to.
    pub(crate) fn signal(number: i32, message: impl Into<String>) -> Self {
        Self::new(signal_code(number), "interrupted", message)
    }

    /// The same failure, kept off stdout.
    pub(crate) fn after_the_child_started(mut self) -> Self {
        self.on_stdout = false;
        self
    }

    /// Says what went wrong.
    pub(crate) fn report(&self, json: bool) {
        say(&self.message);
        if json && self.on_stdout {
            let error = serde_json::json!({
                "error": { "kind": self.kind, "message": self.message }
            });
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

/// One line on stderr. A stderr that is gone does not stop us.
pub(crate) fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "fencepost: {message}");
}

/// What a shell shows for a process that died by this signal.
pub(crate) fn signal_code(number: i32) -> u8 {
    SIGNAL_BASE.saturating_add(u8::try_from(number).unwrap_or(u8::MAX))
}
