//! Single flight: one caller computes, the others wait for the value or take the old one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, SingleFlight};
use tokio::sync::Semaphore;
use tokio::task::{JoinHandle, JoinSet};

use super::{Verdict, cases};
use crate::fixture::{Fixture, LONG, SOON, Stop, ensure, ledger, pass, until, until_free, within};

cases![
    @alone flight_one_of_200_callers_computes,
    flight_stale_value_is_served_while_one_computes,
    flight_failed_computation_is_retried_by_the_next_caller,
    flight_dropped_computation_is_retried_by_the_next_caller,
    flight_wait_timeout_does_not_limit_the_computation,
    flight_wait_timeout_of_one_caller_does_not_end_the_wait_of_another,
];

const KEY: &str = "prices";
/// The shortest time that a value can stay fresh.
const BRIEF: Duration = Duration::from_secs(1);

/// Counts computations.
#[derive(Clone, Default)]
struct Count(Arc<AtomicUsize>);

impl Count {
    fn get(&self) -> usize {
        self.0.load(Ordering::SeqCst)
    }

    fn up(&self) -> usize {
        self.0.fetch_add(1, Ordering::SeqCst) + 1
    }
}

async fn clients(fixture: &Fixture, count: usize) -> Verdict<Vec<Fencepost>> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(fixture.client().await?);
    }
    ledger(&clients[0])?;
    Ok(clients)
}

async fn flight_one_of_200_callers_computes(fixture: &Fixture) -> Verdict {
    let clients = clients(fixture, 4).await?;
    let (count, mut callers) = (Count::default(), JoinSet::new());
    for number in 0..200 {
        let (client, count) = (clients[number % clients.len()].clone(), count.clone());
        callers.spawn(async move {
            let flight = client.single_flight(KEY).retain_for(LONG).ttl(LONG);
            let value = flight.get_or(|| async {
                // Long enough for all callers to arrive.
                pass(Duration::from_millis(200)).await;
                Ok::<_, std::io::Error>(format!("value {}", count.up()))
            });
            value.await
        });
    }
    while let Some(value) = within(SOON * 4, "a caller has the value", callers.join_next()).await? {
        let value = value??;
        ensure!(value == b"value 1", "a caller got \"{}\"", String::from_utf8_lossy(&value));
    }
    ensure!(count.get() == 1, "200 callers led to {} computations", count.get());
    until_free(&clients[0], &format!("flight/{KEY}")).await
}

async fn flight_stale_value_is_served_while_one_computes(fixture: &Fixture) -> Verdict {
    let clients = clients(fixture, 3).await?;
    let (count, gate) = (Count::default(), Arc::new(Semaphore::new(1)));
    let get = |client: &Fencepost| {
        let flight = client.single_flight(KEY).retain_for(BRIEF).stale_for(LONG).ttl(LONG);
        let (count, gate) = (count.clone(), Arc::clone(&gate));
        async move {
            let value = flight.get_or(|| async {
                let number = count.up();
                if let Ok(permit) = gate.acquire().await {
                    permit.forget();
                }
                Ok::<_, std::io::Error>(format!("value {number}"))
            });
            value.await
        }
    };
    ensure!(within(SOON, "a value", get(&clients[0])).await?? == b"value 1", "another value");
    pass(BRIEF).await;
    // One caller computes and hangs. By the store's clock the value may stay fresh for a moment longer than by ours; a caller
    // that came too early tries again.
    let mut computing = tokio::spawn(get(&clients[0]));
    until(SOON * 2, "a caller computes", async || {
        if computing.is_finished() {
            computing = tokio::spawn(get(&clients[0]));
        }
        Ok(count.get() == 2)
    })
    .await?;
    for client in &clients {
        let value = within(SOON, "other callers get the old value", get(client)).await??;
        ensure!(value == b"value 1", "got \"{}\"", String::from_utf8_lossy(&value));
    }
    ensure!(!computing.is_finished(), "the computing caller returned early");
    ensure!(count.get() == 2, "{} computed at once", count.get() - 1);
    gate.add_permits(100);
    let value = within(SOON, "the new value", computing).await???;
    ensure!(value == b"value 2", "got \"{}\"", String::from_utf8_lossy(&value));
    // Fresh, unless this machine took a second to get here: then it is the next value.
    let value = within(SOON, "a value", get(&clients[1])).await??;
    ensure!(value != b"value 1", "the old value came back");
    // A caller that cannot compute takes the old value too.
    pass(BRIEF).await;
    let flight = clients[2].single_flight(KEY).retain_for(BRIEF).stale_for(LONG);
    let value = flight.get_or(|| async { Err::<&str, _>(std::io::Error::other("no")) });
    let value = within(SOON, "a value", value).await??;
    ensure!(value.starts_with(b"value "), "got \"{}\"", String::from_utf8_lossy(&value));
    Ok(())
}

async fn flight_failed_computation_is_retried_by_the_next_caller(fixture: &Fixture) -> Verdict {
    let clients = clients(fixture, 2).await?;
    let (count, mut callers) = (Count::default(), JoinSet::new());
    for number in 0..8 {
        let (client, count) = (clients[number % clients.len()].clone(), count.clone());
        callers.spawn(async move {
            let flight = client.single_flight(KEY).ttl(LONG);
            let value = flight.get_or(|| async {
                let number = count.up();
                pass(Duration::from_millis(20)).await;
                if number <= 2 {
                    return Err(std::io::Error::other("no luck"));
                }
                Ok(format!("value {number}"))
            });
            value.await
        });
    }
    let mut failed = 0;
    while let Some(value) = within(SOON * 2, "a caller is answered", callers.join_next()).await? {
        match value? {
            Ok(value) => ensure!(value == b"value 3", "got {value:?}"),
            Err(error) => {
                let said = error.one_line();
                ensure!(error.kind() == ErrorKind::Failed, "a failure came as {error:?}");
                ensure!(said.contains("no luck"), "\"{said}\" does not say why");
                failed += 1;
            }
        }
    }
    // Callers of one process share a failure, so all may have failed. The next caller computes.
    let flight = clients[0].single_flight(KEY).ttl(LONG);
    let value =
        flight.get_or(|| async { Ok::<_, std::io::Error>(format!("value {}", count.up())) });
    let value = within(SOON, "the next caller computes", value).await??;
    ensure!(value == b"value 3", "got {value:?}");
    ensure!(failed >= 2 && count.get() == 3, "{failed} failed, {} computed", count.get());
    // A value that is too long goes to the caller that computed it and is not kept. The next caller computes.
    let flight = clients[0].single_flight("long").ttl(LONG);
    let long = flight.get_or(|| async { Ok::<_, std::io::Error>(vec![0; 64 * 1024 + 1]) }).await?;
    ensure!(long.len() == 64 * 1024 + 1, "a value of more than 64 KiB was cut");
    let value = flight.get_or(|| async { Ok::<_, std::io::Error>("short") });
    let value = within(SOON, "the next caller computes", value).await??;
    ensure!(value == b"short", "got {value:?}");
    Ok(())
}

async fn flight_dropped_computation_is_retried_by_the_next_caller(fixture: &Fixture) -> Verdict {
    let clients = clients(fixture, 2).await?;
    let count = Count::default();
    let started = count.clone();
    let client = clients[0].clone();
    let hung = tokio::spawn(async move {
        let flight = client.single_flight(KEY).ttl(LONG);
        let value = flight.get_or(|| async {
            started.up();
            std::future::pending::<()>().await;
            Ok::<_, std::io::Error>("never")
        });
        value.await
    });
    until(SOON, "a caller computes", async || Ok(count.get() == 1)).await?;
    hung.abort();
    for client in &clients {
        let flight = client.single_flight(KEY).ttl(LONG);
        let value = flight.get_or(|| async { Ok::<_, std::io::Error>("value") });
        let value = within(SOON, "the next caller computes", value).await??;
        ensure!(value == b"value", "got {value:?}");
    }
    match hung.await {
        Err(ended) if ended.is_cancelled() => Ok(()),
        other => Err(Stop::Failed(format!("a computation that never ends returned {other:?}"))),
    }
}

/// A caller that computes until it gets a permit. Returns once it has begun.
async fn computes(
    flight: SingleFlight,
) -> Verdict<(JoinHandle<fencepost::Result<Vec<u8>>>, Arc<Semaphore>)> {
    let (begun, go_on) = (Arc::new(Semaphore::new(0)), Arc::new(Semaphore::new(0)));
    let (started, may_end) = (Arc::clone(&begun), Arc::clone(&go_on));
    let computing = tokio::spawn(async move {
        let compute = async {
            started.add_permits(1);
            let _permit = may_end.acquire().await;
            Ok::<_, std::io::Error>("value")
        };
        flight.get_or(|| compute).await
    });
    let _permit = within(SOON, "it computes", begun.acquire()).await?;
    Ok((computing, go_on))
}

/// A caller computes for as long as that takes; a caller that waits for its value gives up after the timeout.
async fn flight_wait_timeout_does_not_limit_the_computation(fixture: &Fixture) -> Verdict {
    let clients = clients(fixture, 2).await?;
    // Zero tries once.
    for timeout in [Duration::ZERO, Duration::from_secs(1)] {
        let key = format!("{KEY}/{}", timeout.as_millis());
        let flight = |client: &Fencepost| client.single_flight(&key).ttl(LONG);
        let (computing, go_on) = computes(flight(&clients[0]).wait_timeout(timeout)).await?;
        for client in &clients {
            let flight = flight(client).wait_timeout(Duration::from_millis(200));
            let late = flight.get_or(|| async { Ok::<_, std::io::Error>("a second value") }).await;
            let kind = late.err().map(|error| error.kind());
            ensure!(kind == Some(ErrorKind::Held), "a waiter got {kind:?}");
        }
        pass(timeout).await;
        ensure!(!computing.is_finished(), "it gave up while it computed");
        go_on.add_permits(1);
        let value = within(SOON, "it is computed", computing).await???;
        ensure!(value == b"value", "got \"{}\"", String::from_utf8_lossy(&value));
    }
    Ok(())
}

/// The callers of one process share one request. The caller that made it gave up, and its error ended all waits.
async fn flight_wait_timeout_of_one_caller_does_not_end_the_wait_of_another(
    fixture: &Fixture,
) -> Verdict {
    let clients = clients(fixture, 2).await?;
    let flight = |client: &Fencepost| client.single_flight(KEY).ttl(LONG);
    let (computing, go_on) = computes(flight(&clients[1])).await?;
    let second = || async { Ok::<_, std::io::Error>("a second value") };
    let hurried = flight(&clients[0]).wait_timeout(Duration::from_millis(300));
    let hurried = tokio::spawn(async move { hurried.get_or(second).await });
    // So that the hurried caller makes the request, and the other one follows it.
    pass(Duration::from_millis(100)).await;
    let patient = flight(&clients[0]);
    let patient = tokio::spawn(async move { patient.get_or(second).await });
    let kind = within(SOON, "it gives up", hurried).await??.err().map(|error| error.kind());
    ensure!(kind == Some(ErrorKind::Held), "the one with the timeout got {kind:?}");
    go_on.add_permits(1);
    let value = within(SOON, "the value comes", patient).await???;
    ensure!(value == b"value", "got \"{}\"", String::from_utf8_lossy(&value));
    within(SOON, "it is computed", computing).await???;
    Ok(())
}
