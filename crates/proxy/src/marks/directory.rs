//! The directory of the marks, and who may open what lies in it.
//!
//! What must hold: nobody can open these files who may not write them, or a reader could lock them and keep the proxy from
//! its work (`flock` and SQLite's locks need an open file, no more). And nobody can write them whom the operator did not
//! choose: a lowered mark lets a stale holder in.

use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use fencepost_base::{Error, Result};

pub(super) const LOCK: &str = "marks.lock";
pub(super) const DB: &str = "marks.db";
/// What SQLite has beside the database while it is in use, with the database's mode.
const WAL: &str = "marks.db-wal";
const SHM: &str = "marks.db-shm";

/// Makes what is missing, for this user alone, and closes what is open to readers.
pub(super) fn prepare(directory: &Path) -> Result<()> {
    let shown = directory.display();
    let failed = |error: io::Error| {
        Error::refused(format!("cannot make the directory {shown}")).because(error)
    };
    if let Some(parent) = directory.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(failed(error)),
        _ => {}
    }
    check(directory, &std::fs::metadata(directory).map_err(failed)?)?;
    let unwritable = |error: io::Error| {
        Error::refused(format!("cannot write in the directory {shown}")).because(error)
    };
    for name in [LOCK, DB] {
        let file =
            File::options().write(true).create_new(true).mode(0o600).open(directory.join(name));
        match file {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => {
                return Err(unwritable(error));
            }
            _ => {}
        }
    }
    for name in [LOCK, DB, WAL, SHM] {
        let path = directory.join(name);
        let metadata = match std::fs::metadata(&path) {
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            metadata => metadata.map_err(unwritable)?,
        };
        check(&path, &metadata)?;
        let (mode, closed) = (metadata.mode(), for_writers(metadata.mode()));
        if mode != closed {
            // A group's member who does not own it may not, and can work with it all the same.
            let _ = std::fs::set_permissions(&path, Permissions::from_mode(closed));
        }
    }
    // A directory that a loss of power takes back would take the marks with it.
    if let Some(parent) = directory.canonicalize().ok().as_deref().and_then(Path::parent) {
        let _ = File::open(parent).and_then(|parent| parent.sync_all());
    }
    Ok(())
}

/// Refuses what another user could have planted, or can change.
fn check(path: &Path, metadata: &Metadata) -> Result<()> {
    let (shown, owner) = (path.display(), metadata.uid());
    if metadata.mode() & 0o002 != 0 {
        return Err(Error::refused(format!(
            "other users can write {shown}, and lower a mark: run `chmod o-w {shown}`, and see that \
             the marks are right"
        )));
    }
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(Error::refused(format!(
            "{shown} belongs to another user (uid {owner}), who can lower a mark: chown it to the \
             proxy's user, or give another directory with --marks"
        )));
    }
    Ok(())
}

/// Without the right to read for a group that may not write; others never may.
fn for_writers(mode: u32) -> u32 {
    mode & !(if mode & 0o020 == 0 { 0o077 } else { 0o007 })
}
