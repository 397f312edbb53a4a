//! Clients, and what they and a server see of a lock.

use crate::Redis;
use fencepost::{ErrorKind, Fencepost};

use crate::errors::listen;
use crate::time::{LIMIT, LONG, now, until, within};

/// A client on this store.
pub async fn connect(url: &str) -> Fencepost {
    let end = now() + LIMIT;
    loop {
        match try_connect(url).await {
            // A machine that is too busy to answer in time is not what is tested here.
            Err(error) if *error.kind() == ErrorKind::Unreachable && now() < end => {}
            outcome => return outcome.unwrap(),
        }
    }
}

/// Two clients that know nothing of each other.
pub async fn two(url: &str) -> (Fencepost, Fencepost) {
    (connect(url).await, connect(url).await)
}

/// A client on this store, or why there is none.
pub async fn try_connect(url: &str) -> fencepost::Result<Fencepost> {
    listen();
    within(LIMIT, "a client connects, or says why not", Fencepost::connect(url)).await
}

/// The lock can be had at once: nobody else's grant, and none that was given up, stands in the way.
pub async fn nothing_is_left(client: &Fencepost, name: &str) {
    let guard = client.lock(name).ttl(LONG).acquire_within(LIMIT).await;
    guard.expect("what stood in the way should have been undone").release().await.unwrap();
    until(&format!("nothing is left of \"{name}\""), async || {
        let info = client.inspect(name).await.unwrap();
        info.holder.is_none() && info.waiting == 0
    })
    .await;
}

/// Waits until this many wait for the lock.
pub async fn until_waiting(client: &Fencepost, name: &str, count: usize) {
    until(&format!("{count} wait for \"{name}\""), async || {
        // The client may be about to connect again, or the servers to elect a leader.
        client.inspect(name).await.is_ok_and(|info| info.waiting == count)
    })
    .await;
}

/// Whether the server has this key.
pub fn has(server: &Redis, key: &str) -> bool {
    server.command(&["EXISTS", key]).unwrap().int().unwrap() == 1
}
