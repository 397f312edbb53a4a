//! What a client of the service gets when a request fails.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use deadpool::managed::PoolError;
use fencepost::{ErrorKind, fences};
use fences::postgres::tokio_postgres;

/// A status and one line of text.
pub(crate) struct Failure {
    status: StatusCode,
    pub(crate) message: String,
}

impl Failure {
    pub(crate) fn new(status: StatusCode, message: impl Into<String>) -> Self {
        Self { status, message: message.into() }
    }
}

impl From<fencepost::Error> for Failure {
    fn from(error: fencepost::Error) -> Self {
        let status = match error.kind() {
            // Overtaken, and nothing was written. If the client repeats the request, it starts from a fresh read.
            ErrorKind::Stale | ErrorKind::Lost | ErrorKind::NotHeld => StatusCode::CONFLICT,
            ErrorKind::Held | ErrorKind::Unreachable | ErrorKind::Closed => {
                StatusCode::SERVICE_UNAVAILABLE
            }
            ErrorKind::Invalid => StatusCode::BAD_REQUEST,
            _ => StatusCode::INTERNAL_SERVER_ERROR,
        };
        Self::new(status, error.one_line())
    }
}

impl From<tokio_postgres::Error> for Failure {
    fn from(error: tokio_postgres::Error) -> Self {
        fences::postgres::explain(&error).into()
    }
}

impl From<PoolError<fencepost::Error>> for Failure {
    fn from(error: PoolError<fencepost::Error>) -> Self {
        match error {
            PoolError::Backend(error) => error.into(),
            other => Self::new(StatusCode::SERVICE_UNAVAILABLE, other.to_string()),
        }
    }
}

impl IntoResponse for Failure {
    fn into_response(self) -> Response {
        (self.status, format!("{}\n", self.message)).into_response()
    }
}
