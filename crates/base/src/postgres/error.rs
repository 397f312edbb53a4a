//! What an error of the server, or of the connection to it, means: whether the request was applied, whether another
//! attempt helps, and what to do about it. The server's own errors are told apart by their SQLSTATE.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tokio_postgres::error::SqlState;

use crate::store_error::StoreError;

/// Makes an error of one kind from its message.
pub type Kind = fn(String) -> StoreError;

/// What a [`StoreError`] of PostgreSQL comes from, on one line.
#[derive(Clone, Debug)]
pub struct Cause {
    /// What the server calls it, if the server answered.
    state: Option<SqlState>,
    text: String,
    error: Option<Arc<tokio_postgres::Error>>,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl Error for Cause {
    fn source(&self) -> Option<&(dyn Error + 'static)> {
        self.error.as_deref().map(|error| error as _)
    }
}

/// Explains an error. `if_cut` says what a broken connection means: that the outcome is unknown, if a request left.
pub fn explain(error: tokio_postgres::Error, shown: &str, if_cut: Kind) -> StoreError {
    let (explained, state, text) = if let Some(reply) = error.as_db_error() {
        let text = one_line(reply.message());
        (by_state(reply.code(), shown, &text, if_cut), Some(reply.code().clone()), text)
    } else {
        let mut text = error.to_string();
        // The kind of an error alone says little.
        if let Some(source) = error.source().filter(|source| !text.contains(&source.to_string())) {
            text = format!("{text}: {source}");
        }
        let text = one_line(&text);
        (by_text(&error, shown, &text, if_cut), None, text)
    };
    explained.with_source(Cause { state, text, error: Some(Arc::new(error)) })
}

/// There is no schema, which we see before the server says it.
pub fn no_schema(shown: &str) -> StoreError {
    let text = "no schema \"fencepost\"".to_owned();
    let remedy = "run `fencepost backend install --on URL` as a role that may create it";
    StoreError::refused(format!("{shown} has {text}: {remedy}")).with_source(Cause {
        state: Some(SqlState::INVALID_SCHEMA_NAME),
        text,
        error: None,
    })
}

/// What the server calls it, if the server answered.
pub fn state(error: &StoreError) -> Option<&SqlState> {
    error.source_as::<Cause>()?.state.as_ref()
}

/// Whether the server lacks what was to be used.
pub fn is_missing(error: &StoreError) -> bool {
    matches!(
        state(error),
        Some(
            &(SqlState::INVALID_SCHEMA_NAME
                | SqlState::UNDEFINED_FUNCTION
                | SqlState::UNDEFINED_TABLE)
        )
    )
}

/// If the role lacks a right, the same error with another message, made from what the server said.
pub fn if_not_allowed(error: StoreError, message: impl FnOnce(&Cause) -> String) -> StoreError {
    match error.source_as::<Cause>() {
        Some(cause) if cause.state == Some(SqlState::INSUFFICIENT_PRIVILEGE) => {
            StoreError::refused(message(cause)).with_source(cause.clone())
        }
        _ => error,
    }
}

/// An error without an answer of the server.
fn by_text(error: &tokio_postgres::Error, shown: &str, text: &str, if_cut: Kind) -> StoreError {
    // TLS and passwords that do not fit are no matter of waiting.
    let refusals = ["TLS", "authentication", "password", "configuration"];
    let refused = refusals.iter().any(|word| text.contains(word));
    let kind: Kind =
        if refused && !error.is_closed() && !broke(error) { StoreError::refused } else { if_cut };
    kind(if text.contains("password missing") {
        format!(
            "{shown} asks for a password: put it into PGPASSWORD, into ~/.pgpass (mode 0600), or into the URL"
        )
    } else {
        format!("no connection to {shown}: {text}")
    })
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

fn by_state(state: &SqlState, shown: &str, said: &str, if_cut: Kind) -> StoreError {
    let (busy, unavailable, refused): (Kind, Kind, Kind) =
        (StoreError::busy, StoreError::unavailable, StoreError::refused);
    let class = state.code().get(..2).unwrap_or_default();
    let (kind, message) = match (state, class) {
        (&(SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED), _) => {
            (busy, format!("{shown} is too busy with this lock ({said}): try again"))
        }
        (&SqlState::QUERY_CANCELED, _) => (
            busy,
            format!(
                "{shown} did not finish in the time it allows ({said}): see statement_timeout there"
            ),
        ),
        (&SqlState::LOCK_NOT_AVAILABLE, _) => (
            busy,
            format!(
                "somebody at {shown} keeps a row of this lock from us ({said}): end that transaction, or see \
                 lock_timeout there"
            ),
        ),
        (&SqlState::TOO_MANY_CONNECTIONS, _) => (
            busy,
            format!(
                "{shown} takes no more connections: raise its max_connections, or use a smaller pool (?pool=)"
            ),
        ),
        (&SqlState::CANNOT_CONNECT_NOW, _) => {
            (busy, format!("{shown} can not be used now: {said}"))
        }
        (_, "53" | "58") => (busy, format!("{shown} lacks what it needs ({said}): see its log")),
        (_, "57" | "08") => (if_cut, format!("{shown} ended the connection: {said}")),
        // As one is that another took over from. The name may lead to the new one soon, so a wait goes on.
        (&SqlState::READ_ONLY_SQL_TRANSACTION, _) => (
            unavailable,
            format!(
                "{shown} is read-only, a standby perhaps, and takes no locks ({said}): name its primary, or see \
                 default_transaction_read_only there"
            ),
        ),
        (&SqlState::INSUFFICIENT_PRIVILEGE, _) => (
            refused,
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
            refused,
            format!(
                "{shown} lacks a part of the schema \"fencepost\" ({said}): run `fencepost backend install --on \
                 URL` as a role that may create it"
            ),
        ),
        (&SqlState::SEQUENCE_GENERATOR_LIMIT_EXCEEDED, _) => {
            (refused, format!("{shown} has no tokens left"))
        }
        (_, "28") => (
            refused,
            format!(
                "{shown} rejected the user or the password ({said}): check the URL, PGPASSWORD and ~/.pgpass"
            ),
        ),
        (_, "3D") => (refused, format!("{shown}: {said}: create it, or check the URL")),
        _ => (refused, format!("{shown} refused: {said} ({})", state.code())),
    };
    kind(message)
}

fn one_line(text: &str) -> String {
    let text: String = text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
    text.trim().trim_end_matches('.').to_owned()
}
