//! What is in the tables: a grant, a place in line, and how their columns are read.

use std::time::Duration;

use fencepost_core::{Label, LockName, Moment, OwnerId, Token, Ttl};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::presence::Marks;
use super::values;
use super::wake::Address;
use crate::backend::HolderInfo;

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
    pub(super) fn lives(&self, now: Moment, marks: &Marks) -> bool {
        self.deadline > now && !self.presence.as_deref().is_some_and(|name| marks.is_dead(name))
    }

    /// For those who are told of it. What it says of itself is looked up here alone, so that no step pays for it.
    pub(super) fn info(
        self,
        db: &Connection,
        name: &LockName,
        now: Moment,
    ) -> rusqlite::Result<HolderInfo> {
        Ok(HolderInfo {
            value: values::said(db, name, self.token)?,
            label: self.label,
            token: Some(self.token),
            ttl: Some(self.ttl),
            held_for: Some(now.since(self.granted)),
            remaining: Some(self.deadline.since(now)),
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
    pub(super) fn lives(&self, now: Moment, marks: &Marks) -> bool {
        self.deadline > now
            && self.offered.is_none_or(|offered| offered + OFFER > now)
            && !marks.is_dead(&self.presence)
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
