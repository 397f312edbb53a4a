//! Records in the file: what is running, done or failed.
//!
//! ```text
//! fencepost_records   name, state (0 running, 1 done, 2 failed), token, label, since, expires, result
//! ```
//!
//! *Why one success is recorded:* each step is one transaction with the file's write lock, so nobody writes between its
//! read and its write. `finish` writes only if the record is running with the caller's own token.
//! *Time:* `since` and `expires` are milliseconds of this host's wall clock: a record must outlive a reboot, and
//! `CLOCK_BOOTTIME` does not. The host is the store here, so this is the store's clock, the same for all clients.
//! *Where it ends:* a wall clock that is set forwards ends records early, and work may run again. So it may after the
//! file is lost or restored from a backup. A reboot, a crash of any process and an adopted file lose nothing.
//!
//! [`finish_in`] is the same step in the caller's transaction, on the caller's connection.

use std::time::Duration;

use fencepost_core::records::{self, Decision, Past, Record};
use fencepost_core::{LockName, Moment, Token};
use fencepost_fence::sqlite::explain;
use rusqlite::types::Type;
use rusqlite::{
    Connection, OpenFlags, OptionalExtension as _, Row, Transaction, TransactionState, ffi,
};

use super::Sqlite;
use super::file::store_id_of;
use super::layout::{label, token, unfit};
use super::writer_thread::WriteBatch;
use crate::backend::{BoxFuture, StoreCall};
use crate::clock::wall;
use crate::error::{Error, Result};
use crate::ledger::{Claim, Claimed, Completion, Ledger, RecordInfo, RecordsByName, State};
use crate::transaction;

/// How many expired records a step removes besides its own: more than it can add.
const GC_BATCH: u32 = 4;

/// The records of one file, at one time.
struct RecordTable<'a> {
    db: &'a Connection,
    /// The connection's name for the file: `main`, or the name under which it is attached.
    schema: String,
    now: i64,
}

impl<'a> RecordTable<'a> {
    fn of(db: &'a Connection, schema: &str) -> Self {
        let schema = format!("\"{}\"", schema.replace('"', "\"\""));
        Self { db, schema, now: millis(wall()) }
    }

    /// Replaces `{}` by the table's name.
    fn sql(&self, text: &str) -> String {
        text.replace("{}", &format!("{}.fencepost_records", self.schema))
    }

    fn read(&self, name: &LockName) -> rusqlite::Result<Option<RecordInfo>> {
        let ask = "SELECT name, state, token, label, since, expires, result FROM {} \
                   WHERE name = ?1 AND expires > ?2";
        self.db
            .prepare_cached(&self.sql(ask))?
            .query_row((name.as_str(), self.now), |row| self.info(row))
            .optional()
    }

    fn info(&self, row: &Row<'_>) -> rusqlite::Result<RecordInfo> {
        let name: String = row.get(0)?;
        let (since, expires): (i64, i64) = (row.get(4)?, row.get(5)?);
        let name = LockName::new(&name).map_err(|bad| unfit(0, Type::Text, bad))?;
        let state = match row.get(1)? {
            0 => State::Running,
            1 => State::Done,
            2 => State::Failed,
            other => return Err(rusqlite::Error::IntegralValueOutOfRange(1, other)),
        };
        Ok(RecordInfo::new(name, state, token(row, 2)?, label(row, 3)?)
            .with_result(row.get(6)?)
            .with_times(span(since, self.now), span(self.now, expires)))
    }

    fn write(&self, name: &LockName, record: &Record) -> rusqlite::Result<()> {
        let state = match record.state {
            State::Running => 0,
            State::Done => 1,
            State::Failed => 2,
        };
        let write = "INSERT INTO {} (name, state, token, label, since, expires, result) \
                     VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (name) DO UPDATE SET \
                     state = excluded.state, token = excluded.token, label = excluded.label, \
                     since = excluded.since, expires = excluded.expires, result = excluded.result";
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
        self.gc()?;
        self.carry_out(&claim.name, records::claim(self.read(&claim.name)?, claim))
    }

    fn finish(&self, finish: &Completion) -> rusqlite::Result<bool> {
        let found = self.read(&finish.name)?;
        let decision = records::finish(found.as_ref(), Past::default(), finish);
        self.carry_out(&finish.name, decision)
    }

    fn list_records(&self, prefix: &str) -> rusqlite::Result<Vec<RecordInfo>> {
        let ask = "SELECT name, state, token, label, since, expires, x'' FROM {} \
                   WHERE name >= ?1 AND substr(name, 1, length(?1)) = ?1 AND expires > ?2 ORDER BY name";
        self.db
            .prepare_cached(&self.sql(ask))?
            .query_map((prefix, self.now), |row| self.info(row))?
            .collect()
    }

    fn forget(&self, name: &LockName, token: Token) -> rusqlite::Result<bool> {
        let delete = self.sql("DELETE FROM {} WHERE name = ?1 AND token = ?2 AND expires > ?3");
        let values = (name.as_str(), token.get().cast_signed(), self.now);
        Ok(self.db.prepare_cached(&delete)?.execute(values)? > 0)
    }

    /// Removes some of the expired records. Not in a caller's transaction, which should pay only for its own.
    fn gc(&self) -> rusqlite::Result<()> {
        remove_old(self.db, self.now, GC_BATCH)
    }
}

/// Removes expired records, up to a maximum, if there are any.
fn remove_old(db: &Connection, now: i64, at_most: u32) -> rusqlite::Result<()> {
    db.prepare_cached(
        "DELETE FROM fencepost_records WHERE rowid IN \
         (SELECT rowid FROM fencepost_records WHERE expires <= ?1 ORDER BY expires LIMIT ?2)",
    )?
    .execute((now, at_most))?;
    Ok(())
}

/// The same from time to time, for files without new claims.
pub(super) fn clean(db: &Connection) -> rusqlite::Result<()> {
    let now = millis(wall());
    let over = db
        .prepare_cached("SELECT 1 FROM fencepost_records WHERE expires <= ? LIMIT 1")?
        .exists([now])?;
    if over { remove_old(db, now, 1000) } else { Ok(()) }
}

fn millis(span: Duration) -> i64 {
    i64::try_from(span.as_millis()).unwrap_or(i64::MAX)
}

/// The span between two times; zero if the clock was set back in between.
fn span(from: i64, to: i64) -> Duration {
    Duration::from_millis(to.saturating_sub(from).max(0).cast_unsigned())
}

impl Ledger for Sqlite {
    fn claim(&self, claim: Claim, _limit: Moment) -> StoreCall<'_, Claimed> {
        Box::pin(async move {
            self.refuse_other_user()?;
            self.writer_thread
                .write(move |write_batch| RecordTable::of(write_batch.db, "main").claim(&claim))
                .await
        })
    }

    fn finish(&self, finish: Completion, _limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(async move {
            self.refuse_other_user()?;
            let act = move |write_batch: &mut WriteBatch<'_>| {
                let record_table = RecordTable::of(write_batch.db, "main");
                record_table.gc()?;
                record_table.finish(&finish)
            };
            self.writer_thread.write(act).await
        })
    }

    fn look_up(&self, names: Vec<LockName>, _limit: Moment) -> StoreCall<'_, RecordsByName> {
        let read = move |write_batch: &mut WriteBatch<'_>| {
            let record_table = RecordTable::of(write_batch.db, "main");
            let mut records = RecordsByName::with_capacity(names.len());
            for name in &names {
                if let Some(record) = record_table.read(name)? {
                    records.insert(name.clone(), record);
                }
            }
            Ok(records)
        };
        Box::pin(self.writer_thread.read(read))
    }

    fn list_records(&self, prefix: &str, _limit: Moment) -> StoreCall<'_, Vec<RecordInfo>> {
        let prefix = prefix.to_owned();
        Box::pin(
            self.writer_thread.read(move |write_batch| {
                RecordTable::of(write_batch.db, "main").list_records(&prefix)
            }),
        )
    }

    fn forget(&self, name: LockName, token: Token, _limit: Moment) -> StoreCall<'_, bool> {
        Box::pin(
            self.writer_thread.write(move |write_batch| {
                RecordTable::of(write_batch.db, "main").forget(&name, token)
            }),
        )
    }

    fn store_id(&self) -> Option<String> {
        Some(self.store_id.clone())
    }
}

/// Finishes a record in the caller's transaction, if that is in the file at `store_id`.
pub(crate) fn finish_in(tx: &Transaction<'_>, finish: &Completion, store_id: &str) -> Result<bool> {
    let name = &finish.name;
    let failed = |error: rusqlite::Error| explain(&error);
    let files = files_of(tx).map_err(failed)?;
    let ours = |file: &str| store_id_of(file.as_ref()).is_ok_and(|found| found == store_id);
    let Some((schema, file)) = files.iter().find(|(_, file)| ours(file)) else {
        return Err(Error::refused(format!(
            "the transaction is in another database than the store: \"{name}\" can only be recorded in the \
            store's file, where the effect must be too"
        )));
    };
    refuse_two_files(tx, name, files.iter().filter(|(other, _)| other != schema))?;
    let record_table = RecordTable::of(tx, schema);
    match record_table.read(name).map_err(failed)? {
        Some(record) if record.token > finish.token => return Ok(false),
        Some(record) if record.token == finish.token && !record.is_finished() => {}
        // A retry of the same run: its first transaction was committed, and this one would repeat the effect.
        Some(record) if record.token == finish.token => {
            let twice = is_committed(file, finish) == Ok(false);
            return Err(if twice {
                transaction::recorded_twice(name)
            } else {
                transaction::recorded_already(name)
            });
        }
        // No record, or one from before the claim.
        _ => return Err(transaction::unseen(name)),
    }
    record_table.finish(finish).map_err(|error| match error.sqlite_error() {
        Some(found) if found.extended_code == ffi::SQLITE_BUSY_SNAPSHOT => Error::unreachable(
            "another transaction has written since this one read: roll back, and retry with \
            BEGIN IMMEDIATE",
        ),
        _ => explain(&error),
    })
}

/// The files that the connection has open, each with its name there.
fn files_of(db: &Connection) -> rusqlite::Result<Vec<(String, String)>> {
    let mut list = db.prepare_cached("PRAGMA database_list")?;
    let rows = list.query_map([], |row| Ok((row.get(1)?, row.get(2)?)))?;
    let mut files: Vec<(String, String)> = rows.collect::<rusqlite::Result<_>>()?;
    // A database without a file is in memory, and gone after a crash anyway.
    files.retain(|(_, file)| !file.is_empty());
    Ok(files)
}

/// Refuses a transaction that writes another file as well: SQLite commits WAL files one after the other, and a crash in
/// between leaves the record without the effect, or the effect without the record.
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
                attached files), so a crash could commit the record of \"{name}\" without the effect: write only \
                to the store's file"
            )));
        }
    }
    Ok(())
}

/// Whether other connections see the record as this run has finished it.
fn is_committed(file: &str, finish: &Completion) -> rusqlite::Result<bool> {
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let db = Connection::open_with_flags(file, flags)?;
    let record = RecordTable::of(&db, "main").read(&finish.name)?;
    Ok(record.is_some_and(|record| record.is_finished() && record.token == finish.token))
}

impl transaction::Transaction for Transaction<'_> {
    fn finish(&mut self, finish: Completion, store_id: String) -> BoxFuture<'_, Result<bool>> {
        // The connection cannot be sent to another thread, so this runs before the future is created.
        Box::pin(std::future::ready(finish_in(self, &finish, &store_id)))
    }
}
