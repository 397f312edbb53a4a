//! The lock rules as transactions on rows. Each function here runs inside one, at one `now`.

use std::time::Duration;

use fencepost_core::{Label, LockName, Moment, OwnerId, Token, Ttl};
use rusqlite::types::Type;
use rusqlite::{Connection, OptionalExtension as _, Row};

use super::desk::Sheet;
use super::presence::Marks;
use super::wake::Address;
use crate::backend::{Broken, HolderInfo, LockInfo, LossCause, WaiterInfo};

/// A waiter's place lives this long without a sign of life; it is renewed every third of it.
pub(super) const PLACE: Duration = Duration::from_secs(30);

/// A waiter that is offered the free lock and does not take it within this loses its turn: it is frozen,
/// and must not stall those behind it.
pub(super) const OFFER: Duration = Duration::from_secs(1);

/// Who asks.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) name: LockName,
    pub(super) owner: OwnerId,
    pub(super) ttl: Ttl,
    pub(super) label: Label,
    /// The asking process's presence file.
    pub(super) presence: std::sync::Arc<str>,
    /// The grant ends with the process, not only with the lease.
    pub(super) tied: bool,
    /// Where to call if the asker waits.
    pub(super) queue: Option<Address>,
}

/// What came of asking.
pub(super) enum Answer {
    Granted(Token),
    Held(Option<HolderInfo>),
    Queued,
    /// The counter has reached its end.
    Exhausted,
}

/// What a waiter sees when it looks.
pub(super) enum View {
    /// Something for it to do: the lock is free, or its place is gone.
    Try,
    /// The lock is free, the first in line lives, and nobody has told it yet.
    OthersTurn,
    /// Nothing yet.
    Wait {
        /// When the present lease ends.
        until: Moment,
        /// The holder's process, for the first in line to keep an eye on.
        holder: Option<(Token, i32)>,
    },
}

struct Holder {
    owner: OwnerId,
    token: Token,
    ttl: Ttl,
    label: Label,
    granted: Moment,
    deadline: Moment,
    pid: Option<i32>,
    presence: Option<String>,
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
    fn lives(&self, now: Moment, marks: &Marks) -> bool {
        self.deadline > now && !self.presence.as_deref().is_some_and(|name| marks.is_dead(name))
    }

    fn info(self, now: Moment) -> HolderInfo {
        HolderInfo {
            label: self.label,
            token: self.token,
            ttl: self.ttl,
            held_for: now.since(self.granted),
            remaining: self.deadline.since(now),
        }
    }
}

const HOLDER: &str = "owner, token, ttl_ms, label, granted, deadline, pid, presence";

fn holder(db: &Connection, name: &LockName) -> rusqlite::Result<Option<Holder>> {
    db.prepare_cached(&format!("SELECT {HOLDER} FROM locks WHERE name = ?"))?
        .query_row([name.as_str()], Holder::read)
        .optional()
}

struct Waiter {
    ticket: i64,
    owner: OwnerId,
    deadline: Moment,
    offered: Option<Moment>,
    address: Address,
    presence: String,
}

impl Waiter {
    /// Whether it may still take its turn.
    fn lives(&self, now: Moment, marks: &Marks) -> bool {
        self.deadline > now
            && self.offered.is_none_or(|offered| offered + OFFER > now)
            && !marks.is_dead(&self.presence)
    }
}

fn first_waiter(db: &Connection, name: &LockName) -> rusqlite::Result<Option<Waiter>> {
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

/// The waiter whose turn it is on a free lock, those before it who can not take theirs removed.
fn next_in_line(
    sheet: &Sheet<'_>,
    marks: &Marks,
    name: &LockName,
    asking: Option<OwnerId>,
) -> rusqlite::Result<Option<Waiter>> {
    while let Some(waiter) = first_waiter(sheet.db, name)? {
        // The one who asks is plainly there.
        if asking == Some(waiter.owner) || waiter.lives(sheet.now, marks) {
            return Ok(Some(waiter));
        }
        let mut delete = sheet.db.prepare_cached("DELETE FROM waiters WHERE ticket = ?")?;
        delete.execute([waiter.ticket])?;
    }
    Ok(None)
}

/// The lock is free: tell the first in line, once.
fn offer(sheet: &mut Sheet<'_>, waiter: &Waiter) -> rusqlite::Result<()> {
    if waiter.offered.is_none() {
        sheet
            .db
            .prepare_cached("UPDATE waiters SET offered = ? WHERE ticket = ?")?
            .execute((nanos(sheet.now), waiter.ticket))?;
        sheet.wake.push(waiter.address.clone());
    }
    Ok(())
}

/// Takes the lock if it is free and nobody is first; else takes a place in line if asked to.
pub(super) fn acquire(sheet: &mut Sheet<'_>, marks: &Marks, ask: &Ask) -> rusqlite::Result<Answer> {
    let (db, now) = (sheet.db, sheet.now);
    if let Some(holder) = holder(db, &ask.name)? {
        if holder.lives(now, marks) {
            if holder.owner == ask.owner {
                renew(sheet, &ask.name, ask.owner, Some(ask.ttl))?;
                if ask.tied {
                    db.prepare_cached("UPDATE locks SET pid = ?, presence = ? WHERE name = ?")?
                        .execute((std::process::id(), &*ask.presence, ask.name.as_str()))?;
                }
                return Ok(Answer::Granted(holder.token));
            }
            return match &ask.queue {
                Some(address) => enqueue(sheet, ask, address),
                None => Ok(Answer::Held(Some(holder.info(now)))),
            };
        }
        end_dead_grant(db, marks, &ask.name, &holder)?;
    }
    match next_in_line(sheet, marks, &ask.name, Some(ask.owner))? {
        Some(first) if first.owner != ask.owner => {
            offer(sheet, &first)?;
            return match &ask.queue {
                Some(address) => enqueue(sheet, ask, address),
                None => Ok(Answer::Held(None)),
            };
        }
        Some(own) => {
            db.prepare_cached("DELETE FROM waiters WHERE ticket = ?")?.execute([own.ticket])?;
        }
        None => {}
    }
    let Some(token) = draw_token(db)? else { return Ok(Answer::Exhausted) };
    let pid = ask.tied.then(std::process::id);
    let presence = ask.tied.then_some(&*ask.presence);
    db.prepare_cached("INSERT INTO locks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")?.execute((
        ask.name.as_str(),
        ask.owner.bits().to_be_bytes(),
        token.get().cast_signed(),
        ask.ttl.as_millis(),
        ask.label.as_str(),
        nanos(now),
        nanos(now + ask.ttl.as_duration()),
        pid,
        presence,
    ))?;
    Ok(Answer::Granted(token))
}

fn draw_token(db: &Connection) -> rusqlite::Result<Option<Token>> {
    db.prepare_cached(
        "UPDATE store SET last_token = last_token + 1 WHERE last_token < ? RETURNING last_token",
    )?
    .query_row([Token::MAX.cast_signed()], |row| token(row, 0))
    .optional()
}

fn end_dead_grant(
    db: &Connection,
    marks: &Marks,
    name: &LockName,
    holder: &Holder,
) -> rusqlite::Result<()> {
    db.prepare_cached("DELETE FROM locks WHERE name = ?")?.execute([name.as_str()])?;
    if let Some(presence) = &holder.presence {
        marks.remove_dead(presence);
    }
    Ok(())
}

fn enqueue(sheet: &Sheet<'_>, ask: &Ask, address: &Address) -> rusqlite::Result<Answer> {
    sheet
        .db
        .prepare_cached(
            "INSERT INTO waiters (name, owner, label, since, deadline, socket, bell, presence) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) \
             ON CONFLICT (owner) DO UPDATE SET deadline = excluded.deadline, \
             socket = excluded.socket, bell = excluded.bell, presence = excluded.presence",
        )?
        .execute((
            ask.name.as_str(),
            ask.owner.bits().to_be_bytes(),
            ask.label.as_str(),
            nanos(sheet.now),
            nanos(sheet.now + PLACE),
            &*address.socket,
            address.bell.cast_signed(),
            &*ask.presence,
        ))?;
    Ok(Answer::Queued)
}

/// What a waiter finds when it looks, without writing anything.
pub(super) fn look(
    sheet: &Sheet<'_>,
    marks: &Marks,
    name: &LockName,
    asking: OwnerId,
) -> rusqlite::Result<View> {
    let (db, now) = (sheet.db, sheet.now);
    let placed = db
        .prepare_cached("SELECT 1 FROM waiters WHERE owner = ?")?
        .exists([asking.bits().to_be_bytes()])?;
    let Some(first) = first_waiter(db, name)?.filter(|_| placed) else { return Ok(View::Try) };
    let ours = first.owner == asking;
    match holder(db, name)?.filter(|holder| holder.lives(now, marks)) {
        Some(holder) => Ok(View::Wait {
            until: holder.deadline,
            holder: holder.pid.filter(|_| ours).map(|pid| (holder.token, pid)),
        }),
        None if ours || !first.lives(now, marks) => Ok(View::Try),
        None if first.offered.is_none() => Ok(View::OthersTurn),
        None => Ok(View::Wait { until: Moment::NEVER, holder: None }),
    }
}

/// Renews a grant whose lease still runs; one that has ended stays ended, taken over or not. The end only
/// moves on: a guard counts on the lease that it was promised.
pub(super) fn renew(
    sheet: &Sheet<'_>,
    name: &LockName,
    owner: OwnerId,
    new_ttl: Option<Ttl>,
) -> rusqlite::Result<Option<(Token, Ttl)>> {
    sheet
        .db
        .prepare_cached(
            "UPDATE locks SET ttl_ms = max(ttl_ms, coalesce(?3, 0)), \
             deadline = max(deadline, ?4 + max(ttl_ms, coalesce(?3, 0)) * 1000000) \
             WHERE name = ?1 AND owner = ?2 AND deadline > ?4 RETURNING token, ttl_ms",
        )?
        .query_row(
            (
                name.as_str(),
                owner.bits().to_be_bytes(),
                new_ttl.map(Ttl::as_millis),
                nanos(sheet.now),
            ),
            |row| Ok((token(row, 0)?, ttl(row, 1)?)),
        )
        .optional()
}

/// Why `owner` does not hold `name`.
pub(super) fn why_not_held(
    sheet: &Sheet<'_>,
    name: &LockName,
    owner: OwnerId,
) -> rusqlite::Result<Option<LossCause>> {
    let owner = owner.bits().to_be_bytes();
    if sheet.db.prepare_cached("SELECT 1 FROM broken WHERE owner = ?")?.exists([owner])? {
        return Ok(Some(LossCause::Broken));
    }
    let holder = holder(sheet.db, name)?.filter(|holder| holder.deadline > sheet.now);
    Ok(holder.map(|_| LossCause::TakenOver))
}

/// Ends what `owner` has here, a grant or a place, and tells the next in line if the lock is free then.
/// False if there was nothing, or only a lease that had ended.
pub(super) fn release(
    sheet: &mut Sheet<'_>,
    marks: &Marks,
    name: &LockName,
    owner: OwnerId,
) -> rusqlite::Result<bool> {
    let (db, key) = (sheet.db, owner.bits().to_be_bytes());
    let deadline = db
        .prepare_cached("DELETE FROM locks WHERE name = ? AND owner = ? RETURNING deadline")?
        .query_row((name.as_str(), key), |row| moment(row, 0))
        .optional()?;
    let ended = if let Some(deadline) = deadline {
        deadline > sheet.now
    } else {
        let mut leave = db.prepare_cached("DELETE FROM waiters WHERE owner = ? AND name = ?")?;
        leave.execute((key, name.as_str()))? > 0
    };
    if deadline.is_some() || (ended && holder(db, name)?.is_none()) {
        tell_next(sheet, marks, name)?;
    }
    Ok(ended)
}

fn tell_next(sheet: &mut Sheet<'_>, marks: &Marks, name: &LockName) -> rusqlite::Result<()> {
    match next_in_line(sheet, marks, name, None)? {
        Some(next) => offer(sheet, &next),
        None => Ok(()),
    }
}

/// Ends the present grant and draws a token above it.
pub(super) fn break_lock(
    sheet: &mut Sheet<'_>,
    marks: &Marks,
    name: &LockName,
) -> rusqlite::Result<Option<Broken>> {
    let (db, now) = (sheet.db, sheet.now);
    let Some(holder) = holder(db, name)?.filter(|holder| holder.lives(now, marks)) else {
        return Ok(None);
    };
    let Some(floor) = draw_token(db)? else { return Ok(None) };
    db.prepare_cached("DELETE FROM locks WHERE name = ?")?.execute([name.as_str()])?;
    db.prepare_cached("INSERT OR REPLACE INTO broken VALUES (?, ?)")?
        .execute((holder.owner.bits().to_be_bytes(), nanos(holder.deadline)))?;
    tell_next(sheet, marks, name)?;
    Ok(Some(Broken { label: holder.label, token: holder.token, floor }))
}

/// Who holds the lock by its lease. Does not ask whether the holder lives.
pub(super) fn holder_info(
    sheet: &Sheet<'_>,
    name: &LockName,
) -> rusqlite::Result<Option<HolderInfo>> {
    let holder = holder(sheet.db, name)?.filter(|holder| holder.deadline > sheet.now);
    Ok(holder.map(|holder| holder.info(sheet.now)))
}

pub(super) fn inspect(
    sheet: &Sheet<'_>,
    marks: &Marks,
    name: &LockName,
) -> rusqlite::Result<LockInfo> {
    let (db, now) = (sheet.db, sheet.now);
    let holder = holder(db, name)?.filter(|holder| holder.lives(now, marks));
    let placed: u32 = db
        .prepare_cached("SELECT count(*) FROM waiters WHERE name = ? AND deadline > ?")?
        .query_row((name.as_str(), nanos(now)), |row| row.get(0))?;
    let mut first = db.prepare_cached(
        "SELECT label, since, presence FROM waiters WHERE name = ? AND deadline > ? \
         ORDER BY ticket LIMIT ?",
    )?;
    let first = first
        .query_map((name.as_str(), nanos(now), LockInfo::SHOWN_WAITERS as u32), |row| {
            let waiting_for = now.since(moment(row, 1)?);
            Ok((WaiterInfo { label: label(row, 0)?, waiting_for }, row.get::<_, String>(2)?))
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    // One that died is still in the table until the line moves. Only the first are asked: each costs a
    // look at a file.
    let asked = first.len();
    let waiters: Vec<_> = first
        .into_iter()
        .filter(|(_, presence)| !marks.is_dead(presence))
        .map(|(waiter, _)| waiter)
        .collect();
    Ok(LockInfo {
        name: name.clone(),
        holder: holder.map(|holder| holder.info(now)),
        waiting: placed as usize - (asked - waiters.len()),
        waiters,
    })
}

pub(super) fn list(sheet: &Sheet<'_>, marks: &Marks) -> rusqlite::Result<Vec<LockInfo>> {
    let mut names = sheet
        .db
        .prepare_cached("SELECT name FROM locks UNION SELECT name FROM waiters ORDER BY name")?;
    let names = names.query_map([], |row| {
        let name: String = row.get(0)?;
        LockName::new(&name).map_err(|invalid| unfit(0, Type::Text, invalid))
    })?;
    let mut locks = Vec::new();
    for name in names {
        let mut info = inspect(sheet, marks, &name?)?;
        info.waiters.clear();
        if info.holder.is_some() || info.waiting > 0 {
            locks.push(info);
        }
    }
    Ok(locks)
}

fn nanos(moment: Moment) -> i64 {
    moment.as_nanos().min(i64::MAX as u64).cast_signed()
}

fn from_nanos(nanos: i64) -> Moment {
    Moment::from_nanos(nanos.max(0).cast_unsigned())
}

fn moment(row: &Row<'_>, column: usize) -> rusqlite::Result<Moment> {
    Ok(from_nanos(row.get(column)?))
}

fn owner(row: &Row<'_>, column: usize) -> rusqlite::Result<OwnerId> {
    Ok(OwnerId::from_bits(u128::from_be_bytes(row.get(column)?)))
}

fn token(row: &Row<'_>, column: usize) -> rusqlite::Result<Token> {
    let number: i64 = row.get(column)?;
    Token::new(number.max(0).cast_unsigned()).map_err(|bad| unfit(column, Type::Integer, bad))
}

fn ttl(row: &Row<'_>, column: usize) -> rusqlite::Result<Ttl> {
    let millis: u32 = row.get(column)?;
    Ttl::new(Duration::from_millis(millis.into())).map_err(|bad| unfit(column, Type::Integer, bad))
}

fn label(row: &Row<'_>, column: usize) -> rusqlite::Result<Label> {
    let text: String = row.get(column)?;
    Label::new(&text).map_err(|bad| unfit(column, Type::Text, bad))
}

/// A value that we would not have written: somebody else did.
fn unfit(column: usize, kind: Type, invalid: fencepost_core::Invalid) -> rusqlite::Error {
    rusqlite::Error::FromSqlConversionFailure(column, kind, Box::new(invalid))
}
