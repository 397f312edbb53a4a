//! What every call of a lab fails with.

use std::fmt;

use fencepost::Error;

/// Why a lab could not be carried out.
#[derive(Debug)]
pub enum Fault {
    /// The store or the resource said so.
    Lock(Error),
    /// The system, or a worker, did.
    System(String),
}

/// What the lab's fallible calls return.
pub type Result<T, E = Fault> = std::result::Result<T, E>;

impl Fault {
    pub(crate) fn system(what: &str, error: &dyn fmt::Display) -> Self {
        Self::System(format!("can not {what}: {error}"))
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Lock(error) => error.fmt(f),
            Self::System(message) => f.write_str(message),
        }
    }
}

impl std::error::Error for Fault {}

impl From<Error> for Fault {
    fn from(error: Error) -> Self {
        Self::Lock(error)
    }
}
