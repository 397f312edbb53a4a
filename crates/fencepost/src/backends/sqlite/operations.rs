//! The lock rules as transactions. Each function here runs inside one, at one `now`.

use std::time::Duration;

use fencepost_core::{LockName, OwnerId, Token, Ttl, Value};
use rusqlite::{Connection, OptionalExtension as _};

use super::layout::{Holder, Waiter, first_waiter, holder, moment, nanos, token, ttl};
use super::presence::PresenceFile;
use super::values;
use super::wake_socket::Address;
use super::writer_thread::WriteBatch;
use crate::backend::{Acquired, Broken, Grant, GrantId, Liveness, LossCause, Request};

/// The lease of a waiter's position; it is renewed every third of this.
pub(super) const POSITION_TTL: Duration = Duration::from_secs(30);

/// The caller of an operation.
#[derive(Clone)]
pub(super) struct Ask {
    pub(super) request: Request,
    /// The calling process's presence file.
    pub(super) presence_file: PresenceFile,
    /// Where to notify the caller if it waits.
    pub(super) queue: Option<Address>,
}

impl Ask {
    /// The grant. It has the presence file if it ends with the process, not only with the lease.
    fn granted(&self, token: Token) -> Acquired {
        let Request { ttl, liveness, .. } = self.request;
        let presence = (liveness == Liveness::Process).then(|| self.presence_file.presence.clone());
        Acquired::Granted(Grant::new(token, ttl).with_presence(presence))
    }
}

/// The first waiter of a free lock; removes those before it that are dead or frozen.
fn next_in_queue(
    write_batch: &WriteBatch<'_>,
    name: &LockName,
    asking: Option<OwnerId>,
) -> rusqlite::Result<Option<Waiter>> {
    while let Some(waiter) = first_waiter(write_batch.db, name)? {
        // The caller itself is alive.
        if asking == Some(waiter.owner) || waiter.lives(write_batch) {
            return Ok(Some(waiter));
        }
        let mut delete =
            write_batch.db.prepare_cached("DELETE FROM fencepost_waiters WHERE position = ?")?;
        delete.execute([waiter.position])?;
    }
    Ok(None)
}

/// The lock is free: notify the first waiter, once.
fn offer(write_batch: &mut WriteBatch<'_>, waiter: &Waiter) -> rusqlite::Result<()> {
    if waiter.offered.is_none() {
        write_batch
            .db
            .prepare_cached("UPDATE fencepost_waiters SET offered = ? WHERE position = ?")?
            .execute((nanos(write_batch.now), waiter.position))?;
        write_batch.wake.push(waiter.address.clone());
    }
    Ok(())
}

/// Takes the lock if it is free and nobody is ahead; otherwise takes a position if requested. `None` if the counter has
/// reached its end.
pub(super) fn acquire(
    write_batch: &mut WriteBatch<'_>,
    ask: &Ask,
) -> rusqlite::Result<Option<Acquired>> {
    let (db, now) = (write_batch.db, write_batch.now);
    let Request { grant: GrantId { name, owner }, ttl, label, value, liveness, .. } = &ask.request;
    let tied = *liveness == Liveness::Process;
    if let Some(holder) = holder(db, name)? {
        if holder.lives(write_batch) {
            if holder.owner == *owner {
                renew(write_batch, name, *owner, Some(*ttl), None)?;
                if tied {
                    db.prepare_cached(
                        "UPDATE fencepost_locks SET pid = ?, presence = ? WHERE name = ?",
                    )?
                    .execute((
                        std::process::id(),
                        &*ask.presence_file.name,
                        name.as_str(),
                    ))?;
                }
                return Ok(Some(ask.granted(holder.token)));
            }
            return enqueue(write_batch, ask, Some(holder)).map(Some);
        }
        end_dead_grant(write_batch, name, &holder)?;
    }
    match next_in_queue(write_batch, name, Some(*owner))? {
        Some(first) if first.owner != *owner => {
            offer(write_batch, &first)?;
            return enqueue(write_batch, ask, None).map(Some);
        }
        Some(own) => {
            db.prepare_cached("DELETE FROM fencepost_waiters WHERE position = ?")?
                .execute([own.position])?;
        }
        None => {}
    }
    let Some(token) = draw_token(db)? else { return Ok(None) };
    db.prepare_cached("INSERT INTO fencepost_locks VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)")?.execute(
        (
            name.as_str(),
            owner.bits().to_be_bytes(),
            token.get().cast_signed(),
            ttl.as_millis(),
            label.as_str(),
            nanos(now),
            nanos(now + ttl.as_duration()),
            tied.then(std::process::id),
            tied.then_some(&*ask.presence_file.name),
        ),
    )?;
    if let Some(value) = value {
        values::publish(db, name, token, value)?;
    }
    Ok(Some(ask.granted(token)))
}

fn draw_token(db: &Connection) -> rusqlite::Result<Option<Token>> {
    db.prepare_cached(
        "UPDATE fencepost_store SET last_token = last_token + 1 WHERE last_token < ? \
         RETURNING last_token",
    )?
    .query_row([Token::MAX.cast_signed()], |row| token(row, 0))
    .optional()
}

fn end_dead_grant(
    write_batch: &WriteBatch<'_>,
    name: &LockName,
    holder: &Holder,
) -> rusqlite::Result<()> {
    write_batch
        .db
        .prepare_cached("DELETE FROM fencepost_locks WHERE name = ?")?
        .execute([name.as_str()])?;
    if let Some(presence) = &holder.presence {
        write_batch.presence_dir.remove_dead(presence);
    }
    Ok(())
}

/// Others are ahead: takes or refreshes a position, if requested.
fn enqueue(
    write_batch: &WriteBatch<'_>,
    ask: &Ask,
    holder: Option<Holder>,
) -> rusqlite::Result<Acquired> {
    let GrantId { name, owner } = &ask.request.grant;
    let Some(address) = &ask.queue else {
        let holder = holder.map(|holder| holder.info(write_batch, name)).transpose()?;
        return Ok(Acquired::Held(holder));
    };
    let key = owner.bits().to_be_bytes();
    write_batch
        .db
        .prepare_cached(
            "INSERT INTO fencepost_waiters \
             (name, owner, label, since, expires, socket, waiter_id, presence) \
             VALUES (?, ?, ?, ?, ?, ?, ?, ?) \
             ON CONFLICT (owner) DO UPDATE SET expires = excluded.expires, \
             socket = excluded.socket, waiter_id = excluded.waiter_id, presence = excluded.presence",
        )?
        .execute((
            name.as_str(),
            key,
            ask.request.label.as_str(),
            nanos(write_batch.now),
            nanos(write_batch.now + POSITION_TTL),
            &*address.socket,
            address.waiter_id.cast_signed(),
            &*ask.presence_file.name,
        ))?;
    let ahead = "SELECT count(*) FROM fencepost_waiters WHERE name = ?1 AND position < \
                 (SELECT position FROM fencepost_waiters WHERE owner = ?2)";
    let ahead: u32 =
        write_batch.db.prepare_cached(ahead)?.query_row((name.as_str(), key), |row| row.get(0))?;
    Ok(Acquired::Queued { ahead: ahead.into() })
}

/// Renews a grant whose lease has not ended; one that has ended stays ended, even if nobody took over. The end only
/// moves forward: a guard relies on the lease that it was granted.
pub(super) fn renew(
    write_batch: &WriteBatch<'_>,
    name: &LockName,
    owner: OwnerId,
    new_ttl: Option<Ttl>,
    new_value: Option<&Value>,
) -> rusqlite::Result<Option<(Token, Ttl)>> {
    let renewed = write_batch
        .db
        .prepare_cached(
            "UPDATE fencepost_locks SET ttl_ms = max(ttl_ms, coalesce(?3, 0)), \
             expires = max(expires, ?4 + max(ttl_ms, coalesce(?3, 0)) * 1000000) \
             WHERE name = ?1 AND owner = ?2 AND expires > ?4 RETURNING token, ttl_ms",
        )?
        .query_row(
            (
                name.as_str(),
                owner.bits().to_be_bytes(),
                new_ttl.map(Ttl::as_millis),
                nanos(write_batch.now),
            ),
            |row| Ok((token(row, 0)?, ttl(row, 1)?)),
        )
        .optional()?;
    if let (Some((token, _)), Some(value)) = (renewed, new_value) {
        values::publish(write_batch.db, name, token, value)?;
    }
    Ok(renewed)
}

/// Why `owner` does not hold `name`.
pub(super) fn why_not_held(
    write_batch: &WriteBatch<'_>,
    name: &LockName,
    owner: OwnerId,
) -> rusqlite::Result<Option<LossCause>> {
    let owner = owner.bits().to_be_bytes();
    if write_batch
        .db
        .prepare_cached("SELECT 1 FROM fencepost_broken WHERE owner = ?")?
        .exists([owner])?
    {
        return Ok(Some(LossCause::Broken));
    }
    let holder = holder(write_batch.db, name)?.filter(|holder| holder.deadline > write_batch.now);
    Ok(holder.map(|_| LossCause::TakenOver))
}

/// Ends what `owner` has here, a grant or a position, and notifies the next waiter if the lock is free then. False if
/// there was nothing, or only a lease that had ended.
pub(super) fn release(
    write_batch: &mut WriteBatch<'_>,
    name: &LockName,
    owner: OwnerId,
) -> rusqlite::Result<bool> {
    let (db, key) = (write_batch.db, owner.bits().to_be_bytes());
    let deadline = db
        .prepare_cached(
            "DELETE FROM fencepost_locks WHERE name = ? AND owner = ? RETURNING expires",
        )?
        .query_row((name.as_str(), key), |row| moment(row, 0))
        .optional()?;
    let ended = if let Some(deadline) = deadline {
        deadline > write_batch.now
    } else {
        let mut leave =
            db.prepare_cached("DELETE FROM fencepost_waiters WHERE owner = ? AND name = ?")?;
        leave.execute((key, name.as_str()))? > 0
    };
    if deadline.is_some() || (ended && holder(db, name)?.is_none()) {
        notify_next(write_batch, name)?;
    }
    if !ended {
        confirm_break(write_batch, owner)?;
    }
    Ok(ended)
}

fn notify_next(write_batch: &mut WriteBatch<'_>, name: &LockName) -> rusqlite::Result<()> {
    match next_in_queue(write_batch, name, None)? {
        Some(next) => offer(write_batch, &next),
        None => Ok(()),
    }
}

/// Which of the owners had a grant that was broken.
pub(super) fn broken_among(
    write_batch: &WriteBatch<'_>,
    owners: &[OwnerId],
) -> rusqlite::Result<Vec<OwnerId>> {
    let mut broken =
        write_batch.db.prepare_cached("SELECT 1 FROM fencepost_broken WHERE owner = ?")?;
    let mut found = Vec::new();
    for owner in owners {
        if broken.exists([owner.bits().to_be_bytes()])? {
            found.push(*owner);
        }
    }
    Ok(found)
}

/// The owner of a broken grant confirms it.
fn confirm_break(write_batch: &WriteBatch<'_>, owner: OwnerId) -> rusqlite::Result<()> {
    write_batch
        .db
        .prepare_cached(
            "UPDATE fencepost_broken SET expires = -expires WHERE owner = ? AND expires > 0",
        )?
        .execute([owner.bits().to_be_bytes()])?;
    Ok(())
}

/// Whether the owner of a broken grant has confirmed it.
pub(super) fn is_break_confirmed(
    write_batch: &WriteBatch<'_>,
    owner: OwnerId,
) -> rusqlite::Result<bool> {
    write_batch
        .db
        .prepare_cached("SELECT 1 FROM fencepost_broken WHERE owner = ? AND expires < 0")?
        .exists([owner.bits().to_be_bytes()])
}

/// A grant that was broken, and how to reach its holder.
pub(super) struct BrokenGrant {
    pub(super) broken: Broken,
    pub(super) owner: OwnerId,
    /// A live process has it.
    pub(super) tied: bool,
}

/// Ends the current grant, if it has this token or no token was given, and draws a token above it.
pub(super) fn break_lock(
    write_batch: &mut WriteBatch<'_>,
    name: &LockName,
    token: Option<Token>,
) -> rusqlite::Result<Option<BrokenGrant>> {
    let db = write_batch.db;
    let is_meant = |holder: &Holder| token.is_none_or(|token| holder.token == token);
    let holder = holder(db, name)?.filter(|holder| holder.lives(write_batch) && is_meant(holder));
    let Some(holder) = holder else { return Ok(None) };
    let Some(floor) = draw_token(db)? else { return Ok(None) };
    db.prepare_cached("DELETE FROM fencepost_locks WHERE name = ?")?.execute([name.as_str()])?;
    db.prepare_cached("INSERT OR REPLACE INTO fencepost_broken VALUES (?, ?)")?
        .execute((holder.owner.bits().to_be_bytes(), nanos(holder.deadline)))?;
    notify_next(write_batch, name)?;
    let (owner, tied) = (holder.owner, holder.presence.is_some());
    let broken = Broken { label: holder.label, token: Some(holder.token), floor, confirmed: false };
    Ok(Some(BrokenGrant { broken, owner, tied }))
}
