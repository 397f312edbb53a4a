//! The error of the labs.

use std::fmt;

use fencepost::Error;

/// Why a lab could not run.
#[derive(Debug)]
pub enum LabError {
    /// An error of the store or the resource.
    Lock(Error),
    /// An error of the system or of a worker.
    System(String),
}

/// What the lab's fallible calls return.
pub type Result<T, E = LabError> = std::result::Result<T, E>;

impl LabError {
    pub(crate) fn system(what: &str, error: &dyn fmt::Display) -> Self {
        Self::System(format!("cannot {what}: {error}"))
    }
}

impl fmt::Display for LabError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            // The lab shows its errors on one line.
            Self::Lock(error) => f.write_str(&error.one_line()),
            Self::System(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for LabError {}

impl From<Error> for LabError {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}
