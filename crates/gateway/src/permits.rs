//! One request per lock name at the upstream at a time, in order of arrival.
//!
//! What must hold: while a [`Permit`] of a name exists, or the name is blocked, there is no other permit of it. A write
//! whose outcome is unknown *blocks* its name for the settle time: it timed out, was cut off, its task died, or its
//! response may be an intermediary's. It may still be running at the upstream, and a later holder's request must not
//! overtake it. A read changes nothing, so nobody waits for it.
//! This stops being true if the upstream applies a request later than the settle time.
//!
//! A name has an entry only while it is in use.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use fencepost_base::clock::{BootClock, Clock as _};
use fencepost_core::{LockName, Moment};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use crate::time::{TimedOut, Timer, now};

const SHARDS: usize = 64;

/// All names in use.
pub(crate) struct Permits {
    shards: [Mutex<HashMap<LockName, NameQueue>>; SHARDS],
    hasher: RandomState,
    /// Blocked names, the first to be unblocked first.
    blocked: Mutex<BTreeSet<(Moment, LockName)>>,
    changed: Notify,
    settle: Duration,
    /// No permit is used before this: the last run may have left requests at the upstream.
    opens: Moment,
}

/// A name in use and its waiters.
#[derive(Default)]
struct NameQueue {
    waiting: VecDeque<oneshot::Sender<Permit>>,
    blocked_until: Option<Moment>,
}

/// The right to send a request. A drop passes it to the next waiter, or blocks the name if the outcome is unknown.
pub(crate) struct Permit {
    permits: Arc<Permits>,
    /// None once it has passed on.
    name: Option<LockName>,
    outcome_unknown: bool,
}

impl Permits {
    /// No names in use; no permit is used before `opens`.
    pub(crate) fn new(settle: Duration, opens: Moment) -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            blocked: Mutex::default(),
            changed: Notify::new(),
            settle,
            opens,
        })
    }

    fn shard(&self, name: &LockName) -> MutexGuard<'_, HashMap<LockName, NameQueue>> {
        let shard = self.hasher.hash_one(name) as usize % SHARDS;
        self.shards[shard].lock()
    }

    /// Waits for a permit, until the limit.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        name: &LockName,
        limit: Moment,
        timer: &mut Timer,
    ) -> Result<Permit, TimedOut> {
        let position = match self.shard(name).entry(name.clone()) {
            Entry::Vacant(free) => {
                free.insert(NameQueue::default());
                None
            }
            Entry::Occupied(mut queue) => {
                let waiting = &mut queue.get_mut().waiting;
                // A waiter that gave up leaves its entry in the queue. A blocked name can collect many of them at the front.
                while waiting.front().is_some_and(oneshot::Sender::is_closed) {
                    waiting.pop_front();
                }
                let (permit, position) = oneshot::channel();
                waiting.push_back(permit);
                Some(position)
            }
        };
        let permit = match position {
            None => Permit::of(self, name.clone()),
            // The queue is not dropped while a waiter is in it.
            Some(position) => timer.until(limit, position).await?.map_err(|_| TimedOut)?,
        };
        if now() < self.opens {
            timer.until(limit, BootClock.alarm(self.opens)).await?;
        }
        Ok(permit)
    }

    /// When a retry can succeed.
    pub(crate) fn retry_after_of(&self, name: &LockName) -> Option<Duration> {
        let held = self.shard(name).get(name).and_then(|queue| queue.blocked_until);
        let until = held.unwrap_or(self.opens).max(self.opens);
        (until > now()).then(|| until.since(now()))
    }

    /// How many names are blocked.
    pub(crate) fn blocked(&self) -> usize {
        self.blocked.lock().len()
    }

    /// How many requests wait. Reads all queues: for metrics, not for requests.
    pub(crate) fn waiting(&self) -> usize {
        let waiting =
            |queue: &NameQueue| queue.waiting.iter().filter(|permit| !permit.is_closed()).count();
        let of = |shard: &Mutex<HashMap<_, NameQueue>>| {
            let shard = shard.lock();
            shard.values().map(waiting).sum::<usize>()
        };
        self.shards.iter().map(of).sum()
    }

    /// How many names are in use, blocked ones included.
    fn in_use(&self) -> usize {
        let names = |shard: &Mutex<HashMap<_, _>>| shard.lock().len();
        self.shards.iter().map(names).sum()
    }

    /// Whether no request is under way. Names may be blocked.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_use() <= self.blocked()
    }

    /// Whether no request of this run or the last is under way or has an unknown outcome.
    pub(crate) fn is_settled(&self) -> bool {
        self.in_use() == 0 && now() >= self.opens
    }

    /// Unblocks names whose time is over. Runs as long as the gateway does.
    pub(crate) async fn unblock_expired(self: Arc<Self>) {
        loop {
            // Created before the check, so that no change in between is missed.
            let changed = self.changed.notified();
            let first = {
                let mut blocked = self.blocked.lock();
                let first = blocked.first().map(|(at, _)| *at);
                if first.is_some_and(|at| at <= now()) {
                    let due = blocked.pop_first();
                    drop(blocked);
                    if let Some((_, name)) = due {
                        self.pass(name);
                    }
                    continue;
                }
                first
            };
            match first {
                None => changed.await,
                Some(at) => tokio::select! {
                    () = changed => {}
                    () = BootClock.alarm(at) => {}
                },
            }
        }
    }

    /// Passes the permit to the next waiter, or removes the name.
    fn pass(self: &Arc<Self>, name: LockName) {
        let mut name = Some(name);
        while let Some(this) = name.take() {
            let next = {
                let mut shard = self.shard(&this);
                let next = shard.get_mut(&this).and_then(|queue| {
                    queue.blocked_until = None;
                    queue.waiting.pop_front()
                });
                if next.is_none() {
                    shard.remove(&this);
                }
                next
            };
            // After unlocking: if the waiter is gone, its permit comes back and goes to the next one.
            name = next.and_then(|next| next.send(Permit::of(self, this)).err()?.name.take());
        }
    }

    fn block(&self, name: LockName) {
        let until = now() + self.settle;
        if let Some(queue) = self.shard(&name).get_mut(&name) {
            queue.blocked_until = Some(until);
        }
        self.blocked.lock().insert((until, name));
        self.changed.notify_one();
    }
}

impl Permit {
    fn of(permits: &Arc<Permits>, name: LockName) -> Self {
        Self { permits: Arc::clone(permits), name: Some(name), outcome_unknown: false }
    }

    /// The request is about to be sent: from here on its outcome is unknown.
    pub(crate) fn begin(&mut self) {
        self.outcome_unknown = true;
    }

    /// The outcome is known, or the request was never sent.
    pub(crate) fn end(&mut self) {
        self.outcome_unknown = false;
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        match self.name.take() {
            Some(name) if self.outcome_unknown => self.permits.block(name),
            Some(name) => self.permits.pass(name),
            None => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::future::Future;
    use std::pin::pin;
    use std::task::{Context, Waker};

    use super::*;

    fn ready<T>(future: impl Future<Output = T>) -> Option<T> {
        match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
            std::task::Poll::Ready(done) => Some(done),
            std::task::Poll::Pending => None,
        }
    }

    fn runtime() -> tokio::runtime::Runtime {
        tokio::runtime::Builder::new_current_thread().build().unwrap()
    }

    fn later() -> Moment {
        now() + Duration::from_secs(30)
    }

    #[test]
    fn waiters_get_permits_in_order_and_those_that_gave_up_are_skipped() {
        let (permits, name) = (Permits::new(Duration::ZERO, now()), LockName::new("a").unwrap());
        let (mut w1, mut w2, mut w3, mut w4) = <(Timer, Timer, Timer, Timer)>::default();
        runtime().block_on(async {
            let first = permits.acquire(&name, later(), &mut w1).await.unwrap();
            let mut second = Box::pin(permits.acquire(&name, later(), &mut w2));
            let mut third = Box::pin(permits.acquire(&name, later(), &mut w3));
            let mut fourth = Box::pin(permits.acquire(&name, later(), &mut w4));
            for waiter in [&mut second, &mut third, &mut fourth] {
                assert!(ready(waiter.as_mut()).is_none());
            }
            drop(first);
            // The second waiter got the permit and never reads it.
            drop(second);
            assert!(ready(fourth.as_mut()).is_none());
            let third = ready(third.as_mut()).unwrap().unwrap();
            drop(third);
            drop(ready(fourth.as_mut()).unwrap().unwrap());
            assert!(permits.is_settled());
        });
    }

    #[test]
    fn unknown_outcome_blocks_the_name_for_the_settle_time() {
        let settle = Duration::from_millis(40);
        let (permits, name) = (Permits::new(settle, now()), LockName::new("a").unwrap());
        let mut timer = Timer::default();
        runtime().block_on(async {
            tokio::spawn(Arc::clone(&permits).unblock_expired());
            let mut first = permits.acquire(&name, later(), &mut timer).await.unwrap();
            first.begin();
            let before = now();
            drop(first);
            assert_eq!(permits.blocked(), 1);
            assert!(permits.retry_after_of(&name).is_some());
            assert_eq!(permits.acquire(&name, now(), &mut timer).await.err(), Some(TimedOut));
            let mut second = permits.acquire(&name, later(), &mut timer).await.unwrap();
            assert!(now() >= before + settle);
            second.begin();
            second.end();
            drop(second);
            assert!(permits.is_settled() && permits.blocked() == 0);
        });
    }

    #[test]
    fn no_permit_is_granted_before_the_start_is_settled() {
        let opens = now() + Duration::from_millis(40);
        let (permits, name) = (Permits::new(Duration::ZERO, opens), LockName::new("a").unwrap());
        runtime().block_on(async {
            let mut timer = Timer::default();
            assert_eq!(permits.acquire(&name, now(), &mut timer).await.err(), Some(TimedOut));
            drop(permits.acquire(&name, later(), &mut timer).await.unwrap());
            assert!(now() >= opens && permits.is_settled());
        });
    }
}
