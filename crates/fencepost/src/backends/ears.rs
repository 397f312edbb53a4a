//! Who of this client waits, and how the server's word reaches them.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_core::OwnerId;
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::{Error, Result};

/// All waiters of one client.
#[derive(Debug, Default)]
pub(in crate::backends) struct Ears(Mutex<HashMap<OwnerId, Arc<Notify>>>);

/// One waiter's ear. A word that comes while nobody listens is kept.
pub(in crate::backends) struct Ear {
    owner: OwnerId,
    word: Arc<Notify>,
    all: Arc<Ears>,
}

impl Ears {
    pub(in crate::backends) fn open(self: &Arc<Self>, owner: OwnerId) -> Ear {
        let mut ears = self.0.lock();
        let word = Arc::clone(ears.entry(owner).or_default());
        Ear { owner, word, all: Arc::clone(self) }
    }

    /// The server says that the lock this owner waits for is free.
    #[cfg(feature = "redis")]
    pub(in crate::backends) fn tell(&self, owner: OwnerId) {
        let ears = self.0.lock();
        if let Some(word) = ears.get(&owner) {
            word.notify_one();
        }
    }

    /// The same, for a server that gives only the first digits of the owner.
    #[cfg(feature = "postgres")]
    pub(in crate::backends) fn tell_those(&self, digits: &str) {
        let ears = self.0.lock();
        let called = ears.iter().filter(|(owner, _)| owner.reveal().starts_with(digits));
        called.for_each(|(_, word)| word.notify_one());
    }

    /// Whether nobody waits.
    #[cfg(feature = "postgres")]
    pub(in crate::backends) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }

    /// Words may have been missed: everybody looks again.
    pub(in crate::backends) fn tell_all(&self) {
        let ears = self.0.lock();
        ears.values().for_each(|word| word.notify_one());
    }
}

impl Ear {
    /// Resolves when the server calls.
    pub(in crate::backends) async fn called(&self) {
        self.word.notified().await;
    }
}

impl Drop for Ear {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.owner);
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
