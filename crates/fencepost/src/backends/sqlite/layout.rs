//! What lies in the file, and how its columns are read.
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

use std::time::Duration;

use fencepost_core::{Label, LockName, Moment, OwnerId, Token, Ttl};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::desk::Sheet;
use super::values;
use super::wake::Address;
use crate::backend::HolderInfo;

pub(super) const APPLICATION: i32 = i32::from_be_bytes(*b"FPST");
pub(super) const VERSION: i32 = 1;

pub(super) const SCHEMA: &str = "
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
pub(super) const LATER: &str = "
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

/// A waiter that is offered the free lock and does not take it within this loses its turn: it is frozen,
/// and must not stall those behind it.
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

    /// Whether the lease runs and, if the grant is tied to processes, one of them lives.
    pub(super) fn lives(&self, sheet: &Sheet<'_>) -> bool {
        let is_dead = |name: &String| sheet.marks.is_dead(name);
        self.deadline > sheet.now && !self.presence.as_ref().is_some_and(is_dead)
    }

    /// For those who are told of it. What it says of itself is looked up here alone, so that no step pays for it.
    pub(super) fn info(self, sheet: &Sheet<'_>, name: &LockName) -> rusqlite::Result<HolderInfo> {
        Ok(HolderInfo {
            value: values::said(sheet.db, name, self.token)?,
            label: self.label,
            token: Some(self.token),
            ttl: Some(self.ttl),
            held_for: Some(sheet.now.since(self.granted)),
            remaining: Some(self.deadline.since(sheet.now)),
            endless: false,
        })
    }
}

pub(super) fn holder(db: &Connection, name: &LockName) -> rusqlite::Result<Option<Holder>> {
    db.prepare_cached(
        "SELECT owner, token, ttl_ms, label, granted, deadline, pid, presence FROM locks \
         WHERE name = ?",
    )?
    .query_row([name.as_str()], Holder::read)
    .optional()
}

/// A place in line.
pub(super) struct Waiter {
    pub(super) ticket: i64,
    pub(super) owner: OwnerId,
    pub(super) deadline: Moment,
    pub(super) offered: Option<Moment>,
    pub(super) address: Address,
    pub(super) presence: String,
}

impl Waiter {
    /// Whether it may still take its turn.
    pub(super) fn lives(&self, sheet: &Sheet<'_>) -> bool {
        self.deadline > sheet.now
            && self.offered.is_none_or(|offered| offered + OFFER > sheet.now)
            && !sheet.marks.is_dead(&self.presence)
    }
}

pub(super) fn first_waiter(db: &Connection, name: &LockName) -> rusqlite::Result<Option<Waiter>> {
    db.prepare_cached(
        "SELECT ticket, owner, deadline, offered, socket, bell, presence FROM waiters \
         WHERE name = ? ORDER BY ticket LIMIT 1",
    )?
    .query_row([name.as_str()], |row| {
        let socket: String = row.get(4)?;
        Ok(Waiter {
            ticket: row.get(0)?,
            owner: owner(row, 1)?,
            deadline: moment(row, 2)?,
            offered: row.get::<_, Option<i64>>(3)?.map(from_nanos),
            address: Address { socket: socket.into(), bell: row.get::<_, i64>(5)?.cast_unsigned() },
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

/// A value that we would not have written: somebody else did.
pub(super) fn unfit(
    column: usize,
    kind: Type,
    invalid: fencepost_core::Invalid,
) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(invalid))
}
