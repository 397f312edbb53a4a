//! What a fence costs: a transaction of one UPDATE with and without `enter`, in one run.
//!
//! On PostgreSQL one variant sends an empty statement instead of `enter`: the difference to the fence is the work of the
//! server, the rest is the round trip. Others send `enter` and the UPDATE together, write a protected table, or work in
//! parallel with one name and token.

mod common;

use std::time::Duration;

use common::{Candidate, Outcome, compare, compare_with_first, full, runtime};
use fencepost::clock::{BootClock, Clock};
use fencepost::fences::postgres::PreparedEnter;
use fencepost::fences::postgres::tokio_postgres::{Client, Statement};
use fencepost::fences::sqlite::rusqlite::{Connection, TransactionBehavior};
use fencepost::fences::{postgres, sqlite};
use fencepost::{FencingToken, LockName, Token};
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
    let fencing = FencingToken::new(LockName::new("invoice/42")?, Token::new(33)?);
    let update = "UPDATE invoice SET sum = sum + 1 WHERE id = 42";
    let db = std::cell::RefCell::new(db);
    println!("sqlite: BEGIN IMMEDIATE, UPDATE of a row, COMMIT, synced");
    compare(
        1,
        count,
        &mut [
            ("with enter", &mut |each| {
                let (mut db, start) = (db.borrow_mut(), BootClock.now());
                for _ in 0..each {
                    let tx = sqlite::begin(&mut db, &fencing)?;
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

/// What precedes the UPDATE.
#[derive(Clone, Copy)]
enum BeforeUpdate {
    Enter,
    /// Sent together with the UPDATE.
    Together,
    /// The same, prepared.
    Prepared,
    Empty,
    Nothing,
}

/// The lock of a task's row, and whether its table is protected.
#[derive(Clone, Copy)]
struct Resource {
    /// All tasks have one lock and one token.
    one_name: bool,
    protected: bool,
}

impl Resource {
    const ALL: [Self; 4] = [
        Self { one_name: false, protected: false },
        Self { one_name: false, protected: true },
        Self { one_name: true, protected: false },
        Self { one_name: true, protected: true },
    ];

    fn table(self) -> &'static str {
        match (self.one_name, self.protected) {
            (false, false) => "own",
            (false, true) => "own_protected",
            (true, false) => "shared",
            (true, true) => "shared_protected",
        }
    }
}

/// One connection with a row of its own in each table.
struct Writer {
    client: Client,
    enter: PreparedEnter,
    updates: Vec<Statement>,
    id: i32,
    own: FencingToken,
    shared: FencingToken,
}

impl Writer {
    async fn connect(url: &str, id: i32) -> Outcome<Self> {
        let client = postgres::connect(url).await?;
        let enter = PreparedEnter::new(&client).await?;
        let mut updates = Vec::new();
        for table in Resource::ALL.map(Resource::table) {
            let update = format!("UPDATE {table} SET sum = sum + 1 WHERE id = $1");
            updates.push(client.prepare(&update).await?);
        }
        let fencing = |name: &str| -> Outcome<_> {
            Ok(FencingToken::new(LockName::new(name)?, Token::new(33)?))
        };
        let (own, shared) = (fencing(&format!("invoice/{id}"))?, fencing("invoices")?);
        Ok(Self { client, enter, updates, id, own, shared })
    }

    async fn write(
        &mut self,
        first: BeforeUpdate,
        resource: Resource,
        count: usize,
    ) -> Result<(), fencepost::Error> {
        let failed = |error| postgres::explain(&error);
        let which = Resource::ALL.iter().position(|one| one.table() == resource.table());
        let update = &self.updates[which.unwrap_or_default()];
        let fencing = if resource.one_name { &self.shared } else { &self.own };
        for _ in 0..count {
            let tx = self.client.transaction().await.map_err(failed)?;
            let write = async { tx.execute(update, &[&self.id]).await.map_err(failed) };
            match first {
                BeforeUpdate::Together => {
                    let enter = postgres::enter(&tx, fencing);
                    let (entered, written) = futures_util::future::join(enter, write).await;
                    entered.and(written)?;
                }
                BeforeUpdate::Prepared => {
                    let enter = self.enter.enter(&tx, fencing);
                    let (entered, written) = futures_util::future::join(enter, write).await;
                    entered.and(written)?;
                }
                BeforeUpdate::Enter => {
                    postgres::enter(&tx, fencing).await?;
                    write.await?;
                }
                BeforeUpdate::Empty => {
                    tx.query_typed("SELECT 1", &[]).await.map_err(failed)?;
                    write.await?;
                }
                BeforeUpdate::Nothing => {
                    write.await?;
                }
            }
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
        for resource in Resource::ALL {
            let table = resource.table();
            let lock = if resource.one_name { "'invoices'" } else { "'invoice/' || id" };
            let create = format!(
                "CREATE TABLE {table} (id int PRIMARY KEY, sum bigint NOT NULL, lock text) WITH (fillfactor = 50);
                 INSERT INTO {table} SELECT id, 0, {lock} FROM generate_series(1, 64) AS id"
            );
            client.batch_execute(&create).await?;
            if resource.protected {
                postgres::protect(&client, table, postgres::NameFrom::Column("lock")).await?;
            }
        }
        let mut writers = Vec::new();
        for id in 1..=i32::try_from(tasks)? {
            writers.push(Writer::connect(&database.url(), id).await?);
        }
        Ok::<_, Box<dyn std::error::Error>>(writers)
    })?;
    let mut run = |first: BeforeUpdate, resource: Resource, each: usize| -> Outcome<Duration> {
        let start = BootClock.now();
        let done = std::mem::take(&mut writers).into_iter().map(|mut writer| {
            runtime.spawn(async move { writer.write(first, resource, each).await.map(|()| writer) })
        });
        let done: Vec<_> = done.collect();
        for writer in done {
            writers.push(runtime.block_on(writer)??);
        }
        Ok(BootClock.now().since(start))
    };
    let run = std::cell::RefCell::new(&mut run);
    let [own, own_protected, shared, shared_protected] = Resource::ALL;
    let mut variants = vec![
        ("without", BeforeUpdate::Nothing, own),
        ("an empty statement", BeforeUpdate::Empty, own),
        ("enter, then UPDATE", BeforeUpdate::Enter, own),
        ("sent together", BeforeUpdate::Together, own),
        ("prepared, sent together", BeforeUpdate::Prepared, own),
        ("prepared, sent together, protected table", BeforeUpdate::Prepared, own_protected),
    ];
    if tasks > 1 {
        variants.extend([
            ("one name, prepared, sent together", BeforeUpdate::Prepared, shared),
            (
                "one name, prepared, sent together, protected table",
                BeforeUpdate::Prepared,
                shared_protected,
            ),
        ]);
    }
    println!("postgres: BEGIN, UPDATE of a row, COMMIT, synced; each task its own row");
    let mut calls: Vec<_> = variants
        .iter()
        .map(|&(_, first, resource)| {
            let run = &run;
            move |each| (*run.borrow_mut())(first, resource, each)
        })
        .collect();
    let mut candidates: Vec<Candidate<'_>> = Vec::new();
    for ((what, ..), call) in variants.iter().zip(&mut calls) {
        candidates.push((what, call));
    }
    compare_with_first(tasks, count, &mut candidates)
}
