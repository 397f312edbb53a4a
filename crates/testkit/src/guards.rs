//! Those who wait for a lock, and those who have it.

use std::time::Duration;

use crate::{Mode, Proxy};
use fencepost::{Fencepost, Guard};
use tokio::task::JoinHandle;

use crate::time::{LIMIT, until, within};

/// Somebody waits for the lock, as long as it takes.
pub fn waits(
    client: &Fencepost,
    name: &str,
    ttl: Duration,
) -> JoinHandle<fencepost::Result<Guard>> {
    tokio::spawn(client.lock(name).ttl(ttl).acquire())
}

/// The one who waited has the lock now.
pub async fn granted(waiter: JoinHandle<fencepost::Result<Guard>>) -> Guard {
    let guard = within(LIMIT, "the waiter is granted", waiter).await.unwrap().unwrap();
    guard.check().unwrap();
    guard
}

/// The call that was to be cut is carried out unheard, and the line stays silent until the next one has the lock.
pub async fn granted_unheard(proxy: &Proxy, waiter: JoinHandle<fencepost::Result<Guard>>) -> Guard {
    until("the call is carried out", async || proxy.fired() == 1).await;
    proxy.set_mode(Mode::Silent);
    let next = granted(waiter).await;
    proxy.set_mode(Mode::Pass);
    next
}

/// Waits until the guard was renewed that often, and never lost meanwhile.
pub async fn until_renewed(guard: &Guard, times: usize) {
    for _ in 0..times {
        let before = guard.deadline();
        until("the guard is renewed", async || {
            guard.check().expect("the guard is not lost");
            guard.deadline() > before
        })
        .await;
    }
}
