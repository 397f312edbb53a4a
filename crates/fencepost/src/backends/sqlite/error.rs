//! Explains an error of SQLite, or a file that is no longer the one that we opened.

use std::path::Path;

use rusqlite::ErrorCode;

use crate::retry::CALL_TIMEOUT;
use crate::store_error::StoreError;

/// Why a transaction failed.
pub(super) enum Failure {
    Sqlite(rusqlite::Error),
    /// The path names another file than the one that is open.
    Replaced,
    /// The file was adopted: its times are no longer of our clock.
    Adopted,
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sqlite(error)
    }
}

impl Failure {
    pub(super) fn explain(self, path: &Path) -> StoreError {
        let shown = path.display();
        match self {
            Self::Sqlite(error) => explain(path, error),
            // Waiting does not help: other clients use another file by now.
            Self::Replaced => StoreError::refused(format!(
                "{shown} was removed or replaced while it was open: connect again"
            )),
            Self::Adopted => StoreError::refused(format!(
                "{shown} was taken over (adopt=true) while it was open: connect again"
            )),
        }
    }
}

pub(super) fn is_busy(error: &rusqlite::Error) -> bool {
    let code = error.sqlite_error_code();
    matches!(code, Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Explains an error of SQLite.
pub(super) fn explain(path: &Path, error: rusqlite::Error) -> StoreError {
    let path = path.display();
    let explained = match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            StoreError::unavailable(format!(
                "{path} is busy: another process has kept its write lock for {} s, perhaps a stopped one; \
                 find out who has it open (fuser {path})",
                CALL_TIMEOUT.as_secs()
            ))
        }
        Some(ErrorCode::NotADatabase | ErrorCode::DatabaseCorrupt) => {
            StoreError::unusable(format!(
                "{path} is damaged or not a SQLite file: restore it, or move it away with its -wal and -shm and \
                start with a new one (tokens then start at 1 again)"
            ))
        }
        Some(ErrorCode::DiskFull) => StoreError::unavailable(format!(
            "{path} cannot grow: the disk is full; free some space"
        )),
        Some(ErrorCode::CannotOpen | ErrorCode::PermissionDenied | ErrorCode::ReadOnly) => {
            StoreError::unusable(format!(
                "{path} cannot be opened for writing: check its permissions, or name another file \
                 (sqlite:PATH)"
            ))
        }
        _ => StoreError::unavailable(format!("{path} cannot be used: check its disk")),
    };
    explained.with_source(error)
}
