//! Waiters and holders of a lock.

use std::time::Duration;

use crate::{Mode, Proxy};
use fencepost::{Fencepost, Guard, Moment};
use tokio::task::JoinHandle;

use crate::time::{LIMIT, ms, until, within};

/// Waits for the lock on a task.
pub fn waits(
    client: &Fencepost,
    name: &str,
    ttl: Duration,
) -> JoinHandle<fencepost::Result<Guard>> {
    tokio::spawn(client.lock(name).ttl(ttl).acquire())
}

/// The waiter is granted.
pub async fn granted(waiter: JoinHandle<fencepost::Result<Guard>>) -> Guard {
    let guard = within(LIMIT, "the waiter is granted", waiter).await.unwrap().unwrap();
    guard.check().unwrap();
    guard
}

/// Replies are held back already, so the call under way is applied without its caller learning of it. Once the next client has
/// the lock, the connection is cut. (A cut at the first bytes of a reply could come too early: servers also send unasked.)
pub async fn granted_without_reply(
    proxy: &Proxy,
    waiter: JoinHandle<fencepost::Result<Guard>>,
) -> Guard {
    let next = granted(waiter).await;
    proxy.set_mode(Mode::Refuse);
    until("the connection is cut", async || proxy.connections() == 0).await;
    proxy.set_mode(Mode::Pass);
    next
}

/// Waits until the guard was renewed this often without being lost.
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

/// The moment that the guard's deadline counts from. Read before its first renewal, it is when the request left that
/// confirmed the grant.
#[must_use]
pub fn counts_from(guard: &Guard) -> Moment {
    let ttl = guard.ttl().as_duration();
    guard.deadline().back(ttl) + ttl / 100 + ms(2)
}
