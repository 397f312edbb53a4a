//! Who of this client waits, and how the server's word reaches them: who waits for a lock, by owner, or for the
//! confirmation of a break, by token.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::Arc;

use fencepost_core::OwnerId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::{Error, Result};

/// All waiters of one client.
#[derive(Debug)]
pub(in crate::backends) struct Ears<K = OwnerId>(Mutex<HashMap<K, Arc<Notify>>>);

impl<K> Default for Ears<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// One waiter's ear. A word that comes while nobody listens is kept.
pub(in crate::backends) struct Ear<K: Copy + Eq + Hash> {
    key: K,
    word: Arc<Notify>,
    all: Arc<Ears<K>>,
}

#[cfg(feature = "postgres")]
impl Ears {
    /// The same as [`tell`](Self::tell), for a server that gives only the first digits of the owner.
    pub(in crate::backends) fn tell_those(&self, digits: &str) {
        let ears = self.0.lock();
        let called = ears.iter().filter(|(owner, _)| owner.reveal().starts_with(digits));
        called.for_each(|(_, word)| word.notify_one());
    }

    /// Whether nobody waits.
    pub(in crate::backends) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl<K: Copy + Eq + Hash> Ears<K> {
    pub(in crate::backends) fn open(self: &Arc<Self>, key: K) -> Ear<K> {
        let mut ears = self.0.lock();
        let word = Arc::clone(ears.entry(key).or_default());
        Ear { key, word, all: Arc::clone(self) }
    }

    /// The server says that what this one waits for has come.
    pub(in crate::backends) fn tell(&self, key: K) {
        let ears = self.0.lock();
        if let Some(word) = ears.get(&key) {
            word.notify_one();
        }
    }

    /// Words may have been missed: everybody looks again.
    pub(in crate::backends) fn tell_all(&self) {
        let ears = self.0.lock();
        ears.values().for_each(|word| word.notify_one());
    }
}

impl<K: Copy + Eq + Hash> Ear<K> {
    /// Resolves when the server calls.
    pub(in crate::backends) async fn called(&self) {
        self.word.notified().await;
    }
}

impl<K: Copy + Eq + Hash> Drop for Ear<K> {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.key);
    }
}

/// A name for this client that no other has.
pub(in crate::backends) fn client_id() -> Result<String> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(|error| {
        Error::unreachable("the system has no random numbers for a client id").because(error)
    })?;
    Ok(format!("{:032x}", u128::from_ne_bytes(bits)))
}
