//! The lock rules as transactions. Each function here runs inside one, at one `now`.

use std::time::Duration;

use fencepost_core::{LockName, OwnerId, Token, Ttl, Value};
use rusqlite::{Connection, OptionalExtension as _};

use super::desk::Sheet;
use super::layout::{Holder, Waiter, first_waiter, holder, moment, nanos, token, ttl};
use super::presence::Mark;
use super::values;
use super::wake::Address;
use crate::backend::{Acquired, Broken, Grant, GrantId, Liveness, LossCause, Request};

/// A waiter's place lives this long without a sign of life; it is renewed every third of it.
pub(super) const PLACE: Duration = Duration::from_secs(30);

/// Who asks.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) request: Request,
    /// The asking process's presence file.
    pub(super) mark: Mark,
    /// Where to call if the asker waits.
    pub(super) queue: Option<Address>,
}

impl Ask {
    /// The grant. Its file goes with it if it ends with the process, not only with the lease.
    fn granted(&self, token: Token) -> Acquired {
        let Request { ttl, liveness, .. } = self.request;
        let presence = (liveness == Liveness::Process).then(|| self.mark.presence.clone());
        Acquired::Granted(Grant { token, ttl, queued: false, presence })
    }
}

/// The waiter whose turn it is on a free lock, those before it who can not take theirs removed.
fn next_in_line(
    sheet: &Sheet<'_>,
    name: &LockName,
    asking: Option<OwnerId>,
) -> rusqlite::Result<Option<Waiter>> {
    while let Some(waiter) = first_waiter(sheet.db, name)? {
        // The one who asks is plainly there.
        if asking == Some(waiter.owner) || waiter.lives(sheet) {
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

/// Takes the lock if it is free and nobody is first; else takes a place in line if asked to. `None` if the counter
/// has reached its end.
pub(super) fn acquire(sheet: &mut Sheet<'_>, ask: &Ask) -> rusqlite::Result<Option<Acquired>> {
    let (db, now) = (sheet.db, sheet.now);
    let Request { grant: GrantId { name, owner }, ttl, label, value, liveness, .. } = &ask.request;
    let tied = *liveness == Liveness::Process;
    if let Some(holder) = holder(db, name)? {
        if holder.lives(sheet) {
            if holder.owner == *owner {
                renew(sheet, name, *owner, Some(*ttl), None)?;
                if tied {
                    db.prepare_cached("UPDATE locks SET pid = ?, presence = ? WHERE name = ?")?
                        .execute((std::process::id(), &*ask.mark.name, name.as_str()))?;
                }
                return Ok(Some(ask.granted(holder.token)));
            }
            return enqueue(sheet, ask, Some(holder)).map(Some);
        }
        end_dead_grant(sheet, name, &holder)?;
    }
    match next_in_line(sheet, name, Some(*owner))? {
        Some(first) if first.owner != *owner => {
            offer(sheet, &first)?;
            return enqueue(sheet, ask, None).map(Some);
        }
        Some(own) => {
            db.prepare_cached("DELETE FROM waiters WHERE ticket = ?")?.execute([own.ticket])?;
        }
        None => {}
    }
    let Some(token) = draw_token(db)? else { return Ok(None) };
    db.prepare_cached("INSERT INTO locks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")?.execute((
        name.as_str(),
        owner.bits().to_be_bytes(),
        token.get().cast_signed(),
        ttl.as_millis(),
        label.as_str(),
        nanos(now),
        nanos(now + ttl.as_duration()),
        tied.then(std::process::id),
        tied.then_some(&*ask.mark.name),
    ))?;
    if let Some(value) = value {
        values::say(db, name, token, value)?;
    }
    Ok(Some(ask.granted(token)))
}

fn draw_token(db: &Connection) -> rusqlite::Result<Option<Token>> {
    db.prepare_cached(
        "UPDATE store SET last_token = last_token + 1 WHERE last_token < ? RETURNING last_token",
    )?
    .query_row([Token::MAX.cast_signed()], |row| token(row, 0))
    .optional()
}

fn end_dead_grant(sheet: &Sheet<'_>, name: &LockName, holder: &Holder) -> rusqlite::Result<()> {
    sheet.db.prepare_cached("DELETE FROM locks WHERE name = ?")?.execute([name.as_str()])?;
    if let Some(presence) = &holder.presence {
        sheet.marks.remove_dead(presence);
    }
    Ok(())
}

/// Others are first: takes or refreshes a place in line, if that was asked for.
fn enqueue(sheet: &Sheet<'_>, ask: &Ask, holder: Option<Holder>) -> rusqlite::Result<Acquired> {
    let GrantId { name, owner } = &ask.request.grant;
    let Some(address) = &ask.queue else {
        let holder = holder.map(|holder| holder.info(sheet, name)).transpose()?;
        return Ok(Acquired::Held(holder));
    };
    let key = owner.bits().to_be_bytes();
    sheet
        .db
        .prepare_cached(
            "INSERT INTO waiters (name, owner, label, since, deadline, socket, bell, presence) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) \
             ON CONFLICT (owner) DO UPDATE SET deadline = excluded.deadline, \
             socket = excluded.socket, bell = excluded.bell, presence = excluded.presence",
        )?
        .execute((
            name.as_str(),
            key,
            ask.request.label.as_str(),
            nanos(sheet.now),
            nanos(sheet.now + PLACE),
            &*address.socket,
            address.bell.cast_signed(),
            &*ask.mark.name,
        ))?;
    let ahead = "SELECT count(*) FROM waiters WHERE name = ?1 AND ticket < \
                 (SELECT ticket FROM waiters WHERE owner = ?2)";
    let ahead: u32 =
        sheet.db.prepare_cached(ahead)?.query_row((name.as_str(), key), |row| row.get(0))?;
    Ok(Acquired::Queued { ahead: ahead.into() })
}

/// Renews a grant whose lease still runs; one that has ended stays ended, taken over or not. The end only
/// moves on: a guard counts on the lease that it was promised.
pub(super) fn renew(
    sheet: &Sheet<'_>,
    name: &LockName,
    owner: OwnerId,
    new_ttl: Option<Ttl>,
    new_value: Option<&Value>,
) -> rusqlite::Result<Option<(Token, Ttl)>> {
    let renewed = sheet
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
        .optional()?;
    if let (Some((token, _)), Some(value)) = (renewed, new_value) {
        values::say(sheet.db, name, token, value)?;
    }
    Ok(renewed)
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
        tell_next(sheet, name)?;
    }
    if !ended {
        confirm_break(sheet, owner)?;
    }
    Ok(ended)
}

fn tell_next(sheet: &mut Sheet<'_>, name: &LockName) -> rusqlite::Result<()> {
    match next_in_line(sheet, name, None)? {
        Some(next) => offer(sheet, &next),
        None => Ok(()),
    }
}

/// Those of the owners whose grant was broken.
pub(super) fn broken_among(
    sheet: &Sheet<'_>,
    owners: &[OwnerId],
) -> rusqlite::Result<Vec<OwnerId>> {
    let mut broken = sheet.db.prepare_cached("SELECT 1 FROM broken WHERE owner = ?")?;
    let mut found = Vec::new();
    for owner in owners {
        if broken.exists([owner.bits().to_be_bytes()])? {
            found.push(*owner);
        }
    }
    Ok(found)
}

/// The owner of a broken grant knows that it is.
fn confirm_break(sheet: &Sheet<'_>, owner: OwnerId) -> rusqlite::Result<()> {
    sheet
        .db
        .prepare_cached("UPDATE broken SET until = -until WHERE owner = ? AND until > 0")?
        .execute([owner.bits().to_be_bytes()])?;
    Ok(())
}

/// Whether the owner of a broken grant knows that it is.
pub(super) fn is_break_confirmed(sheet: &Sheet<'_>, owner: OwnerId) -> rusqlite::Result<bool> {
    sheet
        .db
        .prepare_cached("SELECT 1 FROM broken WHERE owner = ? AND until < 0")?
        .exists([owner.bits().to_be_bytes()])
}

/// A grant that was broken, and how to reach its holder.
pub(super) struct BrokenGrant {
    pub(super) broken: Broken,
    pub(super) owner: OwnerId,
    /// A process has it, which lives.
    pub(super) tied: bool,
}

/// Ends the current grant, if it has this token or none was named, and draws a token above it.
pub(super) fn break_lock(
    sheet: &mut Sheet<'_>,
    name: &LockName,
    token: Option<Token>,
) -> rusqlite::Result<Option<BrokenGrant>> {
    let db = sheet.db;
    let is_meant = |holder: &Holder| token.is_none_or(|token| holder.token == token);
    let holder = holder(db, name)?.filter(|holder| holder.lives(sheet) && is_meant(holder));
    let Some(holder) = holder else { return Ok(None) };
    let Some(floor) = draw_token(db)? else { return Ok(None) };
    db.prepare_cached("DELETE FROM locks WHERE name = ?")?.execute([name.as_str()])?;
    db.prepare_cached("INSERT OR REPLACE INTO broken VALUES (?, ?)")?
        .execute((holder.owner.bits().to_be_bytes(), nanos(holder.deadline)))?;
    tell_next(sheet, name)?;
    let (owner, tied) = (holder.owner, holder.presence.is_some());
    let broken = Broken { label: holder.label, token: Some(holder.token), floor, confirmed: false };
    Ok(Some(BrokenGrant { broken, owner, tied }))
}
