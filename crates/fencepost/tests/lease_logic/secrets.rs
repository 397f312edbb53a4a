//! The owner id authorizes a release, so it must not appear in a log.

use std::io::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use fencepost::{GuardStatus, OwnerId};
use fencepost_conformance::Line;

use crate::world::{World, eventually};

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<u8>>>);

impl Write for Log {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

/// The usual ways to print a number.
fn printed_forms(owner: OwnerId) -> Vec<String> {
    let bits = owner.bits();
    vec![
        owner.reveal(),
        owner.reveal().to_uppercase(),
        format!("{bits:x}"),
        format!("{bits:X}"),
        bits.to_string(),
        format!("{:?}", bits.to_be_bytes()),
        format!("{:?}", bits.to_le_bytes()),
        format!("{:x}", bits >> 64),
    ]
}

#[tokio::test]
async fn owner_is_never_logged_or_printed() {
    let log = Log::default();
    let writer = log.clone();
    let subscriber = tracing_subscriber::fmt()
        .with_max_level(tracing_subscriber::filter::LevelFilter::TRACE)
        .with_writer(move || writer.clone())
        .finish();
    // For all threads, because the library logs mostly on its own thread. Logs of the other tests in this file do no
    // harm.
    tracing::subscriber::set_global_default(subscriber).unwrap();

    let world = World::new().await;
    let ttl = Duration::from_secs(30);
    let mut owners = Vec::new();
    let mut printed = String::new();
    let mut note = |text: String| printed.push_str(&(text + "\n"));

    // Granted, failing, lost.
    let lock = world.client.lock("invoice/42").ttl(ttl);
    note(format!("{lock:?} {:?}", world.client));
    let guard = lock.acquire().await.unwrap();
    owners.push(guard.owner());
    note(format!("{guard:?} {guard:#?} {:?}", guard.changes()));
    note(format!("{:?}", world.client.lock("invoice/42").try_acquire().await));
    let held =
        world.client.lock("invoice/42").wait_timeout(Duration::ZERO).acquire().await.unwrap_err();
    note(format!("{held} {held:?} {:#?}", held.kind()));
    world.line.set(Line::Refusing);
    world.until_heartbeat_waits().await;
    world.clock.advance(ttl / 3);
    eventually("renewal is failing", || guard.status() == GuardStatus::RenewalFailing).await;
    world.clock.advance(ttl);
    let lost = guard.check().unwrap_err();
    note(format!("{guard:?} {lost} {lost:?}"));
    world.line.set(Line::Whole);
    let lost = guard.release().await.unwrap_err();
    note(format!("{lost} {lost:?}"));

    // Broken, released, dropped, and one whose release is completed in the background.
    let guard = world.client.lock("invoice/42").ttl(ttl).acquire().await.unwrap();
    owners.push(guard.owner());
    note(format!("{:?}", world.client.break_lock("invoice/42").await.unwrap()));
    let owner = guard.owner();
    let gone = world.client.renew("invoice/42", owner, None).await.unwrap_err();
    note(format!("{gone} {gone:?} {owner:?}"));
    drop(guard);
    let guard = world.client.lock("invoice/42").ttl(ttl).acquire().await.unwrap();
    owners.push(guard.owner());
    world.line.set(Line::Refusing);
    drop(guard);
    let words = || String::from_utf8_lossy(&log.0.lock().unwrap()).into_owned();
    eventually("the release fails", || words().contains("release failed")).await;
    world.line.set(Line::Whole);
    let closed = tokio::spawn({
        let client = world.client.clone();
        async move { client.close().await }
    });
    eventually("the release is made up for", || {
        // It is retried after a delay, on a clock that only the test advances.
        world.clock.advance(ttl / 100);
        closed.is_finished()
    })
    .await;
    note(format!("{:?}", world.client.inspect("invoice/42").await.unwrap()));
    note(format!("{:?}", fencepost::backend::LossSignal::disconnected()));

    let logged = words();
    for word in ["granted", "failing", "lost", "broken", "released"] {
        assert!(logged.contains(word), "the log is not the one this test is about: no \"{word}\"");
    }
    for owner in owners {
        for form in printed_forms(owner) {
            assert!(!logged.contains(&form), "an owner is in the log");
            assert!(!printed.contains(&form), "an owner is in what is printed");
        }
    }
}
