//! What a lock on PostgreSQL costs: `cargo bench -p fencepost --bench postgres`, or `scripts/bench`.
//!
//! Both are measured in one run, because machines are noisy: the library against the same functions called by hand
//! through the same crate, each task with its own connection; hand-off between processes against advisory locks.

mod common;

use std::sync::Arc;
use std::time::Duration;

use common::{Outcome, Waiters, compare, cycles, full, hand_off_times, percentiles, runtime};
use fencepost::Fencepost;
use fencepost::clock::{BootClock, Clock};
use fencepost_testkit::Postgres;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, NoTls};

fn main() -> Outcome<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [role, url, rounds] = arguments.as_slice()
        && role == "advisory"
    {
        return advisory(url, rounds.parse()?);
    }
    if common::is_waiter()? {
        return Ok(());
    }
    let scale = if full() { 1 } else { 100 };
    for synced in ["on", "off"] {
        uncontended(synced, 20_000 / scale)?;
    }
    hand_off(16, 400 / scale)
}

async fn connect(url: &str) -> Result<Client, tokio_postgres::Error> {
    let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
    tokio::spawn(connection);
    Ok(client)
}

async fn cycle(client: &Client, name: &str, owner: &str) -> Result<(), tokio_postgres::Error> {
    let acquire = "SELECT * FROM fencepost.acquire($1, $2::uuid, $3, $4, $5)";
    let (ttl, label, channel) = (30_000_i64, "by hand", None::<&str>);
    let answer = client
        .query_typed_one(
            acquire,
            &[
                (&name, Type::TEXT),
                (&owner, Type::TEXT),
                (&ttl, Type::INT8),
                (&label, Type::TEXT),
                (&channel, Type::TEXT),
            ],
        )
        .await?;
    assert_eq!(answer.try_get::<_, i32>("status")?, 1, "nobody else is here");
    let release = "SELECT * FROM fencepost.release($1, $2::uuid, $3, $4)";
    let (note, late) = (60_000_i64, false);
    let answer = client
        .query_typed_one(
            release,
            &[(&name, Type::TEXT), (&owner, Type::TEXT), (&note, Type::INT8), (&late, Type::BOOL)],
        )
        .await?;
    assert_eq!(answer.try_get::<_, i32>("status")?, 1, "it was ours");
    Ok(())
}

fn baseline_cycles(
    runtime: &tokio::runtime::Runtime,
    clients: &[Arc<Client>],
    tasks: usize,
    cycles: usize,
) -> Outcome<Duration> {
    let start = BootClock.now();
    runtime.block_on(async {
        let mut running = Vec::new();
        for (task, client) in clients.iter().take(tasks).cloned().enumerate() {
            running.push(tokio::spawn(async move {
                let name = format!("hand/{task}");
                for number in 0..cycles {
                    let owner = format!("{:032x}", (task as u128) << 64 | number as u128);
                    cycle(&client, &name, &owner).await?;
                }
                Ok::<(), tokio_postgres::Error>(())
            }));
        }
        for task in running {
            task.await??;
        }
        Ok(BootClock.now().since(start))
    })
}

fn uncontended(synced: &str, count: usize) -> Outcome<()> {
    let server = Postgres::builder().setting("synchronous_commit", synced).start()?;
    let runtime = runtime()?;
    // As many connections as the baseline has.
    let url = format!("{}?pool=64", server.url());
    let fp = runtime.block_on(Fencepost::connect(&url))?;
    let mut clients = Vec::new();
    for _ in 0..64 {
        clients.push(Arc::new(runtime.block_on(connect(&server.url()))?));
    }
    println!("postgres (synchronous_commit {synced}): uncontended acquire + release");
    for tasks in [1, 16, 64] {
        // One client mostly waits for the network and the disk, so a tenth of the rounds is enough.
        let count = if tasks == 1 { count / 10 } else { count };
        compare(
            tasks,
            count,
            &mut [
                ("ours", &mut |each| cycles(&runtime, &fp, tasks, each)),
                ("by hand", &mut |each| baseline_cycles(&runtime, &clients, tasks, each)),
            ],
        )?;
    }
    Ok(())
}

fn hand_off(processes: usize, rounds: usize) -> Outcome<()> {
    let server = Postgres::builder().start()?;
    let rounds = rounds.max(3);
    let (gaps, waits) = hand_off_times(&mut Waiters::start(processes, &server.url(), rounds)?)?;
    println!("postgres: hand-off on one name, {processes} processes, 5 ms holds");
    println!("  hand-off   {}", percentiles(&gaps));
    println!("  wait       {}", percentiles(&waits));
    server.psql("create sequence advisory_order")?;
    let mut waiters = Waiters::start_as("advisory", processes, &server.url(), rounds)?;
    let (gaps, waits) = hand_off_times(&mut waiters)?;
    println!("postgres: the same by pg_advisory_lock, which has no lease and no token");
    println!("  hand-off   {}", percentiles(&gaps));
    println!("  wait       {}", percentiles(&waits));
    Ok(())
}

/// One of the processes that share an advisory lock. It reports like a waiter.
fn advisory(url: &str, rounds: usize) -> Outcome<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let client = connect(url).await?;
        println!("ready");
        std::io::stdin().read_line(&mut String::new())?;
        for _ in 0..rounds {
            let asked = BootClock.now();
            // The number gives the order. It comes with the lock, in one round trip.
            let row = client
                .query_typed_one("SELECT nextval('advisory_order') FROM pg_advisory_lock(1)", &[])
                .await?;
            let granted = BootClock.now();
            let order: i64 = row.try_get(0)?;
            BootClock.alarm(granted + Duration::from_millis(5)).await;
            let released = BootClock.now();
            client.query_typed("SELECT pg_advisory_unlock(1)", &[]).await?;
            println!("{order} {} {} {}", asked.as_nanos(), granted.as_nanos(), released.as_nanos());
        }
        Ok(())
    })
}
