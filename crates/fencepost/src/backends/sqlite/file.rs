//! Opens the file, and sees what must be true of it before it is used.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use fencepost_core::Moment;
use parking_lot::Mutex;
use rusqlite::{Connection, OptionalExtension as _, TransactionBehavior};

use super::access::Access;
use super::connection::{connect, wait_at_most};
use super::error::{Failure, explain};
use super::host::{Host, refuse_network_file_system};
use super::new_file::{add_later, alone, is_empty, is_ready, make, set_up};
use super::presence::Marks;
use super::users::user;
use super::{Options, records, values};
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::retry::CALL_TIMEOUT;

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
                    user(owner.0)
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
    wait_at_most(CALL_TIMEOUT);
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
