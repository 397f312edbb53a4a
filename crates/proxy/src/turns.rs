//! One request per lock name at the upstream at a time, in the order in which they came.
//!
//! What must hold: while a [`Turn`] of a name exists, or the name is held back, there is no other Turn of it. A write
//! whose end is not known, because it timed out, was cut off, its task died, or its response may be an intermediary's,
//! leaves its name *held back* for the settle time: it may still be running at the upstream, and a later holder's request
//! must not overtake it. A read changes nothing, so nobody has to wait for its end.
//! That stops being true if the upstream applies a request later than the settle time.
//!
//! A name has an entry here only while somebody uses it.

use std::collections::hash_map::{Entry, RandomState};
use std::collections::{BTreeSet, HashMap, VecDeque};
use std::hash::BuildHasher as _;
use std::sync::Arc;
use std::time::Duration;

use fencepost_base::clock::{BootClock, Clock as _};
use fencepost_core::{LockName, Moment};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::{Notify, oneshot};

use crate::time::{Late, Watch, now};

const SHARDS: usize = 64;

/// All names that are in use.
pub(crate) struct Turns {
    shards: [Mutex<HashMap<LockName, Line>>; SHARDS],
    hasher: RandomState,
    /// Names that are held back, the first to be freed first.
    held: Mutex<BTreeSet<(Moment, LockName)>>,
    changed: Notify,
    settle: Duration,
    /// Nobody has a turn before this: the last run of the proxy may have left requests at the upstream.
    opens: Moment,
}

/// A name that is in use: those who wait for it.
#[derive(Default)]
struct Line {
    waiting: VecDeque<oneshot::Sender<Turn>>,
    held_until: Option<Moment>,
}

/// The right to send a request. Dropped, it passes to the next in line, unless the request is in doubt.
pub(crate) struct Turn {
    turns: Arc<Turns>,
    /// None once it has passed on.
    name: Option<LockName>,
    in_doubt: bool,
}

impl Turns {
    /// No names in use; nobody has a turn before `opens`.
    pub(crate) fn new(settle: Duration, opens: Moment) -> Arc<Self> {
        Arc::new(Self {
            shards: std::array::from_fn(|_| Mutex::default()),
            hasher: RandomState::new(),
            held: Mutex::default(),
            changed: Notify::new(),
            settle,
            opens,
        })
    }

    fn shard(&self, name: &LockName) -> MutexGuard<'_, HashMap<LockName, Line>> {
        let shard = self.hasher.hash_one(name) as usize % SHARDS;
        self.shards[shard].lock()
    }

    /// Waits for a turn, until the deadline.
    pub(crate) async fn take(
        self: &Arc<Self>,
        name: &LockName,
        deadline: Moment,
        watch: &mut Watch,
    ) -> Result<Turn, Late> {
        let place = match self.shard(name).entry(name.clone()) {
            Entry::Vacant(free) => {
                free.insert(Line::default());
                None
            }
            Entry::Occupied(mut line) => {
                let waiting = &mut line.get_mut().waiting;
                // Who gave up leaves its place in the line; at the front they are many if the name is held back.
                while waiting.front().is_some_and(oneshot::Sender::is_closed) {
                    waiting.pop_front();
                }
                let (turn, place) = oneshot::channel();
                waiting.push_back(turn);
                Some(place)
            }
        };
        let turn = match place {
            None => Turn::of(self, name.clone()),
            // The line is never dropped while somebody waits in it.
            Some(place) => watch.until(deadline, place).await?.map_err(|_| Late)?,
        };
        if now() < self.opens {
            watch.until(deadline, BootClock.alarm(self.opens)).await?;
        }
        Ok(turn)
    }

    /// When it is worth trying again.
    pub(crate) fn free_in(&self, name: &LockName) -> Option<Duration> {
        let held = self.shard(name).get(name).and_then(|line| line.held_until);
        let until = held.unwrap_or(self.opens).max(self.opens);
        (until > now()).then(|| until.since(now()))
    }

    /// How many names are held back.
    pub(crate) fn held_back(&self) -> usize {
        self.held.lock().len()
    }

    /// How many requests wait in a line. All lines are looked through: for those who watch, not for requests.
    pub(crate) fn waiting(&self) -> usize {
        let in_line = |line: &Line| line.waiting.iter().filter(|turn| !turn.is_closed()).count();
        let of = |shard: &Mutex<HashMap<_, Line>>| {
            let shard = shard.lock();
            shard.values().map(in_line).sum::<usize>()
        };
        self.shards.iter().map(of).sum()
    }

    /// How many names are in use, those that are held back included.
    fn in_use(&self) -> usize {
        let names = |shard: &Mutex<HashMap<_, _>>| shard.lock().len();
        self.shards.iter().map(names).sum()
    }

    /// Whether no request is under way. Names may be held back.
    pub(crate) fn is_quiet(&self) -> bool {
        self.in_use() <= self.held_back()
    }

    /// Whether no request is under way or in doubt, of this run or the last.
    pub(crate) fn is_settled(&self) -> bool {
        self.in_use() == 0 && now() >= self.opens
    }

    /// Frees names whose time is over. Runs as long as the proxy does.
    pub(crate) async fn free_the_held(self: Arc<Self>) {
        loop {
            // Made before the look, so that no change is missed in between.
            let changed = self.changed.notified();
            let first = {
                let mut held = self.held.lock();
                let is_due = held.first().is_some_and(|(at, _)| *at <= now());
                let due = if is_due { held.pop_first() } else { None };
                match due {
                    Some((_, name)) => {
                        drop(held);
                        self.pass(name);
                        continue;
                    }
                    None => held.first().map(|(at, _)| *at),
                }
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

    /// Gives the turn to the next who still waits, or forgets the name.
    fn pass(self: &Arc<Self>, name: LockName) {
        let mut name = Some(name);
        while let Some(this) = name.take() {
            let next = {
                let mut shard = self.shard(&this);
                let next = shard.get_mut(&this).and_then(|line| {
                    line.held_until = None;
                    line.waiting.pop_front()
                });
                if next.is_none() {
                    shard.remove(&this);
                }
                next
            };
            // Outside of the lock: a turn that nobody takes comes back, and is dropped by whoever dropped the wait.
            name = next.and_then(|next| next.send(Turn::of(self, this)).err()?.name.take());
        }
    }

    fn hold_back(&self, name: LockName) {
        let until = now() + self.settle;
        if let Some(line) = self.shard(&name).get_mut(&name) {
            line.held_until = Some(until);
        }
        self.held.lock().insert((until, name));
        self.changed.notify_one();
    }
}

impl Turn {
    fn of(turns: &Arc<Turns>, name: LockName) -> Self {
        Self { turns: Arc::clone(turns), name: Some(name), in_doubt: false }
    }

    /// The request is about to be sent: from here on its end is not known.
    pub(crate) fn begin(&mut self) {
        self.in_doubt = true;
    }

    /// The request has come to its end, or was never sent.
    pub(crate) fn end(&mut self) {
        self.in_doubt = false;
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        match self.name.take() {
            Some(name) if self.in_doubt => self.turns.hold_back(name),
            Some(name) => self.turns.pass(name),
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
    fn turns_come_in_order_and_those_who_gave_up_are_passed_over() {
        let (turns, name) = (Turns::new(Duration::ZERO, now()), LockName::new("a").unwrap());
        let (mut w1, mut w2, mut w3, mut w4) = <(Watch, Watch, Watch, Watch)>::default();
        runtime().block_on(async {
            let first = turns.take(&name, later(), &mut w1).await.unwrap();
            let mut second = Box::pin(turns.take(&name, later(), &mut w2));
            let mut third = Box::pin(turns.take(&name, later(), &mut w3));
            let mut fourth = Box::pin(turns.take(&name, later(), &mut w4));
            for waiter in [&mut second, &mut third, &mut fourth] {
                assert!(ready(waiter.as_mut()).is_none());
            }
            drop(first);
            // The second was given the turn and never takes it.
            drop(second);
            assert!(ready(fourth.as_mut()).is_none());
            let third = ready(third.as_mut()).unwrap().unwrap();
            drop(third);
            drop(ready(fourth.as_mut()).unwrap().unwrap());
            assert!(turns.is_settled());
        });
    }

    #[test]
    fn a_turn_in_doubt_holds_its_name_back_for_the_settle_time() {
        let settle = Duration::from_millis(40);
        let (turns, name) = (Turns::new(settle, now()), LockName::new("a").unwrap());
        let mut watch = Watch::default();
        runtime().block_on(async {
            tokio::spawn(Arc::clone(&turns).free_the_held());
            let mut first = turns.take(&name, later(), &mut watch).await.unwrap();
            first.begin();
            let before = now();
            drop(first);
            assert_eq!(turns.held_back(), 1);
            assert!(turns.free_in(&name).is_some());
            assert_eq!(turns.take(&name, now(), &mut watch).await.err(), Some(Late));
            let mut second = turns.take(&name, later(), &mut watch).await.unwrap();
            assert!(now() >= before + settle);
            second.begin();
            second.end();
            drop(second);
            assert!(turns.is_settled() && turns.held_back() == 0);
        });
    }

    #[test]
    fn nobody_has_a_turn_before_the_start_is_settled() {
        let opens = now() + Duration::from_millis(40);
        let (turns, name) = (Turns::new(Duration::ZERO, opens), LockName::new("a").unwrap());
        runtime().block_on(async {
            let mut watch = Watch::default();
            assert_eq!(turns.take(&name, now(), &mut watch).await.err(), Some(Late));
            drop(turns.take(&name, later(), &mut watch).await.unwrap());
            assert!(now() >= opens && turns.is_settled());
        });
    }
}
