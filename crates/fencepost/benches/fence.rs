//! What a fence costs: a transaction of one UPDATE, with `enter` and without it, side by side in one run.
//!
//! On PostgreSQL a third one sends an empty statement instead of `enter`: what is left between that and the fence is
//! the work of the server, the rest is the round trip. A fourth one sends `enter` and the UPDATE together.

mod common;

use std::time::Duration;

use common::{Outcome, full, runtime, side_by_side};
use fencepost::clock::{BootClock, Clock};
use fencepost::fences::{postgres, sqlite};
use fencepost::rusqlite::{Connection, TransactionBehavior};
use fencepost::tokio_postgres::{Client, Statement};
use fencepost::{LockName, Token};
use fencepost_testkit::Database;

fn main() -> Outcome<()> {
    let scale = if full() { 1 } else { 100 };
    on_sqlite(4_000 / scale)?;
    for tasks in [1, 16] {
        on_postgres(tasks, 8_000 / scale)?;
    }
    Ok(())
}

fn on_sqlite(count: usize) -> Outcome<()> {
    let directory = tempfile::tempdir()?;
    let db = Connection::open(directory.path().join("shop.db"))?;
    db.query_row("PRAGMA journal_mode = WAL", [], |_| Ok(()))?;
    db.execute_batch(
        "PRAGMA synchronous = FULL;
         CREATE TABLE invoice (id INTEGER PRIMARY KEY, sum INTEGER NOT NULL);
         INSERT INTO invoice VALUES (42, 0)",
    )?;
    sqlite::install(&db)?;
    let (name, token) = (LockName::new("invoice/42")?, Token::new(33)?);
    let update = "UPDATE invoice SET sum = sum + 1 WHERE id = 42";
    let db = std::cell::RefCell::new(db);
    println!("sqlite: BEGIN IMMEDIATE, UPDATE of a row, COMMIT, synced");
    side_by_side(
        1,
        count,
        &mut [
            ("with enter", &mut |each| {
                let (mut db, start) = (db.borrow_mut(), BootClock.now());
                for _ in 0..each {
                    let tx = sqlite::begin(&mut db, &name, token)?;
                    tx.prepare_cached(update)?.execute([])?;
                    tx.commit()?;
                }
                Ok(BootClock.now().since(start))
            }),
            ("without", &mut |each| {
                let (mut db, start) = (db.borrow_mut(), BootClock.now());
                for _ in 0..each {
                    let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
                    tx.prepare_cached(update)?.execute([])?;
                    tx.commit()?;
                }
                Ok(BootClock.now().since(start))
            }),
        ],
    )
}

/// What stands before the UPDATE.
#[derive(Clone, Copy)]
enum First {
    Enter,
    /// Sent together with the UPDATE.
    Together,
    Empty,
    Nothing,
}

/// One connection, with a row and a lock of its own.
struct Writer {
    client: Client,
    update: Statement,
    id: i32,
    name: LockName,
    token: Token,
}

impl Writer {
    async fn connect(url: &str, id: i32) -> Outcome<Self> {
        let client = postgres::connect(url).await?;
        let update = client.prepare("UPDATE invoice SET sum = sum + 1 WHERE id = $1").await?;
        let (name, token) = (LockName::new(&format!("invoice/{id}"))?, Token::new(33)?);
        Ok(Self { client, update, id, name, token })
    }

    async fn write(&mut self, first: First, count: usize) -> Result<(), fencepost::Error> {
        let failed = |error| postgres::explain(&error);
        for _ in 0..count {
            let tx = self.client.transaction().await.map_err(failed)?;
            let write = async { tx.execute(&self.update, &[&self.id]).await.map_err(failed) };
            match first {
                First::Together => {
                    let enter = postgres::enter(&tx, &self.name, self.token);
                    let (entered, written) = futures_util::future::join(enter, write).await;
                    entered.and(written)?;
                    tx.commit().await.map_err(failed)?;
                    continue;
                }
                First::Enter => postgres::enter(&tx, &self.name, self.token).await?,
                First::Empty => {
                    tx.query_typed("SELECT 1", &[]).await.map_err(failed)?;
                }
                First::Nothing => {}
            }
            write.await?;
            tx.commit().await.map_err(failed)?;
        }
        Ok(())
    }
}

fn on_postgres(tasks: usize, count: usize) -> Outcome<()> {
    let (runtime, database) = (runtime()?, Database::fresh()?);
    let mut writers = runtime.block_on(async {
        let client = postgres::connect(&database.url()).await?;
        postgres::install(&client).await?;
        client
            .batch_execute(
                "CREATE TABLE invoice (id int PRIMARY KEY, sum bigint NOT NULL) WITH (fillfactor = 50);
                 INSERT INTO invoice SELECT id, 0 FROM generate_series(1, 64) AS id",
            )
            .await?;
        let mut writers = Vec::new();
        for id in 1..=i32::try_from(tasks)? {
            writers.push(Writer::connect(&database.url(), id).await?);
        }
        Ok::<_, Box<dyn std::error::Error>>(writers)
    })?;
    let mut go = |first: First, each: usize| -> Outcome<Duration> {
        let start = BootClock.now();
        let done = std::mem::take(&mut writers).into_iter().map(|mut writer| {
            runtime.spawn(async move { writer.write(first, each).await.map(|()| writer) })
        });
        let done: Vec<_> = done.collect();
        for writer in done {
            writers.push(runtime.block_on(writer)??);
        }
        Ok(BootClock.now().since(start))
    };
    let go = std::cell::RefCell::new(&mut go);
    println!("postgres: BEGIN, UPDATE of a row, COMMIT, synced; each task its own row and lock");
    side_by_side(
        tasks,
        count,
        &mut [
            ("with enter", &mut |each| (*go.borrow_mut())(First::Enter, each)),
            ("without", &mut |each| (*go.borrow_mut())(First::Nothing, each)),
            ("sent together", &mut |each| (*go.borrow_mut())(First::Together, each)),
            ("an empty statement", &mut |each| (*go.borrow_mut())(First::Empty, each)),
        ],
    )
}
