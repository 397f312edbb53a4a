//! `memory:` the core machine in this process.
//!
//! *Why grants exclude:* the machine has one holder per name and is behind one mutex. A lease ends only
//! when the wheel, at `now` read under that mutex, says it is due.
//! *Why tokens rise:* one counter that is only added to. The stores that URLs name live as long as the
//! process, so reconnecting does not start it anew.
//! *Where that ends:* with the process. Nothing is kept, and nobody outside is excluded.
//!
//! No thread drives expiry. Every call first ends what is due, and a waiter sets an alarm for the moment
//! the holder's lease ends, so whoever needs an expiry sees to it. Records (records.rs) end the same way.

mod records;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use fencepost_core::{
    Command, Effect, Lease, LeaseWheel, LockName, Machine, Moment, OwnerId, Token, Ttl, Value,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, Grant, GrantId, HolderInfo, LockInfo, LossCause,
    LossSignal, NotHeld, Observe, Queue, Renewal, Renewed, Reply, Request, StoreCall, StoreError,
    StoreResult, WaiterInfo,
};
use crate::clock::{BootClock, Clock};
use crate::guarantees::{Correctness, Guarantees, Kept, Records};
use crate::race::{First, race};

/// A store in this process's memory.
pub struct Memory {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    version: watch::Sender<u64>,
}

#[derive(Default)]
struct State {
    machine: Machine,
    wheel: LeaseWheel,
    /// What the machine does not need to know, by owner: it goes when the owner's grant or place goes.
    owners: HashMap<OwnerId, Owner>,
    records: records::Book,
}

struct Owner {
    since: Moment,
    loss: LossSignal,
    value: Option<Value>,
    /// Rings when the owner, waiting, is granted or loses its place.
    turn: Option<watch::Sender<Option<Turn>>>,
}

#[derive(Clone, Copy)]
enum Turn {
    Granted(Token, Ttl),
    PlaceGone,
}

impl Memory {
    /// An empty store on `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, state: Mutex::default(), version: watch::Sender::new(0) })
    }

    /// The store that `memory:NAME` means everywhere in this process.
    pub(crate) fn of_this_process(name: &str) -> Arc<Self> {
        static STORES: OnceLock<Mutex<HashMap<String, Arc<Memory>>>> = OnceLock::new();
        let stores = STORES.get_or_init(Mutex::default);
        let mut stores = stores.lock();
        let store = stores.entry(name.to_owned());
        Arc::clone(store.or_insert_with(|| Self::new(Arc::new(BootClock))))
    }

    /// The state with everything that is due expired.
    fn state(&self) -> (MutexGuard<'_, State>, Moment) {
        let mut state = self.state.lock();
        // Read under the lock: a time from before it would arm leases too early.
        let now = self.clock.now();
        let mut any = false;
        while let Some(expire) = state.wheel.expired(now) {
            state.apply(expire, now);
            any = true;
        }
        if any {
            self.version.send_modify(|version| *version += 1);
        }
        (state, now)
    }

    /// Applies one command and returns the effect that is the caller's.
    fn apply(&self, command: Command) -> Option<Effect> {
        let (mut state, now) = self.state();
        let answer = state.apply(command, now);
        self.version.send_modify(|version| *version += 1);
        answer
    }

    fn enter(&self, request: &Request, queue: bool) -> StoreResult<Acquired> {
        let (mut state, now) = self.state();
        let GrantId { name, owner } = request.grant.clone();
        let command =
            Command::Acquire { name, owner, ttl: request.ttl, label: request.label.clone(), queue };
        let acquired = match state.apply(command, now) {
            Some(Effect::Granted { token, ttl, .. }) => {
                state.know(request, now);
                Acquired::Granted(Grant { token, ttl, queued: false, presence: None })
            }
            Some(Effect::Queued { .. }) => {
                let turn = &mut state.know(request, now).turn;
                turn.get_or_insert_with(|| watch::Sender::new(None));
                Acquired::Queued { ahead: state.ahead_of(&request.grant) }
            }
            Some(Effect::Exhausted { .. }) => {
                return Err(StoreError::refused(
                    "this memory: store has no tokens left: start a new one",
                ));
            }
            _ => Acquired::Held(state.holder_info(&request.grant.name, now)),
        };
        self.version.send_modify(|version| *version += 1);
        Ok(Reply::new(acquired, now))
    }

    async fn wait_in_line(&self, request: &Request, limit: Moment) -> Acquired {
        let GrantId { name, owner } = &request.grant;
        let mut keep_position = self.clock.now() + request.ttl.as_duration() / 3;
        // A retry listens beside the first call.
        let turn = self
            .state()
            .0
            .owners
            .get(owner)
            .and_then(|known| known.turn.as_ref()?.subscribe().into());
        let Some(mut turn) = turn else { return self.without_turn(&request.grant) };
        loop {
            let expiry = {
                let (state, _) = self.state();
                let holder = state.machine.holder(name).map(|grant| grant.token);
                holder.and_then(|token| state.wheel.deadline(Lease::Held(token)))
            };
            let alarm = expiry.unwrap_or(Moment::NEVER).min(limit).min(keep_position);
            if let First::Left(told) = race(turn.changed(), self.clock.alarm(alarm)).await {
                return match told.ok().and_then(|()| *turn.borrow()) {
                    Some(Turn::Granted(token, ttl)) => {
                        Acquired::Granted(Grant { token, ttl, queued: true, presence: None })
                    }
                    Some(Turn::PlaceGone) | None => Acquired::PlaceLost,
                };
            }
            let now = self.clock.now();
            if now >= limit {
                // The grant may have come in this very moment; then it is taken.
                let (state, _) = self.state();
                if turn.borrow().is_some() {
                    continue;
                }
                return Acquired::Queued { ahead: state.ahead_of(&request.grant) };
            }
            if now >= keep_position {
                self.apply(Command::Renew { name: name.clone(), owner: *owner });
                keep_position = now + request.ttl.as_duration() / 3;
            }
        }
    }

    /// The answer to a wait of an owner that has no position: it may have been granted since.
    fn without_turn(&self, id: &GrantId) -> Acquired {
        let (state, _) = self.state();
        match state.machine.holder(&id.name).filter(|grant| grant.owner == id.owner) {
            Some(grant) => {
                let (token, ttl) = (grant.token, grant.ttl);
                Acquired::Granted(Grant { token, ttl, queued: true, presence: None })
            }
            None => Acquired::PlaceLost,
        }
    }

    fn renew_one(&self, renewal: Renewal) -> Reply<Result<Renewed, NotHeld>> {
        let Renewal { grant: GrantId { name, owner }, ttl, value, .. } = renewal;
        let (mut state, now) = self.state();
        // A renewal keeps the TTL; a longer one is a retry of the acquire by its holder. A shorter one is
        // not taken: the guard counts on the lease that it was promised.
        let held = state.machine.holder(&name).filter(|grant| grant.owner == owner);
        let command = match (held, ttl) {
            (Some(grant), Some(ttl)) if ttl > grant.ttl => {
                let (name, label) = (name.clone(), grant.label.clone());
                Command::Acquire { name, owner, ttl, label, queue: false }
            }
            _ => Command::Renew { name: name.clone(), owner },
        };
        let renewed = match state.apply(command, now) {
            Some(Effect::Renewed { token, ttl, .. } | Effect::Granted { token, ttl, .. }) => {
                if let (Some(value), Some(known)) = (value, state.owners.get_mut(&owner)) {
                    known.value = Some(value);
                    self.version.send_modify(|version| *version += 1);
                }
                Ok(Renewed { token, ttl })
            }
            _ => Err(state.not_held(&name)),
        };
        Reply::new(renewed, now)
    }

    /// Answers under the state's lock, when it is awaited and not before.
    fn answer<'a, T>(
        &'a self,
        act: impl FnOnce(&mut State, Moment) -> T + Send + 'a,
    ) -> StoreCall<'a, T> {
        Box::pin(async move {
            let (mut state, now) = self.state();
            Ok(Reply::new(act(&mut state, now), now))
        })
    }
}

impl State {
    fn know(&mut self, request: &Request, now: Moment) -> &mut Owner {
        let fresh = || Owner { since: now, loss: LossSignal::unheard(), value: None, turn: None };
        let owner = self.owners.entry(request.grant.owner).or_insert_with(fresh);
        owner.loss = request.loss.clone();
        if request.value.is_some() {
            owner.value.clone_from(&request.value);
        }
        owner
    }

    fn apply(&mut self, command: Command, now: Moment) -> Option<Effect> {
        let effects = self.machine.apply(command);
        for effect in &effects {
            self.wheel.observe(effect, now);
            self.tell(effect, now);
        }
        effects.into_iter().next()
    }

    /// Passes an effect on to the owner that it concerns.
    fn tell(&mut self, effect: &Effect, now: Moment) {
        match effect {
            Effect::Granted { owner, token, ttl, ticket: Some(_), .. } => {
                if let Some(known) = self.owners.get_mut(owner) {
                    known.since = now;
                    if let Some(turn) = known.turn.take() {
                        turn.send_replace(Some(Turn::Granted(*token, *ttl)));
                    }
                }
            }
            Effect::Released { owner, .. } | Effect::Withdrawn { owner, .. } => {
                self.owners.remove(owner);
            }
            Effect::Expired { owner, .. } => self.end(*owner, LossCause::Expired),
            Effect::Broken { owner, .. } => self.end(*owner, LossCause::Broken),
            _ => {}
        }
    }

    fn end(&mut self, owner: OwnerId, cause: LossCause) {
        if let Some(known) = self.owners.remove(&owner) {
            match known.turn {
                Some(turn) => {
                    turn.send_replace(Some(Turn::PlaceGone));
                }
                None => known.loss.fire(cause),
            }
        }
    }

    fn not_held(&self, name: &LockName) -> NotHeld {
        NotHeld(self.machine.holder(name).map(|_| LossCause::TakenOver))
    }

    fn ahead_of(&self, id: &GrantId) -> u64 {
        self.machine.waiters(&id.name).take_while(|waiter| waiter.owner != id.owner).count() as u64
    }

    fn holder_info(&self, name: &LockName, now: Moment) -> Option<HolderInfo> {
        let grant = self.machine.holder(name)?;
        let owner = self.owners.get(&grant.owner);
        let since = owner.map_or(now, |owner| owner.since);
        let deadline = self.wheel.deadline(Lease::Held(grant.token)).unwrap_or(now);
        Some(HolderInfo {
            label: grant.label.clone(),
            token: Some(grant.token),
            ttl: Some(grant.ttl),
            held_for: Some(now.since(since)),
            remaining: Some(deadline.since(now)),
            endless: false,
            value: owner.and_then(|owner| owner.value.clone()),
        })
    }

    fn info(&self, name: &LockName, now: Moment, shown: usize) -> LockInfo {
        let since = |owner| self.owners.get(owner).map_or(now, |owner| owner.since);
        let waiters = self.machine.waiters(name).take(shown).map(|waiter| WaiterInfo {
            label: waiter.label.clone(),
            waiting_for: Some(now.since(since(&waiter.owner))),
        });
        LockInfo {
            name: name.clone(),
            holder: self.holder_info(name, now),
            waiting: self.machine.waiting(name),
            waiters: waiters.collect(),
        }
    }
}

impl Backend for Memory {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        _limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(async move { self.enter(&request, queue == Queue::Join) })
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(async move {
            let sent = self.clock.now();
            Ok(Reply::new(self.wait_in_line(&request, limit).await, sent))
        })
    }

    fn renew(
        &self,
        batch: Vec<Renewal>,
        _limit: Moment,
    ) -> BoxFuture<'_, Vec<StoreResult<Result<Renewed, NotHeld>>>> {
        Box::pin(
            async move { batch.into_iter().map(|renewal| Ok(self.renew_one(renewal))).collect() },
        )
    }

    fn release(&self, grant: GrantId, _limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        let GrantId { name, owner } = grant;
        self.answer(move |state, now| {
            let effect = state.apply(Command::Cancel { name: name.clone(), owner }, now);
            self.version.send_modify(|version| *version += 1);
            match effect {
                Some(Effect::Released { .. } | Effect::Withdrawn { .. }) => Ok(()),
                _ => Err(state.not_held(&name)),
            }
        })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        _confirm_until: Moment,
        _limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        self.answer(move |state, now| {
            let holder = state.machine.holder(&name);
            if token.is_some() && holder.map(|grant| grant.token) != token {
                return None;
            }
            let known = holder.map(|grant| (grant.label.clone(), grant.owner));
            // The guard is in this process: one that lives is lost at once.
            let confirmed = known.as_ref().is_some_and(|(_, owner)| {
                state.owners.get(owner).is_some_and(|known| known.loss.is_heard())
            });
            let effect = state.apply(Command::Break { name }, now);
            self.version.send_modify(|version| *version += 1);
            match (effect, known) {
                (Some(Effect::Broken { token, floor, .. }), Some((label, _))) => {
                    Some(Broken { label, token: Some(token), floor, confirmed })
                }
                _ => None,
            }
        })
    }

    fn guarantees(&self) -> Guarantees {
        let gone = "the store is in the process; it ends with it";
        let next = "it ends with the process; the next process starts at token 1";
        Guarantees {
            backend: "memory",
            scope: "one process",
            correctness: Correctness::Fit,
            fifo: true,
            wake: "a waiter is woken directly",
            clock: "CLOCK_BOOTTIME of this host",
            longest: Ttl::MAX,
            lengthens: true,
            records: Records::MayBeLost {
                why: "they are in this process's memory, and end with it".into(),
                remedy: "use sqlite: or a server".into(),
            },
            found: Vec::new(),
            under: [
                Kept::none_such(gone),
                Kept::both("the lease ends, the guard learns it on waking; fence the resource"),
                Kept::none_such(next),
                Kept::none_such("there is one copy"),
                Kept::both("wall clocks are not used"),
                Kept::none_such("there is no network"),
                Kept::none_such(gone),
            ],
        }
    }
}

impl Observe for Memory {
    fn inspect(&self, name: LockName, _limit: Moment) -> StoreCall<'_, LockInfo> {
        self.answer(move |state, now| state.info(&name, now, LockInfo::SHOWN_WAITERS))
    }

    fn list(&self, _limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        self.answer(|state, now| {
            let mut names: Vec<_> = state.machine.locks().map(|(name, _)| name.clone()).collect();
            names.sort_unstable();
            names.iter().map(|name| state.info(name, now, 0)).collect()
        })
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(async move {
            let mut version = self.version.subscribe();
            loop {
                version.mark_unchanged();
                let (info, now, next) = {
                    let (state, now) = self.state();
                    let info = state.info(&name, now, LockInfo::SHOWN_WAITERS);
                    (info, now, state.wheel.next().unwrap_or(Moment::NEVER))
                };
                if seen != Some(info.glimpse()) {
                    return Ok(Reply::new(info, now));
                }
                // A lease that ends unrenewed changes the state without anybody's call.
                race(version.changed(), self.clock.alarm(next)).await;
            }
        })
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}
