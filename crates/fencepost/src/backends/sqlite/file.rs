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
//!   w-*        sockets of clients that wait or hold (wake.rs)
//!   open.lock  locked while one process sets the file up
//!   new-*      a file that is being set up; it gets its name when it is complete
//! ```
//!
//! The last two tables came later. They are made by whoever opens a file without them, and change nothing of the others:
//! a process that does not know them, and has the file open or opens it, goes on. Other tables may be in it too: those
//! of a program whose effects and records are to be committed together.
//!
//! Times are nanoseconds of `CLOCK_BOOTTIME`, but for those of records. A negative `until` in `broken` says that the
//! holder has confirmed. Owners are 16 bytes, so the file is the user's alone (0600), or a group's (0660, PATH.d 2770:
//! access.rs).

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};
use rusqlite::{OpenFlags, config::DbConfig};
use rustix::fs::{FlockOperation, Mode, OFlags, RenameFlags};
use rustix::io::Errno;

use super::access::{Access, User, not_made};
use super::desk::{Failure, be_patient, explain, wait_for_the_file};
use super::host::{Host, refuse_network_file_system};
use super::presence::Marks;
use super::{Options, records, values};
use crate::clock::{BootClock, Clock, pause};
use crate::error::{Error, Result};
use crate::retry::CALL_TIMEOUT;

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
    pub(super) access: Access,
    /// Whose store it is, if it is another user's, opened by root.
    pub(super) other_user: Option<u32>,
}

/// Opens `path`, makes it if it is not there, and refuses it if its leases cannot be trusted here. With `create`
/// false, makes no directory either.
pub(super) fn open(
    path: &Path,
    options: Options,
    create: bool,
    clock: &dyn Clock,
) -> Result<Opened> {
    let owner = match rustix::fs::stat(path) {
        Ok(stat) if !options.shared => (stat.st_uid, stat.st_gid),
        _ => (0, 0),
    };
    if owner.0 == 0 || !rustix::process::geteuid().is_root() {
        return open_as_is(path, options, create, clock);
    }
    // Root looks at a user's store as that user: it leaves nothing behind that the user cannot use, and nothing that the
    // user put in the way gets root's rights. On a thread that ends, for what it gave up it does not get back.
    let opened = std::thread::scope(|scope| {
        let open = || {
            become_user(owner).map_err(|errno| {
                Error::unreachable(format!(
                    "cannot open {} as {}, to whom it belongs",
                    path.display(),
                    User(owner.0)
                ))
                .because(std::io::Error::from(errno))
            })?;
            open_as_is(path, options, create, clock)
        };
        scope.spawn(open).join()
    });
    let opened = opened.unwrap_or_else(|_| Err(Error::unreachable("opening the file panicked")))?;
    Ok(Opened { other_user: Some(owner.0), ..opened })
}

/// For this thread alone, and for good.
fn become_user((user, group): (u32, u32)) -> rustix::io::Result<()> {
    use rustix::process::{Gid, Uid};
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    rustix::thread::set_thread_groups(&[group])?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)
}

fn open_as_is(path: &Path, options: Options, create: bool, clock: &dyn Clock) -> Result<Opened> {
    // One at a time in this process: closing the file that one thread has just made would drop the locks
    // that SQLite took on it in another.
    static OPENING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = OPENING.lock();
    let (path, access) = Access::resolve(path, options.shared, create)?;
    refuse_network_file_system(path.parent().unwrap_or(&path))?;
    access.check(&path)?;
    let mut directory = path.clone().into_os_string();
    directory.push(".d");
    let marks = Marks::open(Path::new(&directory), access, create)?;
    if is_empty(&path) {
        make(&path, access, &marks)?;
    }
    access.prepare(&path)?;
    let mut db = connect(&path).map_err(|error| explain(&path, error))?;
    be_patient();
    if !is_ready(&db, &path)? {
        let _alone = alone(&marks, access)?;
        set_up(&mut db, &path)?;
    }
    add_later(&mut db).map_err(|error| explain(&path, error))?;
    // Again: what SQLite has opened by now is what was looked at.
    access.check(&path)?;
    settle_host(&mut db, &path, options.adopt)?;
    db.execute_batch("PRAGMA synchronous = FULL").map_err(|error| explain(&path, error))?;
    clean(&db, clock.now()).map_err(|error| explain(&path, error))?;
    marks.sweep(|| named_presences(&db)).map_err(|error| explain(&path, error))?;
    let file = OpenFile::note(&db, &path)?;
    Ok(Opened { path, db, file, marks, access, other_user: None })
}

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
fn make(path: &Path, access: Access, marks: &Marks) -> Result<()> {
    let directory = marks.ensure()?;
    let _alone = alone(marks, access)?;
    if !is_empty(path) {
        return Ok(());
    }
    // What was killed here before us left its attempt.
    for left in marks.names().iter().filter(|name| name.starts_with("new-")) {
        marks.remove(left);
    }
    let mut bits = [0; 8];
    getrandom::fill(&mut bits)
        .map_err(|error| Error::unreachable("the system has no random numbers").because(error))?;
    let name = format!("new-{:016x}", u64::from_ne_bytes(bits));
    let new = marks.path().join(&name);
    let made = (|| {
        access.make_file(directory, Path::new(&name)).map_err(|errno| not_made(&new, errno))?;
        let mut db = connect(&new).map_err(|error| explain(path, error))?;
        be_patient();
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
        let epoch = read_epoch(db).map_err(|error| explain(path, error))?;
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

fn connect(path: &Path) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE
        | OpenFlags::SQLITE_OPEN_NO_MUTEX
        | OpenFlags::SQLITE_OPEN_NOFOLLOW;
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
    Ok(done.map_err(|error| explain(path, error))?)
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
    let failed = |error: rusqlite::Error| explain(path, error);
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
    let settle = || {
        transaction.execute_batch("DELETE FROM locks; DELETE FROM waiters; DELETE FROM broken")?;
        transaction.execute(
            "UPDATE store SET machine = ?, boot = ?, time_namespace = ?, epoch = epoch + 1",
            (&host.machine, &host.boot, &host.time_namespace),
        )?;
        transaction.commit()
    };
    Ok(settle().map_err(failed)?)
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
             SELECT 1 FROM broken WHERE abs(until) <= ?1 LIMIT 1",
        )?
        .query_row([now], |_| Ok(()))
        .optional()?;
    if any.is_some() {
        db.execute("DELETE FROM locks WHERE deadline <= ?", [now])?;
        db.execute("DELETE FROM waiters WHERE deadline <= ?", [now])?;
        db.execute("DELETE FROM broken WHERE abs(until) <= ?", [now])?;
    }
    values::forget_stale(db)?;
    records::clean(db)
}

/// Held while one process sets the file up: switching to WAL mode fails rather than waits.
fn alone(marks: &Marks, access: Access) -> Result<OwnedFd> {
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
