//! The tables of the file, and how their columns are read.
//!
//! ```text
//! PATH         SQLite database, WAL mode, application_id "FPST", user_version 2 (the layout's version)
//!   fencepost_store     one row: the machine, boot and time namespace of the times, the epoch (how
//!                       often that changed), and the last token
//!   fencepost_locks     one row per grant
//!   fencepost_waiters   one row per waiter, by its position in the queue
//!   fencepost_broken    owners whose grant an operator ended, until it would have expired
//!   fencepost_candidate_values   what the holder of a lock publishes, under its token (values.rs)
//!   fencepost_records   what is running, done or failed (records.rs)
//! PATH.d/      mode 0700
//!   p-*        presence files, locked by the processes that hold or wait (presence.rs)
//!   w-*        sockets of clients that wait or hold (wake_socket.rs)
//!   open.lock  locked while one process sets the file up
//!   new-*      a file that is being set up; it gets its name when it is complete
//! ```
//!
//! The file may have other tables too, of a program that commits effects and records together: hence the prefix of ours.
//! A file of another version is refused (`new_file.rs`). `docs/layouts/sqlite.md` is the same for users.
//!
//! Times are nanoseconds of `CLOCK_BOOTTIME`, except in records. A negative `expires` in `fencepost_broken` says that the
//! holder has confirmed. Owners are 16 bytes, so the file is the user's alone (0600), or a group's (0660, PATH.d 2770:
//! access.rs).

use std::time::Duration;

use fencepost_core::{Invalid, Label, LockName, Moment, OwnerId, Token, Ttl};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::values;
use super::wake_socket::Address;
use super::writer_thread::WriteBatch;
use crate::backend::HolderInfo;

pub(super) const APPLICATION: i32 = i32::from_be_bytes(*b"FPST");
pub(super) const VERSION: i32 = 2;

pub(super) const SCHEMA: &str = "
    CREATE TABLE fencepost_store (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        machine TEXT NOT NULL,
        boot TEXT NOT NULL,
        time_namespace TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        last_token INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE fencepost_locks (
        name TEXT PRIMARY KEY,
        owner BLOB NOT NULL,
        token INTEGER NOT NULL,
        ttl_ms INTEGER NOT NULL,
        label TEXT NOT NULL,
        granted INTEGER NOT NULL,
        expires INTEGER NOT NULL,
        pid INTEGER,
        presence TEXT
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE fencepost_waiters (
        position INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        owner BLOB NOT NULL UNIQUE,
        label TEXT NOT NULL,
        since INTEGER NOT NULL,
        expires INTEGER NOT NULL,
        offered INTEGER,
        socket TEXT NOT NULL,
        waiter_id INTEGER NOT NULL,
        presence TEXT NOT NULL
    ) STRICT;
    CREATE INDEX fencepost_waiters_by_name ON fencepost_waiters (name, position);
    CREATE TABLE fencepost_broken (
        owner BLOB PRIMARY KEY,
        expires INTEGER NOT NULL
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE fencepost_candidate_values (
        name TEXT PRIMARY KEY,
        token INTEGER NOT NULL,
        value BLOB NOT NULL
    ) STRICT;
    CREATE TABLE fencepost_records (
        name TEXT PRIMARY KEY,
        state INTEGER NOT NULL CHECK (state IN (0, 1, 2)),
        token INTEGER NOT NULL,
        label TEXT NOT NULL,
        since INTEGER NOT NULL,
        expires INTEGER NOT NULL,
        result BLOB NOT NULL
    ) STRICT;
    CREATE INDEX fencepost_records_by_expiry ON fencepost_records (expires);
";

/// A waiter that is offered the free lock and does not take it within this time is skipped: it is frozen, and must not
/// block the waiters behind it.
pub(super) const OFFER: Duration = Duration::from_secs(1);

/// The grant of a name.
pub(super) struct Holder {
    pub(super) owner: OwnerId,
    pub(super) token: Token,
    pub(super) ttl: Ttl,
    pub(super) label: Label,
    pub(super) granted: Moment,
    pub(super) deadline: Moment,
    pub(super) pid: Option<i32>,
    pub(super) presence: Option<String>,
}

impl Holder {
    fn read(row: &Row<'_>) -> rusqlite::Result<Self> {
        Ok(Self {
            owner: owner(row, 0)?,
            token: token(row, 1)?,
            ttl: ttl(row, 2)?,
            label: label(row, 3)?,
            granted: moment(row, 4)?,
            deadline: moment(row, 5)?,
            pid: row.get(6)?,
            presence: row.get(7)?,
        })
    }

    /// Whether the lease has not ended and, if the grant is tied to processes, one of them is alive.
    pub(super) fn lives(&self, write_batch: &WriteBatch<'_>) -> bool {
        let is_dead = |name: &String| write_batch.presence_dir.is_dead(name);
        self.deadline > write_batch.now && !self.presence.as_ref().is_some_and(is_dead)
    }

    /// For display. Only this looks up the published value, so that locks do not pay for it.
    pub(super) fn info(
        self,
        write_batch: &WriteBatch<'_>,
        name: &LockName,
    ) -> rusqlite::Result<HolderInfo> {
        Ok(HolderInfo::new(self.label)
            .with_token(self.token)
            .with_ttl(self.ttl)
            .with_held_for(write_batch.now.since(self.granted))
            .with_remaining(self.deadline.since(write_batch.now))
            .with_value(values::candidate_value(write_batch.db, name, self.token)?))
    }
}

pub(super) fn holder(db: &Connection, name: &LockName) -> rusqlite::Result<Option<Holder>> {
    db.prepare_cached(
        "SELECT owner, token, ttl_ms, label, granted, expires, pid, presence \
         FROM fencepost_locks WHERE name = ?",
    )?
    .query_row([name.as_str()], Holder::read)
    .optional()
}

/// A position in the queue.
pub(super) struct Waiter {
    pub(super) position: i64,
    pub(super) owner: OwnerId,
    pub(super) deadline: Moment,
    pub(super) offered: Option<Moment>,
    pub(super) address: Address,
    pub(super) presence: String,
}

impl Waiter {
    /// Whether it may still take the lock.
    pub(super) fn lives(&self, write_batch: &WriteBatch<'_>) -> bool {
        self.deadline > write_batch.now
            && self.offered.is_none_or(|offered| offered + OFFER > write_batch.now)
            && !write_batch.presence_dir.is_dead(&self.presence)
    }
}

pub(super) fn first_waiter(db: &Connection, name: &LockName) -> rusqlite::Result<Option<Waiter>> {
    db.prepare_cached(
        "SELECT position, owner, expires, offered, socket, waiter_id, presence \
         FROM fencepost_waiters WHERE name = ? ORDER BY position LIMIT 1",
    )?
    .query_row([name.as_str()], |row| {
        let socket: String = row.get(4)?;
        Ok(Waiter {
            position: row.get(0)?,
            owner: owner(row, 1)?,
            deadline: moment(row, 2)?,
            offered: row.get::<_, Option<i64>>(3)?.map(from_nanos),
            address: Address {
                socket: socket.into(),
                waiter_id: row.get::<_, i64>(5)?.cast_unsigned(),
            },
            presence: row.get(6)?,
        })
    })
    .optional()
}

pub(super) fn nanos(moment: Moment) -> i64 {
    moment.as_nanos().min(i64::MAX as u64).cast_signed()
}

pub(super) fn from_nanos(nanos: i64) -> Moment {
    Moment::from_nanos(nanos.max(0).cast_unsigned())
}

pub(super) fn moment(row: &Row<'_>, column: usize) -> rusqlite::Result<Moment> {
    Ok(from_nanos(row.get(column)?))
}

pub(super) fn owner(row: &Row<'_>, column: usize) -> rusqlite::Result<OwnerId> {
    Ok(OwnerId::from_bits(u128::from_be_bytes(row.get(column)?)))
}

pub(super) fn token(row: &Row<'_>, column: usize) -> rusqlite::Result<Token> {
    let number: i64 = row.get(column)?;
    Token::new(number.max(0).cast_unsigned()).map_err(|bad| unfit(column, Type::Integer, bad))
}

pub(super) fn ttl(row: &Row<'_>, column: usize) -> rusqlite::Result<Ttl> {
    let millis: u32 = row.get(column)?;
    Ttl::new(Duration::from_millis(millis.into())).map_err(|bad| unfit(column, Type::Integer, bad))
}

pub(super) fn label(row: &Row<'_>, column: usize) -> rusqlite::Result<Label> {
    let text: String = row.get(column)?;
    Label::new(&text).map_err(|bad| unfit(column, Type::Text, bad))
}

/// The error of a value that another program wrote.
pub(super) fn unfit(column: usize, kind: Type, invalid: Invalid) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(invalid))
}
