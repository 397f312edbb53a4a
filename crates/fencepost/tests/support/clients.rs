//! Clients, and what they see of a lock.

use fencepost::{ErrorKind, Fencepost};

use super::errors::listen;
use super::{LONG, SOON, now, until, within};

pub(crate) async fn connect(url: &str) -> Fencepost {
    let end = now() + SOON;
    loop {
        match try_connect(url).await {
            // A machine that is too busy to answer in time is not what is tested here.
            Err(error) if *error.kind() == ErrorKind::Unreachable && now() < end => {}
            outcome => return outcome.unwrap(),
        }
    }
}

pub(crate) async fn try_connect(url: &str) -> fencepost::Result<Fencepost> {
    listen();
    within(SOON, "a client connects, or says why not", Fencepost::connect(url)).await
}

/// The lock can be had at once: nobody else's grant, and none that was given up, stands in the way.
pub(crate) async fn nothing_is_left(client: &Fencepost, name: &str) {
    let guard = client.lock(name).ttl(LONG).acquire_within(SOON).await;
    guard.expect("what stood in the way should have been undone").release().await.unwrap();
    until(&format!("nothing is left of \"{name}\""), async || {
        let info = client.inspect(name).await.unwrap();
        info.holder.is_none() && info.waiting == 0
    })
    .await;
}

/// Waits until this many wait for the lock.
pub(crate) async fn until_waiting(client: &Fencepost, name: &str, count: usize) {
    until(&format!("{count} wait for \"{name}\""), async || {
        // The client may be about to connect again, or the servers to elect a leader.
        client.inspect(name).await.is_ok_and(|info| info.waiting == count)
    })
    .await;
}
