//! An ensemble of three: members that end, stand still, or are cut off.

use std::time::Duration;

use fencepost::GuardState;
use fencepost_testbed::ZooKeeperEnsemble;

use super::common::{LONG, SOON, connect, now, until, within};

/// One after the other on one ensemble, since three Java machines start slowly.
#[tokio::test]
async fn an_ensemble_keeps_its_locks() {
    let ensemble = ZooKeeperEnsemble::start().unwrap();
    let url = format!("{}/ensemble", ensemble.url());
    let (ours, theirs) = (connect(&url).await, connect(&url).await);
    let ttl = Duration::from_secs(10);
    let mut last = None;
    for round in 0..3 {
        // Some of these sessions are with the member that goes.
        let mut guards = Vec::new();
        for (number, client) in [&ours, &theirs, &ours, &theirs].into_iter().enumerate() {
            let lock = client.lock(format!("kept/{number}")).ttl(ttl);
            guards.push(lock.acquire_within(SOON).await.unwrap());
        }
        let member = &ensemble.members()[match round {
            0 => ensemble.leader().unwrap(),
            _ => (ensemble.leader().unwrap() + round) % 3,
        }];
        match round {
            0 => member.kill().unwrap(),
            1 => member.stop().unwrap(),
            _ => member.cut_off(),
        }
        let began = now();
        // Nobody is granted what is held, and what is free can be had, in time.
        let free = within(SOON * 2, "a free lock is granted", async {
            loop {
                match theirs.lock("free").ttl(LONG).acquire_within(SOON).await {
                    Ok(guard) => break guard,
                    // An election may take as long as a client's patience.
                    Err(error) => assert_eq!(*error.kind(), fencepost::ErrorKind::Unreachable),
                }
            }
        });
        let free = free.await;
        println!("round {round}: granted {:?} after the fault", now().since(began));
        assert!(Some(free.token()) > last, "{} after {last:?}", free.token());
        last = Some(free.token());
        free.release().await.unwrap();
        until("all guards are renewed", async || {
            guards
                .iter()
                .all(|guard| guard.state() == GuardState::Held && guard.remaining() > ttl / 2)
        })
        .await;
        for (number, guard) in guards.iter().enumerate() {
            guard.check().unwrap();
            let held = ours.lock(format!("kept/{number}")).try_acquire().await;
            assert!(held.unwrap().is_none(), "kept/{number} was granted twice");
        }
        for guard in guards {
            guard.release().await.unwrap();
        }
        match round {
            0 => member.start_again().unwrap(),
            1 => member.resume().unwrap(),
            _ => member.heal(),
        }
        ensemble.wait_until_healthy().unwrap();
    }
}
