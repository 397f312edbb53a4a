//! Reads, which change nothing.

use fencepost_core::{LockName, Moment, OwnerId, Token};
use rusqlite::types::Type;

use super::layout::{first_waiter, holder, label, moment, nanos, unfit};
use super::writer_thread::WriteBatch;
use crate::backend::{LockInfo, Page, PageRequest, WaiterInfo};

/// What a waiter reads.
pub(super) enum View {
    /// It must act: the lock is free, or its position is gone.
    Try,
    /// The lock is free, the first waiter is alive, and nobody has notified it yet.
    OthersFirst,
    /// Nothing yet.
    Wait {
        /// When the present lease ends.
        until: Moment,
        /// The holder's process, for the first waiter to watch.
        holder: Option<(Token, i32)>,
    },
}

/// Reads the state for a waiter, without writing anything.
pub(super) fn look(
    write_batch: &WriteBatch<'_>,
    name: &LockName,
    asking: OwnerId,
) -> rusqlite::Result<View> {
    let db = write_batch.db;
    let placed = db
        .prepare_cached("SELECT 1 FROM fencepost_waiters WHERE owner = ?")?
        .exists([asking.bits().to_be_bytes()])?;
    let Some(first) = first_waiter(db, name)?.filter(|_| placed) else { return Ok(View::Try) };
    let ours = first.owner == asking;
    match holder(db, name)?.filter(|holder| holder.lives(write_batch)) {
        Some(holder) => Ok(View::Wait {
            until: holder.deadline,
            holder: holder.pid.filter(|_| ours).map(|pid| (holder.token, pid)),
        }),
        None if ours || !first.lives(write_batch) => Ok(View::Try),
        None if first.offered.is_none() => Ok(View::OthersFirst),
        None => Ok(View::Wait { until: Moment::NEVER, holder: None }),
    }
}

pub(super) fn inspect(write_batch: &WriteBatch<'_>, name: &LockName) -> rusqlite::Result<LockInfo> {
    let (db, now) = (write_batch.db, write_batch.now);
    let holder = holder(db, name)?.filter(|holder| holder.lives(write_batch));
    let placed: u32 = db
        .prepare_cached("SELECT count(*) FROM fencepost_waiters WHERE name = ? AND expires > ?")?
        .query_row((name.as_str(), nanos(now)), |row| row.get(0))?;
    let mut first = db.prepare_cached(
        "SELECT label, since, presence FROM fencepost_waiters WHERE name = ? AND expires > ? \
         ORDER BY position LIMIT ?",
    )?;
    let first = first
        .query_map((name.as_str(), nanos(now), LockInfo::SHOWN_WAITERS as u32), |row| {
            let waiting_for = Some(now.since(moment(row, 1)?));
            Ok((WaiterInfo { label: label(row, 0)?, waiting_for }, row.get::<_, String>(2)?))
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    // A waiter that died stays in the table until the queue moves. Only the first ones are checked: each check
    // opens a file.
    let asked = first.len();
    let waiters: Vec<_> = first
        .into_iter()
        .filter(|(_, presence)| !write_batch.presence_dir.is_dead(presence))
        .map(|(waiter, _)| waiter)
        .collect();
    Ok(LockInfo {
        name: name.clone(),
        holder: holder.map(|holder| holder.info(write_batch, name)).transpose()?,
        waiting: placed as usize - (asked - waiters.len()),
        waiters,
    })
}

pub(super) fn list(write_batch: &WriteBatch<'_>, page: &PageRequest) -> rusqlite::Result<Page> {
    // A row has an invalid name only if another program wrote it.
    let mut names = write_batch.db.prepare_cached(
        "SELECT name FROM fencepost_locks WHERE name > ?1 AND substr(name, 1, length(?2)) = ?2 \
         UNION SELECT name FROM fencepost_waiters WHERE name > ?1 AND substr(name, 1, length(?2)) = ?2 \
         ORDER BY name LIMIT ?3",
    )?;
    let after = page.after.as_ref().map_or("", LockName::as_str);
    // One more than fit: then there is another page.
    let most = i64::try_from(page.limit).unwrap_or(i64::MAX).max(1).saturating_add(1);
    let names = names.query_map((after, &page.prefix, most), |row| {
        let name: String = row.get(0)?;
        LockName::new(&name).map_err(|invalid| unfit(0, Type::Text, invalid))
    })?;
    let (names, next) = page.cut(names.collect::<rusqlite::Result<Vec<_>>>()?, |name| name);
    let mut locks = Vec::new();
    for name in names {
        let mut info = inspect(write_batch, &name)?;
        info.waiters.clear();
        if info.holder.is_some() || info.waiting > 0 {
            locks.push(info);
        }
    }
    Ok(Page::new(locks, next))
}
