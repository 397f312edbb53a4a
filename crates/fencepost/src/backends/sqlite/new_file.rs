//! How a new file is made, and what stands beside it: never in a state, or with rights, that others could use.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, TransactionBehavior};
use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::access::{Access, BESIDE, beside, has_access_list, refused_access_list};
use super::connection::{connect, wait_at_most};
use super::error::explain;
use super::host::Host;
use super::layout::{APPLICATION, LATER, SCHEMA, VERSION};
use super::presence::Marks;
use crate::clock::{BootClock, Clock as _, pause};
use crate::error::{Error, Result};
use crate::retry::CALL_TIMEOUT;

/// Whether there is nothing yet at that path that could be a store.
pub(super) fn is_empty(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(found) => found.is_file() && found.len() == 0,
        Err(error) => {
            matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        }
    }
}

/// Sets a new file up where only those who may write it can reach it, and then gives it its name: nobody meets it half
/// done, or can slip anything under it while it is.
pub(super) fn make(path: &Path, access: Access, marks: &Marks) -> Result<()> {
    let directory = marks.ensure()?;
    let _alone = alone(marks, access)?;
    if !is_empty(path) {
        return Ok(());
    }
    // What was killed here before us left its attempt.
    for left in marks.names().iter().filter(|name| name.starts_with("new-")) {
        marks.remove(left);
    }
    let bits = getrandom::u64()
        .map_err(|error| Error::unreachable("the system has no random numbers").because(error))?;
    let name = format!("new-{bits:016x}");
    let new = marks.path().join(&name);
    let made = (|| {
        access.make_file(directory, Path::new(&name)).map_err(|errno| not_made(&new, errno))?;
        let mut db = connect(&new).map_err(|error| explain(path, error))?;
        wait_at_most(CALL_TIMEOUT);
        // So that closing it leaves one file.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)
            .map_err(|error| explain(path, error))?;
        set_up(&mut db, path)?;
        db.close().map_err(|(_, error)| explain(path, error))?;
        rename(&new, path).map_err(|errno| not_made(path, errno))
    })();
    if made.is_err() {
        for end in ["", "-wal", "-shm", "-journal"] {
            marks.remove(&format!("{name}{end}"));
        }
    }
    made
}

/// Not over a file that has anything in it. The directory is synced: a counter whose name is lost starts again.
fn rename(new: &Path, path: &Path) -> rustix::io::Result<()> {
    let cwd = rustix::fs::CWD;
    match rustix::fs::renameat_with(cwd, new, cwd, path, RenameFlags::NOREPLACE) {
        // An empty file is in the way, or the file system knows no such rename.
        Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS) if is_empty(path) => {
            rustix::fs::rename(new, path)?;
        }
        done => done?,
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path.parent().unwrap_or(path), flags, Mode::empty())?;
    rustix::fs::fsync(directory)
}

/// Whether the file is set up; refuses one that is not ours to set up.
pub(super) fn is_ready(db: &Connection, path: &Path) -> Result<bool> {
    let (application, version, tables) = (|| {
        // One transaction: another process may be setting the file up.
        let one = db.unchecked_transaction()?;
        let ask = |pragma: &str| one.query_row(pragma, [], |row| row.get::<_, i32>(0));
        let tables = ask("SELECT count(*) FROM sqlite_schema")?;
        Ok((ask("PRAGMA application_id")?, ask("PRAGMA user_version")?, tables))
    })()
    .map_err(|error| explain(path, error))?;
    let path = path.display();
    if application == 0 && version == 0 && tables == 0 {
        return Ok(false);
    }
    if application != APPLICATION {
        return Err(Error::refused(format!(
            "{path} is the database of another program: name another file (sqlite:PATH)"
        )));
    }
    if version > VERSION {
        return Err(Error::refused(format!(
            "{path} has format {version} and this fencepost knows up to {VERSION}: use the newer \
             fencepost that wrote it, or name another file (sqlite:PATH)"
        )));
    }
    Ok(true)
}

pub(super) fn set_up(db: &mut Connection, path: &Path) -> Result<()> {
    // Another process may have been faster.
    if is_ready(db, path)? {
        return Ok(());
    }
    let host = Host::this()?;
    let done: rusqlite::Result<()> = (|| {
        db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
        let transaction = db.transaction_with_behavior(TransactionBehavior::Exclusive)?;
        transaction.execute_batch(SCHEMA)?;
        transaction.execute(
            "INSERT INTO store VALUES (1, ?, ?, ?, 0, 0)",
            (&host.machine, &host.boot, &host.time_namespace),
        )?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()
    })();
    Ok(done.map_err(|error| explain(path, error))?)
}

/// Makes the tables that a file of an earlier time has not.
pub(super) fn add_later(db: &mut Connection) -> rusqlite::Result<()> {
    let ask = "SELECT count(*) FROM sqlite_schema \
               WHERE name IN ('fencepost_values', 'fencepost_records', 'fencepost_records_by_end')";
    if db.query_row(ask, [], |row| row.get::<_, i32>(0))? == 3 {
        return Ok(());
    }
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(LATER)?;
    transaction.commit()
}

/// Held while one process sets the file up: switching to WAL mode fails rather than waits.
pub(super) fn alone(marks: &Marks, access: Access) -> Result<OwnedFd> {
    const NAME: &str = "open.lock";
    let failed = |errno: Errno| {
        let path = marks.path().join(NAME);
        Error::unreachable(format!("cannot lock {}: check its permissions", path.display()))
            .because(std::io::Error::from(errno))
    };
    let directory = marks.ensure()?;
    let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = match access.make_file(directory, Path::new(NAME)) {
        Err(Errno::EXIST) => rustix::fs::openat(directory, NAME, flags, Mode::empty()),
        made => made,
    };
    let file = file.map_err(failed)?;
    let give_up = BootClock.now() + CALL_TIMEOUT;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(Errno::WOULDBLOCK) if BootClock.now() < give_up => {
                pause(Duration::from_millis(1));
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
}

impl Access {
    /// Makes what SQLite would make, or look for, in a directory where others could be faster.
    pub(super) fn prepare(&self, database: &Path) -> Result<()> {
        if self.sticky {
            for end in BESIDE {
                let path = beside(database, end);
                match self.make_file(rustix::fs::CWD, &path) {
                    Ok(_) | Err(Errno::EXIST) => {}
                    Err(errno) => return Err(not_made(&path, errno)),
                }
            }
            self.check(database)?;
        }
        Ok(())
    }

    /// A new file that those may write who may write the store, whatever the umask.
    pub(super) fn make_file(
        &self,
        directory: impl AsFd,
        path: &Path,
    ) -> rustix::io::Result<OwnedFd> {
        let flags =
            OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::openat(directory, path, flags, self.file_mode())?;
        if self.group.is_some() {
            rustix::fs::fchmod(&file, self.file_mode())?;
        }
        Ok(file)
    }

    /// Of files, and of sockets.
    pub(super) fn file_mode(&self) -> Mode {
        Mode::from_raw_mode(if self.group.is_some() { 0o660 } else { 0o600 })
    }

    /// The directory of presence files and sockets; `None` if it is not there and not to be made.
    pub(super) fn open_directory(&self, path: &Path, create: bool) -> Result<Option<OwnedFd>> {
        let failed = |errno: Errno| {
            Error::unreachable(format!(
                "cannot use the directory {}: make it writable, or name another file (sqlite:PATH)",
                path.display()
            ))
            .because(std::io::Error::from(errno))
        };
        let mode = Mode::from_raw_mode(if self.group.is_some() { 0o2770 } else { 0o700 });
        let is_new = create
            && match rustix::fs::mkdir(path, mode) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(errno) => return Err(failed(errno)),
            };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let directory = match rustix::fs::open(path, flags, Mode::empty()) {
            Ok(directory) => directory,
            Err(Errno::NOENT) if !create => return Ok(None),
            Err(errno) => return Err(failed(errno)),
        };
        if is_new && self.group.is_some() {
            rustix::fs::fchmod(&directory, mode).map_err(failed)?;
        }
        let stat = rustix::fs::fstat(&directory).map_err(failed)?;
        let (ours, fix) = match self.group {
            None => (stat.st_uid == self.user && stat.st_mode & 0o022 == 0, "chown, chmod 700"),
            Some(group) => {
                (stat.st_gid == group && stat.st_mode & 0o2072 == 0o2070, "chgrp, chmod 2770")
            }
        };
        if !ours {
            return Err(Error::refused(format!(
                "others can write to {}, and could pass for a holder, or members of the group \
                 cannot: fix it ({fix}), or name another file (sqlite:PATH)",
                path.display()
            )));
        }
        if self.group.is_some() && has_access_list(path) {
            return Err(refused_access_list(path));
        }
        Ok(Some(directory))
    }
}

fn not_made(path: &Path, errno: Errno) -> Error {
    Error::unreachable(format!(
        "cannot make {}: make its directory writable, or name another file (sqlite:PATH)",
        path.display()
    ))
    .because(std::io::Error::from(errno))
}
