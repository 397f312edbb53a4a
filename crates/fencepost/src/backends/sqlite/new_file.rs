//! Creates a new file and the files beside it: never in a state, or with permissions, that others could exploit.

use std::cmp::Ordering;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, TransactionBehavior};
use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::access::{Access, BESIDE, beside, has_access_list, refused_access_list};
use super::connection::{connect, set_busy_timeout};
use super::error::explain;
use super::host::Host;
use super::layout::{APPLICATION, SCHEMA, VERSION};
use super::presence::PresenceDir;
use crate::clock::{BootClock, Clock as _, pause};
use crate::error::{Error, Result};
use crate::random;
use crate::retry::CALL_TIMEOUT;

/// Whether there is no file at that path yet that could be a store.
pub(super) fn is_empty(path: &Path) -> bool {
    match std::fs::metadata(path) {
        Ok(found) => found.is_file() && found.len() == 0,
        Err(error) => {
            matches!(error.kind(), std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory)
        }
    }
}

/// Sets up a new file where only users who may write it can reach it, and then renames it: nobody can open it half
/// done, or replace a part of it meanwhile.
pub(super) fn make(path: &Path, access: Access, presence_dir: &PresenceDir) -> Result<()> {
    let directory = presence_dir.ensure()?;
    let _alone = alone(presence_dir, access)?;
    if !is_empty(path) {
        return Ok(());
    }
    // An attempt that a killed process left.
    for left in presence_dir.names().iter().filter(|name| name.starts_with("new-")) {
        presence_dir.remove(left);
    }
    let bits = u64::from_ne_bytes(random::bytes()?);
    let name = format!("new-{bits:016x}");
    let new = presence_dir.path().join(&name);
    let made = (|| {
        access.make_file(directory, Path::new(&name)).map_err(|errno| not_made(&new, errno))?;
        let mut db = connect(&new).map_err(|error| explain(path, error))?;
        set_busy_timeout(CALL_TIMEOUT);
        // So that closing it leaves one file.
        db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, false)
            .map_err(|error| explain(path, error))?;
        set_up(&mut db, path)?;
        db.close().map_err(|(_, error)| explain(path, error))?;
        rename(&new, path).map_err(|errno| not_made(path, errno))
    })();
    if made.is_err() {
        for end in ["", "-wal", "-shm", "-journal"] {
            presence_dir.remove(&format!("{name}{end}"));
        }
    }
    made
}

/// Never over a file that is not empty. The directory is synced: if the file's name were lost, the counter would restart.
fn rename(new: &Path, path: &Path) -> rustix::io::Result<()> {
    let cwd = rustix::fs::CWD;
    match rustix::fs::renameat_with(cwd, new, cwd, path, RenameFlags::NOREPLACE) {
        // An empty file is in the way, or the file system does not support this rename.
        Err(Errno::EXIST | Errno::INVAL | Errno::NOSYS) if is_empty(path) => {
            rustix::fs::rename(new, path)?;
        }
        done => done?,
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(path.parent().unwrap_or(path), flags, Mode::empty())?;
    rustix::fs::fsync(directory)
}

/// Whether the file is set up; refuses a file of another program or layout.
pub(super) fn is_ready(db: &Connection, path: &Path) -> Result<bool> {
    let (application, version, tables) = (|| {
        // One transaction: another process may be setting the file up.
        let one = db.unchecked_transaction()?;
        let ask = |pragma: &str| one.query_row(pragma, [], |row| row.get::<_, i32>(0));
        let tables = ask("SELECT count(*) FROM sqlite_schema")?;
        Ok((ask("PRAGMA application_id")?, ask("PRAGMA user_version")?, tables))
    })()
    .map_err(|error| explain(path, error))?;
    if application == 0 && version == 0 && tables == 0 {
        return Ok(false);
    }
    let shown = path.display();
    if application != APPLICATION {
        return Err(Error::refused(format!(
            "{shown} is the database of another program: name another file (sqlite:PATH)"
        )));
    }
    match version.cmp(&VERSION) {
        Ordering::Less => Err(older_layout(db, path, version)?),
        Ordering::Equal => Ok(true),
        Ordering::Greater => Err(Error::refused(format!(
            "{shown} has layout {version} and this fencepost knows layout {VERSION}: use the newer \
             fencepost that wrote it; in another file tokens would start at 1"
        ))),
    }
}

/// A file of an earlier fencepost is refused: in a new one tokens start at 1, and resources would refuse them.
fn older_layout(db: &Connection, path: &Path, version: i32) -> Result<Error> {
    let ask = "SELECT last_token FROM store";
    let last = db.query_row(ask, [], |row| row.get::<_, i64>(0));
    let last = last.map_err(|error| explain(path, error))?;
    let path = path.display();
    Ok(Error::refused(format!(
        "{path} has layout {version} and this fencepost knows layout {VERSION}: stop the programs \
         that use it, create another file (`fencepost --on sqlite:NEW run x -- true`), raise its tokens \
         above {last} (`sqlite3 NEW \"UPDATE fencepost_store SET last_token = max(last_token, {last})\"`), and \
         start the programs with that one; work that is recorded in this file will run again"
    )))
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
            "INSERT INTO fencepost_store VALUES (1, ?, ?, ?, 0, 0)",
            (&host.machine, &host.boot, &host.time_namespace),
        )?;
        transaction.pragma_update(None, "application_id", APPLICATION)?;
        transaction.pragma_update(None, "user_version", VERSION)?;
        transaction.commit()
    })();
    Ok(done.map_err(|error| explain(path, error))?)
}

/// Held while one process sets the file up: the switch to WAL mode does not wait, it fails.
pub(super) fn alone(presence_dir: &PresenceDir, access: Access) -> Result<OwnedFd> {
    const NAME: &str = "open.lock";
    let failed = |errno: Errno| {
        let path = presence_dir.path().join(NAME);
        Error::unreachable(format!("cannot lock {}: check its permissions", path.display()))
            .with_source(std::io::Error::from(errno))
    };
    let directory = presence_dir.ensure()?;
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
    /// Creates the files that SQLite would create, or look for, in a directory where others could be faster.
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

    /// A new file that the users of the store may write, whatever the umask.
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

    /// The mode of files, and of sockets.
    pub(super) fn file_mode(&self) -> Mode {
        Mode::from_raw_mode(if self.group.is_some() { 0o660 } else { 0o600 })
    }

    /// The directory of presence files and sockets; `None` if it is missing and must not be created.
    pub(super) fn open_directory(&self, path: &Path, create: bool) -> Result<Option<OwnedFd>> {
        let failed = |errno: Errno| {
            Error::unreachable(format!(
                "cannot use the directory {}: make it writable, or name another file (sqlite:PATH)",
                path.display()
            ))
            .with_source(std::io::Error::from(errno))
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
                "others can write to {} and could pose as a holder, or members of the group \
                cannot write to it: fix it ({fix}), or name another file (sqlite:PATH)",
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
        "cannot create {}: make its directory writable, or name another file (sqlite:PATH)",
        path.display()
    ))
    .with_source(std::io::Error::from(errno))
}
