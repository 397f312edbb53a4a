//! The waiters of this client, and how the server's notifications reach them: those that wait for a lock, by owner, and
//! those that wait for the confirmation of a break, by token.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::hash::Hash;
use std::sync::Arc;

use fencepost_core::{Moment, OwnerId};
use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::error::Result;
use crate::random;

/// All waiters of one client.
#[derive(Debug)]
pub(in crate::backends) struct WaiterRegistry<K = OwnerId>(Mutex<HashMap<K, Registered>>);

/// All waiters of one key: two breaks of one grant wait for the same confirmation.
#[derive(Debug, Default)]
struct Registered {
    waiting: Vec<Arc<Notify>>,
    /// No call is waiting here now, and the next one polls at this moment.
    parked: Option<(Arc<Notify>, Moment)>,
}

impl Registered {
    fn notify(&self) {
        let parked = self.parked.iter().map(|(notify, _)| notify);
        self.waiting.iter().chain(parked).for_each(|notify| notify.notify_one());
    }

    fn is_empty(&self) -> bool {
        self.waiting.is_empty() && self.parked.is_none()
    }
}

impl<K> Default for WaiterRegistry<K> {
    fn default() -> Self {
        Self(Mutex::default())
    }
}

/// A registered waiter. A notification that comes before `notified` is kept.
pub(in crate::backends) struct Waiter<K: Copy + Eq + Hash> {
    /// `None` once it is parked.
    key: Option<K>,
    notify: Arc<Notify>,
    all: Arc<WaiterRegistry<K>>,
}

#[cfg(feature = "postgres")]
impl WaiterRegistry {
    /// The same as [`notify`](Self::notify), for a server that gives only the first digits of the owner.
    pub(in crate::backends) fn notify_matching(&self, digits: &str) {
        let waiters = self.0.lock();
        let matching = waiters.iter().filter(|(owner, _)| owner.reveal().starts_with(digits));
        matching.for_each(|(_, registered)| registered.notify());
    }

    /// Whether nobody waits.
    pub(in crate::backends) fn is_empty(&self) -> bool {
        self.0.lock().is_empty()
    }
}

impl<K: Copy + Eq + Hash> WaiterRegistry<K> {
    pub(in crate::backends) fn register(self: &Arc<Self>, key: K) -> Waiter<K> {
        self.resume(key).0
    }

    /// The same, with the moment at which a parked waiter must poll.
    pub(in crate::backends) fn resume(self: &Arc<Self>, key: K) -> (Waiter<K>, Option<Moment>) {
        let mut waiters = self.0.lock();
        let registered = waiters.entry(key).or_default();
        let (notify, poll_at) = registered.parked.take().unzip();
        let notify = notify.unwrap_or_default();
        registered.waiting.push(Arc::clone(&notify));
        (Waiter { key: Some(key), notify, all: Arc::clone(self) }, poll_at)
    }

    /// Removes this waiter if it is parked, since no call will resume it.
    pub(in crate::backends) fn forget(&self, key: K) {
        self.change(key, |registered| registered.parked = None);
    }

    /// The server notified this waiter.
    pub(in crate::backends) fn notify(&self, key: K) {
        if let Some(registered) = self.0.lock().get(&key) {
            registered.notify();
        }
    }

    /// Notifications may have been missed: wakes every waiter, so that it polls.
    pub(in crate::backends) fn notify_all(&self) {
        self.0.lock().values().for_each(Registered::notify);
    }

    /// Changes what is registered for a key, and removes it if nothing is left.
    fn change(&self, key: K, change: impl FnOnce(&mut Registered)) {
        if let Entry::Occupied(mut entry) = self.0.lock().entry(key) {
            change(entry.get_mut());
            if entry.get().is_empty() {
                entry.remove();
            }
        }
    }
}

impl<K: Copy + Eq + Hash> Waiter<K> {
    /// Resolves when it is notified.
    pub(in crate::backends) async fn notified(&self) {
        self.notify.notified().await;
    }

    /// Stays registered until `resume`, unless it is forgotten before.
    pub(in crate::backends) fn park(mut self, poll_at: Moment) {
        let Some(key) = self.key.take() else { return };
        self.all.change(key, |registered| {
            registered.waiting.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
            registered.parked = Some((Arc::clone(&self.notify), poll_at));
        });
    }
}

impl<K: Copy + Eq + Hash> Drop for Waiter<K> {
    fn drop(&mut self) {
        if let Some(key) = self.key {
            self.all.change(key, |registered| {
                registered.waiting.retain(|notify| !Arc::ptr_eq(notify, &self.notify));
            });
        }
    }
}

/// A unique name for this client.
pub(in crate::backends) fn client_id() -> Result<String> {
    Ok(format!("{:032x}", u128::from_ne_bytes(random::bytes()?)))
}
