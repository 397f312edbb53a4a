//! What an answer that is no answer means to the caller.

use std::error::Error as _;

use tokio_postgres::error::SqlState;

use crate::error::{Error, ErrorKind};
use crate::store_error::{Outcome, StoreError};

/// Why a call to a server failed. Unlike [`Error`] it can be told to several who asked.
#[derive(Clone, Debug)]
pub(crate) struct Fault {
    pub(crate) kind: FaultKind,
    pub(crate) message: String,
    /// What the server calls it, if it is the server that says no, and its words.
    pub(crate) state: Option<SqlState>,
    pub(crate) said: String,
    /// It was sent at least once without an answer, and may have been carried out, or be so later.
    pub(crate) unanswered: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FaultKind {
    /// There is no connection: nothing was asked.
    Away,
    /// The connection is gone, or stands still: what was asked may or may not have been done.
    Cut,
    /// Another transaction was in the way: it was not done, and may be asked again at once.
    Again,
    /// The server can not do it now: it was not done.
    NotNow,
    /// The server only reads, as one does that another took over from: it was not done. The name may lead to the new
    /// one soon, so whoever waits goes on.
    ReadOnly,
    /// The server will not do it.
    Refused,
}

impl FaultKind {
    /// Whether it would fail in the same way if it was tried again at once.
    pub(crate) fn is_final(self) -> bool {
        matches!(self, Self::Away | Self::ReadOnly | Self::Refused)
    }
}

impl Fault {
    pub(crate) fn new(kind: FaultKind, message: impl Into<String>) -> Self {
        Self { kind, message: message.into(), state: None, said: String::new(), unanswered: false }
    }

    /// What the server or the connection to it said.
    pub(crate) fn of(error: &tokio_postgres::Error, shown: &str) -> Self {
        let Some(said) = error.as_db_error() else {
            let mut words = error.to_string();
            // The kind of an error alone says little.
            if let Some(source) =
                error.source().filter(|source| !words.contains(&source.to_string()))
            {
                words = format!("{words}: {source}");
            }
            let words = one_line(&words);
            // TLS and passwords that do not fit are no matter of waiting.
            let final_words = ["TLS", "authentication", "password", "configuration"];
            let refused = final_words.iter().any(|word| words.contains(word));
            let kind = if refused && !error.is_closed() && !broke(error) {
                FaultKind::Refused
            } else {
                FaultKind::Cut
            };
            if words.contains("password missing") {
                return Self::new(
                    kind,
                    format!(
                        "{shown} asks for a password: put it into PGPASSWORD, into ~/.pgpass (mode 0600), or into the URL"
                    ),
                );
            }
            return Self::new(kind, format!("no connection to {shown}: {words}"));
        };
        let state = said.code().clone();
        let words = one_line(said.message());
        let (kind, message) = by_state(&state, shown, &words);
        Self { kind, message, state: Some(state), said: words, unanswered: false }
    }

    /// Whether the server lacks what was to be used.
    pub(crate) fn is_missing(&self) -> bool {
        let missing = [
            SqlState::INVALID_SCHEMA_NAME,
            SqlState::UNDEFINED_FUNCTION,
            SqlState::UNDEFINED_TABLE,
        ];
        self.state.as_ref().is_some_and(|state| missing.contains(state))
    }

    pub(crate) fn into_error(self) -> Error {
        let kind = match self.kind {
            FaultKind::Refused => ErrorKind::Refused,
            _ => ErrorKind::Unreachable,
        };
        Error::new(kind, self.message)
    }
}

impl From<Fault> for StoreError {
    fn from(fault: Fault) -> Self {
        let error = match fault.kind {
            FaultKind::Cut => Self::no_reply(fault.message),
            FaultKind::Again => Self::busy(fault.message),
            FaultKind::Away | FaultKind::NotNow | FaultKind::ReadOnly => {
                Self::unavailable(fault.message)
            }
            FaultKind::Refused => Self::refused(fault.message),
        };
        if fault.unanswered { error.with_outcome(Outcome::Unknown) } else { error }
    }
}

/// Whether the connection broke, in the middle of a TLS handshake perhaps; not if TLS itself says no.
fn broke(error: &tokio_postgres::Error) -> bool {
    let mut cause = error.source();
    while let Some(inner) = cause {
        if let Some(io) = inner.downcast_ref::<std::io::Error>() {
            let inner = io.get_ref();
            return inner.and_then(|inner| inner.downcast_ref::<rustls::Error>()).is_none();
        }
        cause = inner.source();
    }
    false
}

fn by_state(state: &SqlState, shown: &str, said: &str) -> (FaultKind, String) {
    use FaultKind::{Again, Cut, NotNow, ReadOnly, Refused};
    let class = state.code().get(..2).unwrap_or_default();
    match (state, class) {
        (&(SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED), _) => {
            (Again, format!("{shown} is too busy with this lock ({said}): try again"))
        }
        (&SqlState::QUERY_CANCELED, _) => (
            NotNow,
            format!(
                "{shown} did not finish in the time it allows ({said}): see statement_timeout there"
            ),
        ),
        (&SqlState::LOCK_NOT_AVAILABLE, _) => (
            NotNow,
            format!(
                "somebody at {shown} keeps a row of this lock from us ({said}): end that transaction, or see \
                 lock_timeout there"
            ),
        ),
        (&SqlState::TOO_MANY_CONNECTIONS, _) => (
            NotNow,
            format!(
                "{shown} takes no more connections: raise its max_connections, or use a smaller pool (?pool=)"
            ),
        ),
        (&SqlState::CANNOT_CONNECT_NOW, _) => {
            (NotNow, format!("{shown} can not be used now: {said}"))
        }
        (_, "53" | "58") => (NotNow, format!("{shown} lacks what it needs ({said}): see its log")),
        (_, "57" | "08") => (Cut, format!("{shown} ended the connection: {said}")),
        (&SqlState::READ_ONLY_SQL_TRANSACTION, _) => (
            ReadOnly,
            format!(
                "{shown} is read-only, a standby perhaps, and takes no locks ({said}): name its primary, or see \
                 default_transaction_read_only there"
            ),
        ),
        (&SqlState::INSUFFICIENT_PRIVILEGE, _) => (
            Refused,
            format!(
                "this role may not do that at {shown} ({said}): grant it what docs/backends/postgres.md lists"
            ),
        ),
        (
            &(SqlState::UNDEFINED_FUNCTION
            | SqlState::UNDEFINED_TABLE
            | SqlState::INVALID_SCHEMA_NAME),
            _,
        ) => (
            Refused,
            format!(
                "{shown} lacks a part of the schema \"fencepost\" ({said}): run `fencepost backend install --on \
                 URL` as a role that may create it"
            ),
        ),
        (&SqlState::SEQUENCE_GENERATOR_LIMIT_EXCEEDED, _) => {
            (Refused, format!("{shown} has no tokens left"))
        }
        (_, "28") => (
            Refused,
            format!(
                "{shown} rejected the user or the password ({said}): check the URL, PGPASSWORD and ~/.pgpass"
            ),
        ),
        (_, "3D") => (Refused, format!("{shown}: {said}: create it, or check the URL")),
        _ => (Refused, format!("{shown} refused: {said} ({})", state.code())),
    }
}

fn one_line(words: &str) -> String {
    let words: String = words.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    words.trim().trim_end_matches('.').to_owned()
}
