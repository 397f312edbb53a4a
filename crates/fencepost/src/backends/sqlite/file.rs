//! The file: its format, and what must be true of it before it is used.
//!
//! ```text
//! PATH         SQLite database, WAL mode, application_id "FPST", user_version 1
//!   store      one row: machine, boot and time namespace that the times are of, the epoch (how often
//!              that changed), and the last token
//!   locks      one row per grant
//!   waiters    one row per place in a queue; the ticket is the place
//!   broken     owners whose grant an operator ended, until it would have ended by itself
//!   fencepost_values   what the holder of a lock says of itself, under which token (values.rs)
//!   fencepost_records  what is running, done or failed (records.rs)
//! PATH.d/      mode 0700
//!   p-*        presence files, locked by the processes that hold or wait (presence.rs)
//!   w-*        sockets of waiters (wake.rs)
//!   open.lock  locked while one process sets the file up
//! ```
//!
//! The last two tables came later. They are made by whoever opens a file without them, and change nothing of the others:
//! a process that does not know them, and has the file open or opens it, goes on. Other tables may be in it too: those
//! of a program whose effects and records are to be committed together.
//!
//! Times are nanoseconds of `CLOCK_BOOTTIME`, but for those of records. Owners are 16 bytes, so the file is the user's
//! alone (0600).

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use fencepost_core::Moment;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};
use rusqlite::{OpenFlags, config::DbConfig};
use rustix::fs::{FlockOperation, Mode, OFlags};

use super::desk::{Failure, PATIENCE, be_patient, explain, wait_for_the_file};
use super::host::{Host, refuse_network_file_system};
use super::presence::Marks;
use super::{records, values};
use crate::clock::{BootClock, Clock, pause};
use crate::error::{Error, Result};

const APPLICATION: i32 = i32::from_be_bytes(*b"FPST");
const VERSION: i32 = 1;

const SCHEMA: &str = "
    CREATE TABLE store (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        machine TEXT NOT NULL,
        boot TEXT NOT NULL,
        time_namespace TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        last_token INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE locks (
        name TEXT PRIMARY KEY,
        owner BLOB NOT NULL,
        token INTEGER NOT NULL,
        ttl_ms INTEGER NOT NULL,
        label TEXT NOT NULL,
        granted INTEGER NOT NULL,
        deadline INTEGER NOT NULL,
        pid INTEGER,
        presence TEXT
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE waiters (
        ticket INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        owner BLOB NOT NULL UNIQUE,
        label TEXT NOT NULL,
        since INTEGER NOT NULL,
        deadline INTEGER NOT NULL,
        offered INTEGER,
        socket TEXT NOT NULL,
        bell INTEGER NOT NULL,
        presence TEXT NOT NULL
    ) STRICT;
    CREATE INDEX waiters_by_name ON waiters (name, ticket);
    CREATE TABLE broken (owner BLOB PRIMARY KEY, until INTEGER NOT NULL) STRICT, WITHOUT ROWID;
";

/// What came later. The names are our own, since they are used beside the tables of another program.
const LATER: &str = "
    CREATE TABLE IF NOT EXISTS fencepost_values (
        name TEXT PRIMARY KEY,
        token INTEGER NOT NULL,
        value BLOB NOT NULL
    ) STRICT;
    CREATE TABLE IF NOT EXISTS fencepost_records (
        name TEXT PRIMARY KEY,
        state INTEGER NOT NULL CHECK (state IN (0, 1, 2)),
        token INTEGER NOT NULL,
        label TEXT NOT NULL,
        since INTEGER NOT NULL,
        ends INTEGER NOT NULL,
        result BLOB NOT NULL
    ) STRICT;
    CREATE INDEX IF NOT EXISTS fencepost_records_by_end ON fencepost_records (ends);
";

/// A file that was opened.
pub(super) struct Opened {
    pub(super) path: PathBuf,
    pub(super) db: Connection,
    pub(super) file: OpenFile,
    pub(super) marks: Marks,
}

/// Opens `path`, makes it if it is not there, and refuses it if its leases can not be trusted here.
pub(super) fn open(path: &Path, adopt: bool, clock: &dyn Clock) -> Result<Opened> {
    // One at a time in this process: closing the file that one thread has just made would drop the locks
    // that SQLite took on it in another.
    static OPENING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = OPENING.lock().unwrap_or_else(PoisonError::into_inner);
    let path = real_path(path)?;
    let mut directory = path.clone().into_os_string();
    directory.push(".d");
    let marks = Marks::open(Path::new(&directory))?;
    make_private(&path)?;
    let mut db = connect(&path).map_err(|error| explain(&path, &error))?;
    be_patient();
    if !is_ready(&db, &path)? {
        let _alone = alone(Path::new(&directory))?;
        set_up(&mut db, &path)?;
    }
    add_later(&mut db).map_err(|error| explain(&path, &error))?;
    settle_host(&mut db, &path, adopt)?;
    db.execute_batch("PRAGMA synchronous = FULL").map_err(|error| explain(&path, &error))?;
    clean(&db, clock.now()).map_err(|error| explain(&path, &error))?;
    marks.sweep(|| named_presences(&db)).map_err(|error| explain(&path, &error))?;
    let file = OpenFile::note(&db, &path)?;
    Ok(Opened { path, db, file, marks })
}

/// The one path that all who use the file agree on, links followed: its directory must be one too.
fn real_path(path: &Path) -> Result<PathBuf> {
    let path = std::path::absolute(path).map_err(|error| {
        Error::invalid(format!("{} is no path of a file", path.display())).because(error)
    })?;
    let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(Error::invalid(format!("{} names no file: write sqlite:PATH", path.display())));
    };
    if std::fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
        return Err(Error::invalid(format!(
            "{} is not a regular file: name one, or one to be made (sqlite:PATH)",
            path.display()
        )));
    }
    make_directory(parent)?;
    let path =
        path.canonicalize().or_else(|_| parent.canonicalize().map(|parent| parent.join(name)));
    let path = path.map_err(|error| {
        Error::unreachable(format!("can not find the directory {}", parent.display()))
            .because(error)
    })?;
    refuse_network_file_system(path.parent().unwrap_or(&path))?;
    Ok(path)
}

/// What tells the file that is open from one that took its place, or its clock.
pub(super) struct OpenFile {
    path: PathBuf,
    inode: (u64, u64),
    epoch: i64,
}

impl OpenFile {
    fn note(db: &Connection, path: &Path) -> Result<Self> {
        let inode = inode(path).map_err(|errno| {
            Error::unreachable(format!("{} is gone", path.display()))
                .because(std::io::Error::from(errno))
        })?;
        let epoch = read_epoch(db).map_err(|error| explain(path, &error))?;
        Ok(Self { path: path.to_owned(), inode, epoch })
    }

    /// See [`place_of`].
    pub(super) fn place(&self) -> String {
        shown(self.inode)
    }

    /// Fails closed if others, who open the path now, would not see what we write.
    pub(super) fn check(&self, db: &Connection) -> Result<(), Failure> {
        if inode(&self.path).ok() != Some(self.inode) {
            return Err(Failure::Replaced);
        }
        if read_epoch(db)? != self.epoch {
            return Err(Failure::Adopted);
        }
        Ok(())
    }
}

/// Which file a path leads to, as no other is called on this host.
pub(super) fn place_of(path: &Path) -> rustix::io::Result<String> {
    inode(path).map(shown)
}

fn shown((device, inode): (u64, u64)) -> String {
    format!("{device:x}:{inode:x}")
}

fn inode(path: &Path) -> rustix::io::Result<(u64, u64)> {
    rustix::fs::stat(path).map(|stat| (stat.st_dev, stat.st_ino))
}

fn read_epoch(db: &Connection) -> rusqlite::Result<i64> {
    db.prepare_cached("SELECT epoch FROM store")?.query_row([], |row| row.get(0))
}

fn make_directory(parent: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(parent).map_err(|error| {
        Error::unreachable(format!(
            "can not make the directory {}: make its parent writable, or name another file \
             (sqlite:PATH)",
            parent.display()
        ))
        .because(error)
    })
}

/// Makes the file with the user's permissions only. A file that is there is not even opened: closing it
/// would drop the locks that SQLite has on it in this process.
fn make_private(path: &Path) -> Result<()> {
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR) {
        Ok(_) | Err(rustix::io::Errno::EXIST) => Ok(()),
        Err(errno) => Err(Error::unreachable(format!(
            "can not make {}: make its directory writable, or name another file (sqlite:PATH)",
            path.display()
        ))
        .because(std::io::Error::from(errno))),
    }
}

fn connect(path: &PathBuf) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut db = Connection::open_with_flags(path, flags)?;
    db.busy_handler(Some(wait_for_the_file))?;
    // A program that ends should not first copy the log back; the next one that grows it does.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)?;
    // Else SQLite compiles a statement anew whenever a value is bound that its plan might depend on.
    db.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
    db.set_prepared_statement_cache_capacity(32);
    Ok(db)
}

/// Whether the file is set up; refuses one that is not ours to set up.
fn is_ready(db: &Connection, path: &Path) -> Result<bool> {
    let (application, version, tables) = (|| {
        // One transaction: another process may be setting the file up.
        let one = db.unchecked_transaction()?;
        let ask = |pragma: &str| one.query_row(pragma, [], |row| row.get::<_, i32>(0));
        let tables = ask("SELECT count(*) FROM sqlite_schema")?;
        Ok((ask("PRAGMA application_id")?, ask("PRAGMA user_version")?, tables))
    })()
    .map_err(|error| explain(path, &error))?;
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

fn set_up(db: &mut Connection, path: &Path) -> Result<()> {
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
    done.map_err(|error| explain(path, &error))
}

/// Makes the tables that a file of an earlier time has not.
fn add_later(db: &mut Connection) -> rusqlite::Result<()> {
    let ask = "SELECT count(*) FROM sqlite_schema \
               WHERE name IN ('fencepost_values', 'fencepost_records', 'fencepost_records_by_end')";
    if db.query_row(ask, [], |row| row.get::<_, i32>(0))? == 3 {
        return Ok(());
    }
    let transaction = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(LATER)?;
    transaction.commit()
}

/// The times in the file must be of this machine's clock and this boot. After a reboot every lease is void:
/// its holder is gone. Tokens go on.
fn settle_host(db: &mut Connection, path: &Path, adopt: bool) -> Result<()> {
    let host = Host::this()?;
    let failed = |error: rusqlite::Error| explain(path, &error);
    if read_host(db).map_err(failed)?.shares_clock_with(&host) {
        return Ok(());
    }
    let transaction =
        db.transaction_with_behavior(TransactionBehavior::Immediate).map_err(failed)?;
    let written = read_host(&transaction).map_err(failed)?;
    let shown = path.display();
    if written.shares_clock_with(&host) {
        return Ok(());
    }
    if written.boot == host.boot && !adopt {
        return Err(Error::refused(format!(
            "{shown} is in use from another time namespace, whose clock differs: use it from one \
             only, or take it over with sqlite:{shown}?adopt=true once nobody else does"
        )));
    }
    if written.boot != host.boot && written.machine != host.machine && !adopt {
        return Err(Error::refused(format!(
            "{shown} was written on another machine, and a lock in a file reaches no further than \
             one: use a file of this machine's, or take this one over with \
             sqlite:{shown}?adopt=true (tokens go on, leases are void)"
        )));
    }
    (|| {
        transaction.execute_batch("DELETE FROM locks; DELETE FROM waiters; DELETE FROM broken")?;
        transaction.execute(
            "UPDATE store SET machine = ?, boot = ?, time_namespace = ?, epoch = epoch + 1",
            (&host.machine, &host.boot, &host.time_namespace),
        )?;
        transaction.commit()
    })()
    .map_err(failed)
}

fn read_host(db: &Connection) -> rusqlite::Result<Host> {
    db.query_row("SELECT machine, boot, time_namespace FROM store", [], |row| {
        Ok(Host { machine: row.get(0)?, boot: row.get(1)?, time_namespace: row.get(2)? })
    })
}

fn named_presences(db: &Connection) -> rusqlite::Result<HashSet<String>> {
    db.prepare(
        "SELECT presence FROM locks WHERE presence IS NOT NULL UNION SELECT presence FROM waiters",
    )?
    .query_map([], |row| row.get(0))?
    .collect()
}

/// Removes rows whose time is up, if there are any: reading is cheaper than a commit.
pub(super) fn clean(db: &Connection, now: Moment) -> rusqlite::Result<()> {
    let now = now.as_nanos().cast_signed();
    let any = db
        .prepare_cached(
            "SELECT 1 FROM locks WHERE deadline <= ?1 UNION ALL \
             SELECT 1 FROM waiters WHERE deadline <= ?1 UNION ALL \
             SELECT 1 FROM broken WHERE until <= ?1 LIMIT 1",
        )?
        .query_row([now], |_| Ok(()))
        .optional()?;
    if any.is_some() {
        db.execute("DELETE FROM locks WHERE deadline <= ?", [now])?;
        db.execute("DELETE FROM waiters WHERE deadline <= ?", [now])?;
        db.execute("DELETE FROM broken WHERE until <= ?", [now])?;
    }
    values::forget_stale(db)?;
    records::clean(db)
}

/// Held while one process sets the file up: switching to WAL mode fails rather than waits.
fn alone(directory: &Path) -> Result<OwnedFd> {
    let path = directory.join("open.lock");
    let failed = |errno: rustix::io::Errno| {
        Error::unreachable(format!("can not lock {}: see its permissions", path.display()))
            .because(std::io::Error::from(errno))
    };
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC;
    let file = rustix::fs::open(&path, flags, Mode::RUSR | Mode::WUSR).map_err(failed)?;
    let give_up = BootClock.now() + PATIENCE;
    loop {
        match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::WOULDBLOCK) if BootClock.now() < give_up => {
                pause(Duration::from_millis(1));
            }
            Err(errno) => return Err(failed(errno)),
        }
    }
}
