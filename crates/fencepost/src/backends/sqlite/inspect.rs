//! What can be seen without changing anything.

use fencepost_core::{LockName, Moment, OwnerId, Token};
use rusqlite::types::Type;

use super::desk::Sheet;
use super::layout::{first_waiter, holder, label, moment, nanos, unfit};
use crate::backend::{LockInfo, WaiterInfo};

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

/// What a waiter finds when it looks, without writing anything.
pub(super) fn look(sheet: &Sheet<'_>, name: &LockName, asking: OwnerId) -> rusqlite::Result<View> {
    let db = sheet.db;
    let placed = db
        .prepare_cached("SELECT 1 FROM waiters WHERE owner = ?")?
        .exists([asking.bits().to_be_bytes()])?;
    let Some(first) = first_waiter(db, name)?.filter(|_| placed) else { return Ok(View::Try) };
    let ours = first.owner == asking;
    match holder(db, name)?.filter(|holder| holder.lives(sheet)) {
        Some(holder) => Ok(View::Wait {
            until: holder.deadline,
            holder: holder.pid.filter(|_| ours).map(|pid| (holder.token, pid)),
        }),
        None if ours || !first.lives(sheet) => Ok(View::Try),
        None if first.offered.is_none() => Ok(View::OthersTurn),
        None => Ok(View::Wait { until: Moment::NEVER, holder: None }),
    }
}

pub(super) fn inspect(sheet: &Sheet<'_>, name: &LockName) -> rusqlite::Result<LockInfo> {
    let (db, now) = (sheet.db, sheet.now);
    let holder = holder(db, name)?.filter(|holder| holder.lives(sheet));
    let placed: u32 = db
        .prepare_cached("SELECT count(*) FROM waiters WHERE name = ? AND deadline > ?")?
        .query_row((name.as_str(), nanos(now)), |row| row.get(0))?;
    let mut first = db.prepare_cached(
        "SELECT label, since, presence FROM waiters WHERE name = ? AND deadline > ? \
         ORDER BY ticket LIMIT ?",
    )?;
    let first = first
        .query_map((name.as_str(), nanos(now), LockInfo::SHOWN_WAITERS as u32), |row| {
            let waiting_for = Some(now.since(moment(row, 1)?));
            Ok((WaiterInfo { label: label(row, 0)?, waiting_for }, row.get::<_, String>(2)?))
        })?
        .collect::<rusqlite::Result<Vec<_>>>()?;
    // One that died is still in the table until the line moves. Only the first are asked: each costs a
    // look at a file.
    let asked = first.len();
    let waiters: Vec<_> = first
        .into_iter()
        .filter(|(_, presence)| !sheet.marks.is_dead(presence))
        .map(|(waiter, _)| waiter)
        .collect();
    Ok(LockInfo {
        name: name.clone(),
        holder: holder.map(|holder| holder.info(sheet, name)).transpose()?,
        waiting: placed as usize - (asked - waiters.len()),
        waiters,
    })
}

pub(super) fn list(sheet: &Sheet<'_>) -> rusqlite::Result<Vec<LockInfo>> {
    let mut names = sheet
        .db
        .prepare_cached("SELECT name FROM locks UNION SELECT name FROM waiters ORDER BY name")?;
    let names = names.query_map([], |row| {
        let name: String = row.get(0)?;
        LockName::new(&name).map_err(|invalid| unfit(0, Type::Text, invalid))
    })?;
    let mut locks = Vec::new();
    for name in names {
        let mut info = inspect(sheet, &name?)?;
        info.waiters.clear();
        if info.holder.is_some() || info.waiting > 0 {
            locks.push(info);
        }
    }
    Ok(locks)
}
