//! The directory of the marks, and who may open its files.
//!
//! What must hold: users who may open these files may also write them. Otherwise a mere reader could lock them and block
//! the gateway (`flock` and SQLite's locks need only an open file). And nobody can write them without the operator's choice: a lowered
//! mark lets a stale holder in.

use std::fs::{DirBuilder, File, Metadata, Permissions};
use std::io::{self, ErrorKind};
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, OpenOptionsExt as _};
use std::path::Path;

use fencepost_base::{Error, Result};

pub(super) const LOCK: &str = "marks.lock";
pub(super) const DB: &str = "marks.db";
/// SQLite's files beside the database while it is in use, with the database's mode.
const WAL: &str = "marks.db-wal";
const SHM: &str = "marks.db-shm";

/// Creates what is missing, for this user alone, and removes read permissions of others.
pub(super) fn prepare(directory: &Path) -> Result<()> {
    let shown = directory.display();
    let failed = |error: io::Error| {
        Error::refused(format!("cannot create the directory {shown}")).with_source(error)
    };
    if let Some(parent) = directory.parent() {
        std::fs::create_dir_all(parent).map_err(failed)?;
    }
    unless_exists(DirBuilder::new().mode(0o700).create(directory)).map_err(failed)?;
    check(directory, &std::fs::metadata(directory).map_err(failed)?)?;
    let unwritable = |error: io::Error| {
        Error::refused(format!("cannot write in the directory {shown}")).with_source(error)
    };
    for name in [LOCK, DB] {
        let file =
            File::options().write(true).create_new(true).mode(0o600).open(directory.join(name));
        unless_exists(file).map_err(unwritable)?;
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
            // A member of the group that does not own the file may not. The gateway works all the same.
            let _ = std::fs::set_permissions(&path, Permissions::from_mode(closed));
        }
    }
    // If a power loss undid the new directory entry, the marks would be lost.
    if let Some(parent) = directory.canonicalize().ok().as_deref().and_then(Path::parent) {
        let _ = File::open(parent).and_then(|parent| parent.sync_all());
    }
    Ok(())
}

fn unless_exists<T>(created: io::Result<T>) -> io::Result<()> {
    match created {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// Refuses files that another user could have planted or can change.
fn check(path: &Path, metadata: &Metadata) -> Result<()> {
    let (shown, owner) = (path.display(), metadata.uid());
    if metadata.mode() & 0o002 != 0 {
        return Err(Error::refused(format!(
            "other users can write {shown} and lower a mark: run `chmod o-w {shown}`, and check the marks \
             with `fencepost fence show`"
        )));
    }
    if owner != 0 && owner != rustix::process::geteuid().as_raw() {
        return Err(Error::refused(format!(
            "{shown} belongs to another user (uid {owner}), who can lower a mark: chown it to the \
             gateway's user, or give another directory with --marks"
        )));
    }
    Ok(())
}

/// Removes read permission from others, and from a group without write permission.
fn for_writers(mode: u32) -> u32 {
    mode & !(if mode & 0o020 == 0 { 0o077 } else { 0o007 })
}
