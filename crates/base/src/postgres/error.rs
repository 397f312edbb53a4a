//! Classifies an error of the server or of the connection: whether the request was applied, whether another attempt helps,
//! and what to do. Errors of the server are classified by SQLSTATE.

use std::error::Error;
use std::fmt;
use std::sync::Arc;

use tokio_postgres::error::SqlState;

use crate::store_error::StoreError;

/// The states of a server that lacks a part of the schema.
const MISSING: [SqlState; 3] =
    [SqlState::INVALID_SCHEMA_NAME, SqlState::UNDEFINED_FUNCTION, SqlState::UNDEFINED_TABLE];

/// A constructor of one kind of error.
pub type Kind = fn(String) -> StoreError;

/// The source of a PostgreSQL [`StoreError`], on one line.
#[derive(Clone, Debug)]
pub struct Cause {
    /// The SQLSTATE, if the server replied.
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

/// Classifies an error. `if_cut` is for a broken connection: the outcome is unknown if a request was sent.
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

/// The schema is missing, as we noticed before the server reported it.
pub fn no_schema(shown: &str) -> StoreError {
    let text = "no schema \"fencepost\"".to_owned();
    let remedy = "run `fencepost backend install --on URL` as a role that may create it";
    StoreError::refused(format!("{shown} has {text}: {remedy}")).with_source(Cause {
        state: Some(SqlState::INVALID_SCHEMA_NAME),
        text,
        error: None,
    })
}

/// The SQLSTATE, if the server replied.
pub fn state(error: &StoreError) -> Option<&SqlState> {
    error.source_as::<Cause>()?.state.as_ref()
}

/// Whether a part of the schema is missing.
pub fn is_missing(error: &StoreError) -> bool {
    state(error).is_some_and(|state| MISSING.contains(state))
}

/// If the role lacks a privilege, replaces the message.
pub fn if_not_allowed(error: StoreError, message: impl FnOnce(&Cause) -> String) -> StoreError {
    match error.source_as::<Cause>() {
        Some(cause) if cause.state == Some(SqlState::INSUFFICIENT_PRIVILEGE) => {
            StoreError::refused(message(cause)).with_source(cause.clone())
        }
        _ => error,
    }
}

/// An error without a reply of the server.
fn by_text(error: &tokio_postgres::Error, shown: &str, text: &str, if_cut: Kind) -> StoreError {
    // TLS failures and wrong passwords do not pass by waiting.
    let refusals = ["TLS", "authentication", "password", "configuration"];
    let refused = refusals.iter().any(|word| text.contains(word));
    let kind: Kind =
        if refused && !error.is_closed() && !broke(error) { StoreError::refused } else { if_cut };
    kind(if text.contains("password missing") {
        format!(
            "{shown} requires a password: put it into PGPASSWORD, into ~/.pgpass (mode 0600), or into the URL"
        )
    } else {
        format!("no connection to {shown}: {text}")
    })
}

/// Whether the connection broke, maybe during a TLS handshake; not if TLS itself failed.
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

fn by_state(state: &SqlState, shown: &str, server_message: &str, if_cut: Kind) -> StoreError {
    let class = state.code().get(..2).unwrap_or_default();
    match (state, class) {
        (&(SqlState::T_R_SERIALIZATION_FAILURE | SqlState::T_R_DEADLOCK_DETECTED), _) => {
            StoreError::busy(format!(
                "{shown} is too busy with this lock ({server_message}): retry"
            ))
        }
        (&SqlState::QUERY_CANCELED, _) => StoreError::busy(format!(
            "{shown} cancelled the statement ({server_message}): check statement_timeout there"
        )),
        (&SqlState::LOCK_NOT_AVAILABLE, _) => StoreError::busy(format!(
            "another transaction at {shown} holds a row of this lock ({server_message}): end that \
             transaction, or check lock_timeout there"
        )),
        (&SqlState::TOO_MANY_CONNECTIONS, _) => StoreError::busy(format!(
            "{shown} has no connections left: raise its max_connections, or use a smaller pool (?pool=)"
        )),
        (&SqlState::CANNOT_CONNECT_NOW, _) => {
            StoreError::busy(format!("{shown} cannot be used now: {server_message}"))
        }
        (_, "53" | "58") => StoreError::busy(format!(
            "{shown} is out of a resource ({server_message}): see its log"
        )),
        (_, "57" | "08") => if_cut(format!("{shown} ended the connection: {server_message}")),
        // For example after a failover. The name may resolve to the new primary soon, so a wait continues.
        (&SqlState::READ_ONLY_SQL_TRANSACTION, _) => StoreError::unavailable(format!(
            "{shown} is read-only, perhaps a standby, and grants no locks ({server_message}): name its \
             primary, or check default_transaction_read_only there"
        )),
        (&SqlState::INSUFFICIENT_PRIVILEGE, _) => StoreError::refused(format!(
            "this role may not do that at {shown} ({server_message}): grant it what docs/backends/postgres.md lists"
        )),
        (lacking, _) if MISSING.contains(lacking) => StoreError::refused(format!(
            "{shown} lacks a part of the schema \"fencepost\" ({server_message}): run `fencepost backend install --on \
             URL` as a role that may create it"
        )),
        (&SqlState::SEQUENCE_GENERATOR_LIMIT_EXCEEDED, _) => {
            StoreError::refused(format!("{shown} has no tokens left"))
        }
        (_, "28") => StoreError::refused(format!(
            "{shown} rejected the credentials ({server_message}): check the URL, PGPASSWORD and ~/.pgpass"
        )),
        (_, "3D") => {
            StoreError::refused(format!("{shown}: {server_message}: create it, or check the URL"))
        }
        _ => StoreError::refused(format!("{shown} refused: {server_message} ({})", state.code())),
    }
}

fn one_line(text: &str) -> String {
    text.replace(char::is_control, " ").trim().trim_end_matches('.').to_owned()
}
