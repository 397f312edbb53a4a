//! Clients, and how they and a server see a lock.

use crate::Redis;
use fencepost::{ErrorKind, Fencepost, StoreOptions};

use crate::errors::listen;
use crate::time::{LIMIT, LONG, now, until, within};

/// A client on this store.
pub async fn connect(store: impl Into<StoreOptions>) -> Fencepost {
    let store = store.into();
    let end = now() + LIMIT;
    loop {
        match try_connect(store.clone()).await {
            // Tests here do not depend on a machine that replies in time.
            Err(error) if error.kind() == ErrorKind::Unreachable && now() < end => {}
            outcome => return outcome.unwrap(),
        }
    }
}

/// Two clients that share nothing.
pub async fn two(url: &str) -> (Fencepost, Fencepost) {
    (connect(url).await, connect(url).await)
}

/// A client on this store, or the error.
pub async fn try_connect(store: impl Into<StoreOptions>) -> fencepost::Result<Fencepost> {
    listen();
    within(LIMIT, "a client connects, or says why not", Fencepost::connect(store)).await
}

/// The lock can be acquired at once: no other grant blocks it, not even one that was given up.
pub async fn nothing_is_left(client: &Fencepost, name: &str) {
    let guard = client.lock(name).ttl(LONG).wait_timeout(LIMIT).acquire().await;
    guard.expect("what stood in the way should have been undone").release().await.unwrap();
    until(&format!("nothing is left of \"{name}\""), async || {
        let info = client.inspect(name).await.unwrap();
        info.holder.is_none() && info.waiting == 0
    })
    .await;
}

/// Waits until the lock has this many waiters.
pub async fn until_waiting(client: &Fencepost, name: &str, count: usize) {
    until(&format!("{count} wait for \"{name}\""), async || {
        // The client may be reconnecting, or the servers electing a leader.
        client.inspect(name).await.is_ok_and(|info| info.waiting == count)
    })
    .await;
}

/// Whether the server has this key.
pub fn has(server: &Redis, key: &str) -> bool {
    server.command(&["EXISTS", key]).unwrap().int().unwrap() == 1
}
