//! Opens the file, and checks it before it is used.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use fencepost_core::Moment;
use parking_lot::Mutex;
use rusqlite::{Connection, TransactionBehavior};

use super::access::{Access, beside};
use super::connection::{connect, set_busy_timeout};
use super::error::{Failure, explain};
use super::host::{Host, refuse_network_file_system};
use super::new_file::{alone, is_empty, is_ready, make, set_up};
use super::presence::PresenceDir;
use super::users::user;
use super::{SqliteOptions, records, values};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::retry::CALL_TIMEOUT;

/// With more pages the log is copied when the file is opened: two syncs of the disk, once for twenty grants, since a grant
/// and its release add three pages.
const LOG_PAGES: i64 = 64;

/// A file that was opened.
pub(super) struct Opened {
    pub(super) path: PathBuf,
    pub(super) db: Connection,
    pub(super) file: OpenFile,
    pub(super) presence_dir: PresenceDir,
    pub(super) access: Access,
    /// The owner of the store, if root opened another user's.
    pub(super) other_user: Option<u32>,
}

/// Opens the file, creates it if it is missing, and refuses it if its leases cannot be trusted here. With `create`
/// false, creates no directory either.
pub(super) fn open(options: &SqliteOptions, create: bool, clock: &dyn Clock) -> Result<Opened> {
    let path = options.path.as_path();
    let owner = match rustix::fs::stat(path) {
        Ok(stat) if !options.shared => (stat.st_uid, stat.st_gid),
        _ => (0, 0),
    };
    if owner.0 == 0 || !rustix::process::geteuid().is_root() {
        return open_as_is(options, create, clock);
    }
    // Root opens a user's store as that user: so it leaves no file behind that the user cannot use, and a trap of the
    // user does not get root's rights. On a thread of its own, because the rights that it gives up do not come back.
    let opened = std::thread::scope(|scope| {
        let open = || {
            become_user(owner).map_err(|errno| {
                Error::unreachable(format!(
                    "cannot open {} as its owner, {}",
                    path.display(),
                    user(owner.0)
                ))
                .with_source(std::io::Error::from(errno))
            })?;
            open_as_is(options, create, clock)
        };
        scope.spawn(open).join()
    });
    let opened = opened.unwrap_or_else(|_| Err(Error::unreachable("opening the file panicked")))?;
    Ok(Opened { other_user: Some(owner.0), ..opened })
}

/// For this thread alone, and permanently.
fn become_user((user, group): (u32, u32)) -> rustix::io::Result<()> {
    use rustix::process::{Gid, Uid};
    let (user, group) = (Uid::from_raw(user), Gid::from_raw(group));
    rustix::thread::set_thread_groups(&[group])?;
    rustix::thread::set_thread_res_gid(group, group, group)?;
    rustix::thread::set_thread_res_uid(user, user, user)
}

fn open_as_is(options: &SqliteOptions, create: bool, clock: &dyn Clock) -> Result<Opened> {
    // One at a time in this process: closing the file that one thread has just created would drop the locks
    // that SQLite took on it in another.
    static OPENING: Mutex<()> = Mutex::new(());
    let _one_at_a_time = OPENING.lock();
    let (path, access) = Access::resolve(&options.path, options.shared, create)?;
    refuse_network_file_system(path.parent().unwrap_or(&path))?;
    access.check(&path)?;
    let presence_dir = PresenceDir::open(&beside(&path, ".d"), access, create)?;
    if is_empty(&path) {
        make(&path, access, &presence_dir)?;
    }
    access.prepare(&path)?;
    let mut db = connect(&path).map_err(|error| explain(&path, error))?;
    set_busy_timeout(CALL_TIMEOUT);
    if !is_ready(&db, &path)? {
        let _alone = alone(&presence_dir, access)?;
        set_up(&mut db, &path)?;
    }
    // Checked again: SQLite must have opened the files that were checked.
    access.check(&path)?;
    settle_host(&mut db, &path, options.adopt)?;
    db.execute_batch("PRAGMA synchronous = FULL").map_err(|error| explain(&path, error))?;
    clean(&db, clock.now()).map_err(|error| explain(&path, error))?;
    if create {
        // A log that stays long costs time and nothing else.
        if let Err(error) = shorten_log(&db) {
            tracing::debug!(%error, "the log was not shortened");
        }
    }
    presence_dir.gc(|| named_presences(&db)).map_err(|error| explain(&path, error))?;
    let file = OpenFile::note(&db, &path)?;
    Ok(Opened { path, db, file, presence_dir, access, other_user: None })
}

/// Distinguishes the open file from one that has replaced it, and its clock from another.
pub(super) struct OpenFile {
    path: PathBuf,
    inode: (u64, u64),
    epoch: i64,
}

impl OpenFile {
    fn note(db: &Connection, path: &Path) -> Result<Self> {
        let inode = inode(path).map_err(|errno| {
            Error::unreachable(format!("{} is gone", path.display()))
                .with_source(std::io::Error::from(errno))
        })?;
        let epoch = read_epoch(db).map_err(|error| explain(path, error))?;
        Ok(Self { path: path.to_owned(), inode, epoch })
    }

    /// See [`store_id_of`].
    pub(super) fn store_id(&self) -> String {
        shown(self.inode)
    }

    /// Fails closed if clients that open the path now would not see what we write.
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

/// The unique id of the file that a path leads to, on this host.
pub(super) fn store_id_of(path: &Path) -> rustix::io::Result<String> {
    inode(path).map(shown)
}

fn shown((device, inode): (u64, u64)) -> String {
    format!("{device:x}:{inode:x}")
}

fn inode(path: &Path) -> rustix::io::Result<(u64, u64)> {
    rustix::fs::stat(path).map(|stat| (stat.st_dev, stat.st_ino))
}

fn read_epoch(db: &Connection) -> rusqlite::Result<i64> {
    db.prepare_cached("SELECT epoch FROM fencepost_store")?.query_row([], |row| row.get(0))
}

/// The times in the file must be of this machine's clock and this boot. After a reboot every lease is void:
/// its holder is gone. Tokens continue.
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
            only, or adopt it with sqlite:{shown}?adopt=true once nobody else uses it"
        )));
    }
    if written.boot != host.boot && written.machine != host.machine && !adopt {
        return Err(Error::refused(format!(
            "{shown} was written on another machine, and a lock in a file excludes only the processes \
            of one: use a file of this machine, or adopt this one with \
            sqlite:{shown}?adopt=true (tokens continue, leases are void)"
        )));
    }
    let settle = || {
        transaction.execute_batch(
            "DELETE FROM fencepost_locks; DELETE FROM fencepost_waiters; \
             DELETE FROM fencepost_broken",
        )?;
        transaction.execute(
            "UPDATE fencepost_store SET machine = ?, boot = ?, time_namespace = ?, \
             epoch = epoch + 1",
            (&host.machine, &host.boot, &host.time_namespace),
        )?;
        transaction.commit()
    };
    Ok(settle().map_err(failed)?)
}

fn read_host(db: &Connection) -> rusqlite::Result<Host> {
    db.query_row("SELECT machine, boot, time_namespace FROM fencepost_store", [], |row| {
        Ok(Host { machine: row.get(0)?, boot: row.get(1)?, time_namespace: row.get(2)? })
    })
}

/// Copies a long log into the file, so that the next writer starts at the beginning of the log: a process that opens the file while no
/// other has it open reads the whole log. SQLite itself copies it after 1000 pages, which take 4 ms to read.
fn shorten_log(db: &Connection) -> rusqlite::Result<()> {
    let pages = db.query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| row.get::<_, i64>(1))?;
    if pages > LOG_PAGES {
        // It waits for nobody: a part that cannot be copied yet is copied the next time.
        db.query_row("PRAGMA wal_checkpoint(PASSIVE)", [], |_| Ok(()))?;
    }
    Ok(())
}

fn named_presences(db: &Connection) -> rusqlite::Result<HashSet<String>> {
    db.prepare(
        "SELECT presence FROM fencepost_locks WHERE presence IS NOT NULL \
         UNION SELECT presence FROM fencepost_waiters",
    )?
    .query_map([], |row| row.get(0))?
    .collect()
}

/// Removes expired rows, if there are any: reading is cheaper than a commit.
pub(super) fn clean(db: &Connection, now: Moment) -> rusqlite::Result<()> {
    let now = now.as_nanos().cast_signed();
    let any = db
        .prepare_cached(
            "SELECT 1 FROM fencepost_locks WHERE expires <= ?1 UNION ALL \
             SELECT 1 FROM fencepost_waiters WHERE expires <= ?1 UNION ALL \
             SELECT 1 FROM fencepost_broken WHERE abs(expires) <= ?1 LIMIT 1",
        )?
        .exists([now])?;
    if any {
        db.execute("DELETE FROM fencepost_locks WHERE expires <= ?", [now])?;
        db.execute("DELETE FROM fencepost_waiters WHERE expires <= ?", [now])?;
        db.execute("DELETE FROM fencepost_broken WHERE abs(expires) <= ?", [now])?;
    }
    values::forget_stale(db)?;
    records::clean(db)
}
