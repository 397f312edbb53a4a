//! Single flight: one computes, the others wait for the value or take the old one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::{ErrorKind, Fencepost};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use super::{Verdict, cases};
use crate::scene::{LONG, SOON, Scene, Stop, ensure, ledger, pass, until, until_free, within};

cases![
    @alone flight_of_200_callers_one_computes,
    flight_the_old_value_serves_while_one_computes,
    flight_a_failed_computation_lets_the_next_try,
    flight_a_dropped_computation_lets_the_next_try,
];

const KEY: &str = "prices";
/// The shortest that a value can be fresh.
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

async fn clients(scene: &Scene, count: usize) -> Verdict<Vec<Fencepost>> {
    let mut clients = Vec::new();
    for _ in 0..count {
        clients.push(scene.client().await?);
    }
    ledger(&clients[0])?;
    Ok(clients)
}

async fn flight_of_200_callers_one_computes(scene: &Scene) -> Verdict {
    let clients = clients(scene, 4).await?;
    let (count, mut callers) = (Count::default(), JoinSet::new());
    for number in 0..200 {
        let (client, count) = (clients[number % clients.len()].clone(), count.clone());
        callers.spawn(async move {
            let flight = client.single_flight(KEY).keep(LONG).ttl(LONG);
            let value = flight.get_or(|| async {
                // Long enough for all of them to come.
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

async fn flight_the_old_value_serves_while_one_computes(scene: &Scene) -> Verdict {
    let clients = clients(scene, 3).await?;
    let (count, gate) = (Count::default(), Arc::new(Semaphore::new(1)));
    let get = |client: &Fencepost| {
        let flight = client.single_flight(KEY).keep(BRIEF).stale_for(LONG).ttl(LONG);
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
    // One computes, and hangs at it. By the store's clock the value may be fresh for a moment longer than by ours: who
    // came too early for that asks again.
    let mut computing = tokio::spawn(get(&clients[0]));
    until(SOON * 2, "somebody computes", async || {
        if computing.is_finished() {
            computing = tokio::spawn(get(&clients[0]));
        }
        Ok(count.get() == 2)
    })
    .await?;
    for client in &clients {
        let value = within(SOON, "the others take the old value", get(client)).await??;
        ensure!(value == b"value 1", "got \"{}\"", String::from_utf8_lossy(&value));
    }
    ensure!(!computing.is_finished(), "it did not wait for its value");
    ensure!(count.get() == 2, "{} computed at once", count.get() - 1);
    gate.add_permits(100);
    let value = within(SOON, "the new value", computing).await???;
    ensure!(value == b"value 2", "got \"{}\"", String::from_utf8_lossy(&value));
    // Fresh, unless this machine took a second to come here: then it is the next one.
    let value = within(SOON, "a value", get(&clients[1])).await??;
    ensure!(value != b"value 1", "the old value came back");
    // One that can not compute takes the old one too.
    pass(BRIEF).await;
    let flight = clients[2].single_flight(KEY).keep(BRIEF).stale_for(LONG);
    let value = flight.get_or(|| async { Err::<&str, _>(std::io::Error::other("no")) });
    let value = within(SOON, "a value", value).await??;
    ensure!(value.starts_with(b"value "), "got \"{}\"", String::from_utf8_lossy(&value));
    Ok(())
}

async fn flight_a_failed_computation_lets_the_next_try(scene: &Scene) -> Verdict {
    let clients = clients(scene, 2).await?;
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
                let said = error.to_string();
                ensure!(*error.kind() == ErrorKind::Failed, "a failure came as {error:?}");
                ensure!(said.contains("no luck"), "\"{said}\" does not say why");
                failed += 1;
            }
        }
    }
    // Callers of one process share a failure, so all may have failed; whoever comes next tries.
    let flight = clients[0].single_flight(KEY).ttl(LONG);
    let value =
        flight.get_or(|| async { Ok::<_, std::io::Error>(format!("value {}", count.up())) });
    let value = within(SOON, "the next one tries", value).await??;
    ensure!(value == b"value 3", "got {value:?}");
    ensure!(failed >= 2 && count.get() == 3, "{failed} failed, {} computed", count.get());
    // What is too long is for whoever computed it, and is not kept; the next one tries.
    let flight = clients[0].single_flight("long").ttl(LONG);
    let long = flight.get_or(|| async { Ok::<_, std::io::Error>(vec![0; 64 * 1024 + 1]) }).await?;
    ensure!(long.len() == 64 * 1024 + 1, "a value of more than 64 KiB was cut");
    let value = flight.get_or(|| async { Ok::<_, std::io::Error>("short") });
    let value = within(SOON, "the next one tries", value).await??;
    ensure!(value == b"short", "got {value:?}");
    Ok(())
}

async fn flight_a_dropped_computation_lets_the_next_try(scene: &Scene) -> Verdict {
    let clients = clients(scene, 2).await?;
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
    until(SOON, "it computes", async || Ok(count.get() == 1)).await?;
    hung.abort();
    for client in &clients {
        let flight = client.single_flight(KEY).ttl(LONG);
        let value = flight.get_or(|| async { Ok::<_, std::io::Error>("value") });
        let value = within(SOON, "the next one computes", value).await??;
        ensure!(value == b"value", "got {value:?}");
    }
    match hung.await {
        Err(ended) if ended.is_cancelled() => Ok(()),
        other => Err(Stop::Failed(format!("a computation without end gave {other:?}"))),
    }
}
