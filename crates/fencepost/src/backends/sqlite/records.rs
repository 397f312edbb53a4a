//! Records in the file: what is running, done or failed.
//!
//! ```text
//! fencepost_records   name, state (0 running, 1 done, 2 failed), token, label, since, ends, result
//! ```
//!
//! *Why one success is recorded:* each step is one transaction with the file's write lock, so it reads what it then
//! writes, and nobody comes between. `finish` writes only where the record is running with the caller's own token.
//! *Time:* `since` and `ends` are milliseconds of this host's wall clock: a record has to outlive a reboot, and
//! `CLOCK_BOOTTIME` does not. The host is the store here, so it is the store's clock, and the one for all.
//! *Where it ends:* a wall clock that is set forwards ends records early, and work may be done again. So does a file
//! that is lost or restored from a backup. A reboot, a crash of any process and an adopted file lose nothing.
//!
//! [`finish_in`] is the same step in a transaction of the caller's, on a connection of the caller's.

use std::time::Duration;

use fencepost_core::records::{self, Decision, Past, Record};
use fencepost_core::{LockName, Token};
use fencepost_fence::sqlite::explain;
use rusqlite::types::Type;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension as _, Row, Transaction, TransactionState, ffi,
};

use super::Sqlite;
use super::desk::Sheet;
use super::file::place_of;
use super::layout::{label, token, unfit};
use crate::backend::{BoxFuture, StoreResult};
use crate::clock::wall;
use crate::error::{Error, Result};
use crate::ledger::{Claim, Claimed, Entry, Finish, State};
use crate::transaction;

/// How many records that are over a step removes beside its own: more than it can add.
const TIDIED: u32 = 4;

/// The records of one file, at one time.
struct Book<'a> {
    db: &'a Connection,
    /// What the connection calls the file: `main`, or the name that it was attached by.
    schema: String,
    now: i64,
}

impl<'a> Book<'a> {
    fn of(db: &'a Connection, schema: &str) -> Self {
        let schema = format!("\"{}\"", schema.replace('"', "\"\""));
        Self { db, schema, now: millis(wall()) }
    }

    /// Puts the table's name in the place of `{}`.
    fn sql(&self, text: &str) -> String {
        text.replace("{}", &format!("{}.fencepost_records", self.schema))
    }

    fn read(&self, name: &LockName) -> rusqlite::Result<Option<Entry>> {
        let ask = "SELECT name, state, token, label, since, ends, result FROM {} \
                   WHERE name = ?1 AND ends > ?2";
        self.db
            .prepare_cached(&self.sql(ask))?
            .query_row((name.as_str(), self.now), |row| self.entry(row))
            .optional()
    }

    fn entry(&self, row: &Row<'_>) -> rusqlite::Result<Entry> {
        let name: String = row.get(0)?;
        let (since, ends): (i64, i64) = (row.get(4)?, row.get(5)?);
        Ok(Entry {
            name: LockName::new(&name).map_err(|bad| unfit(0, Type::Text, bad))?,
            state: match row.get(1)? {
                0 => State::Running,
                1 => State::Done,
                2 => State::Failed,
                other => return Err(rusqlite::Error::IntegralValueOutOfRange(1, other)),
            },
            token: token(row, 2)?,
            label: label(row, 3)?,
            since: span(since, self.now),
            kept_for: span(self.now, ends),
            result: row.get(6)?,
        })
    }

    fn write(&self, name: &LockName, record: &Record) -> rusqlite::Result<()> {
        let state = match record.state {
            State::Running => 0,
            State::Done => 1,
            State::Failed => 2,
        };
        let write = "INSERT INTO {} (name, state, token, label, since, ends, result) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (name) DO UPDATE SET \
                     state = excluded.state, token = excluded.token, label = excluded.label, \
                     since = excluded.since, ends = excluded.ends, result = excluded.result";
        self.db.prepare_cached(&self.sql(write))?.execute((
            name.as_str(),
            state,
            record.token.get().cast_signed(),
            record.label.as_str(),
            self.now,
            self.now.saturating_add(millis(record.retention)),
            &record.result,
        ))?;
        Ok(())
    }

    fn carry_out<T>(&self, name: &LockName, decision: Decision<T>) -> rusqlite::Result<T> {
        match decision {
            Decision::Answer(answer) => Ok(answer),
            Decision::Write(record, answer) => self.write(name, &record).map(|()| answer),
            Decision::Remove(answer) => {
                let delete = self.sql("DELETE FROM {} WHERE name = ?");
                self.db.prepare_cached(&delete)?.execute([name.as_str()])?;
                Ok(answer)
            }
        }
    }

    fn claim(&self, claim: &Claim) -> rusqlite::Result<Claimed> {
        self.tidy()?;
        self.carry_out(&claim.name, records::claim(self.read(&claim.name)?, claim))
    }

    fn finish(&self, finish: &Finish) -> rusqlite::Result<bool> {
        let found = self.read(&finish.name)?;
        let decision = records::finish(found.as_ref(), Past::default(), finish);
        self.carry_out(&finish.name, decision)
    }

    fn entries(&self, prefix: &str) -> rusqlite::Result<Vec<Entry>> {
        let ask = "SELECT name, state, token, label, since, ends, x'' FROM {} \
                   WHERE name >= ?1 AND substr(name, 1, length(?1)) = ?1 AND ends > ?2 ORDER BY name";
        self.db
            .prepare_cached(&self.sql(ask))?
            .query_map((prefix, self.now), |row| self.entry(row))?
            .collect()
    }

    fn forget(&self, name: &LockName, token: Token) -> rusqlite::Result<bool> {
        let delete = self.sql("DELETE FROM {} WHERE name = ?1 AND token = ?2 AND ends > ?3");
        let values = (name.as_str(), token.get().cast_signed(), self.now);
        Ok(self.db.prepare_cached(&delete)?.execute(values)? > 0)
    }

    /// Removes some of those whose time is over. Not in a caller's transaction, which pays for its own alone.
    fn tidy(&self) -> rusqlite::Result<()> {
        remove_old(self.db, self.now, TIDIED)
    }
}

/// Removes records whose time is over, at most so many, if there are any.
fn remove_old(db: &Connection, now: i64, at_most: u32) -> rusqlite::Result<()> {
    db.prepare_cached(
        "DELETE FROM fencepost_records WHERE rowid IN \
         (SELECT rowid FROM fencepost_records WHERE ends <= ?1 ORDER BY ends LIMIT ?2)",
    )?
    .execute((now, at_most))?;
    Ok(())
}

/// The same now and then, for files in which nobody claims anything any more.
pub(super) fn clean(db: &Connection) -> rusqlite::Result<()> {
    let now = millis(wall());
    let over = db
        .prepare_cached("SELECT 1 FROM fencepost_records WHERE ends <= ? LIMIT 1")?
        .exists([now])?;
    if over { remove_old(db, now, 1000) } else { Ok(()) }
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// From one time to another; nothing if the clock was set back in between.
fn span(from: i64, to: i64) -> Duration {
    Duration::from_millis(to.saturating_sub(from).max(0).cast_unsigned())
}

pub(super) async fn claim(store: &Sqlite, claim: Claim) -> StoreResult<Claimed> {
    store.refuse_other_user()?;
    store.desk.write(move |sheet| Book::of(sheet.db, "main").claim(&claim)).await
}

pub(super) async fn finish(store: &Sqlite, finish: Finish) -> StoreResult<bool> {
    store.refuse_other_user()?;
    let act = move |sheet: &mut Sheet<'_>| {
        let book = Book::of(sheet.db, "main");
        book.tidy()?;
        book.finish(&finish)
    };
    store.desk.write(act).await
}

pub(super) async fn look_up(store: &Sqlite, name: LockName) -> StoreResult<Option<Entry>> {
    store.desk.read(move |sheet| Book::of(sheet.db, "main").read(&name)).await
}

pub(super) async fn entries(store: &Sqlite, prefix: String) -> StoreResult<Vec<Entry>> {
    store.desk.read(move |sheet| Book::of(sheet.db, "main").entries(&prefix)).await
}

pub(super) async fn forget(store: &Sqlite, name: LockName, token: Token) -> StoreResult<bool> {
    store.desk.write(move |sheet| Book::of(sheet.db, "main").forget(&name, token)).await
}

/// Settles a record in the caller's transaction, if that is one of the file that is at `place`.
pub(crate) fn finish_in(tx: &Transaction<'_>, finish: &Finish, place: &str) -> Result<bool> {
    let name = &finish.name;
    let failed = |error: rusqlite::Error| explain(&error);
    let files = files_of(tx).map_err(failed)?;
    let ours = |file: &str| place_of(file.as_ref()).is_ok_and(|found| found == place);
    let Some((schema, file)) = files.iter().find(|(_, file)| ours(file)) else {
        return Err(Error::refused(format!(
            "the transaction is one of another database than the store: \"{name}\" can only be marked in the \
             file that the store is in, where the effect must be too"
        )));
    };
    refuse_two_files(tx, name, files.iter().filter(|(other, _)| other != schema))?;
    let book = Book::of(tx, schema);
    match book.read(name).map_err(failed)? {
        Some(entry) if entry.token > finish.token => return Ok(false),
        Some(entry) if entry.token == finish.token && !entry.is_settled() => {}
        // A retry of the same run: its first transaction was committed, and this one would have the effect once more.
        Some(entry) if entry.token == finish.token => {
            let twice = is_committed(file, finish) == Ok(false);
            return Err(if twice {
                transaction::marked_twice(name)
            } else {
                transaction::marked_already(name)
            });
        }
        // None, or one from before the claim.
        _ => return Err(transaction::unseen(name)),
    }
    book.finish(finish).map_err(|error| match error.sqlite_error() {
        Some(found) if found.extended_code == ffi::SQLITE_BUSY_SNAPSHOT => Error::unreachable(
            "another has written since this transaction read: roll back, and try it again with \
             BEGIN IMMEDIATE",
        ),
        _ => explain(&error),
    })
}

/// The files that the connection has open, each with what it is called there.
fn files_of(db: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
    let mut list = db.prepare_cached("PRAGMA database_list")?;
    let rows = list.query_map([], |row| Ok((row.get(1)?, row.get(2)?)))?;
    let mut files: Vec<(String, String)> = rows.collect::<rusqlite::Result<_>>()?;
    // What has no file is in memory, and gone after a crash anyway.
    files.retain(|(_, file)| !file.is_empty());
    Ok(files)
}

/// Refuses a transaction that writes another file as well: SQLite commits one after the other when they use WAL, and a
/// crash in between leaves the mark without the effect, or the effect without the mark.
fn refuse_two_files<'a>(
    tx: &Transaction<'_>,
    name: &LockName,
    others: impl Iterator<Item = &'a (String, String)>,
) -> Result<()> {
    for (schema, file) in others {
        let state = tx.transaction_state(Some(&**schema)).map_err(|error| explain(&error))?;
        if state == TransactionState::Write {
            return Err(Error::refused(format!(
                "the transaction writes to {file} too, or has its write lock (BEGIN IMMEDIATE takes those of all \
                 attached files): a crash could part the mark of \"{name}\" from the effect. Have the effect in \
                 the store's file, and no other file open for writing"
            )));
        }
    }
    Ok(())
}

/// Whether others see the record as this run has settled it.
fn is_committed(file: &str, finish: &Finish) -> rusqlite::Result<bool> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(file, flags)?;
    let entry = Book::of(&db, "main").read(&finish.name)?;
    Ok(entry.is_some_and(|entry| entry.is_settled() && entry.token == finish.token))
}

impl transaction::Transaction for Transaction<'_> {
    fn finish(&mut self, finish: Finish, place: String) -> BoxFuture<'_, Result<bool>> {
        // It can not be sent to another thread, so it is done before there is a future.
        Box::pin(std::future::ready(finish_in(self, &finish, &place)))
    }
}
