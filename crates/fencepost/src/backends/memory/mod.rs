//! `memory:` the core machine in this process.
//!
//! *Why grants exclude:* the machine has one holder per name and is behind one mutex. A lease ends only
//! when the queue, at `now` read under that mutex, says it is due.
//! *Why tokens rise:* one counter that only increases. The stores that URLs name live as long as the
//! process, so reconnecting does not restart it.
//! *Where that ends:* with the process. Nothing is kept, and other processes are not excluded.
//!
//! No thread drives expiry. Every call first ends the leases that are due, and a waiter sets an alarm for the moment
//! the holder's lease ends. Records (records.rs) end the same way.
//!
//! Without a URL to parse, a connection and a server there is no config.rs, connection.rs, layout.rs, `server_info.rs` or
//! error.rs; values are kept with their owner.

mod guarantees;
mod inspect;
mod locks;
mod queue;
mod records;

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, OnceLock};

use fencepost_core::{
    Command, Effect, ExpiryQueue, LockName, Machine, Moment, OwnerId, Token, Ttl, Value,
};
use parking_lot::{Mutex, MutexGuard};
use tokio::sync::watch;

use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, GrantId, LockInfo, LockVersion, LossCause, LossSignal,
    NotHeld, Observe, Page, PageRequest, Queue, Renewal, Renewals, Reply, Request, StoreCall,
};
use crate::clock::{BootClock, Clock};
use crate::guarantees::Guarantees;
use crate::ledger::{Claim, Claimed, Completion, Ledger, RecordInfo, RecordsByName};

/// A store in this process's memory.
pub struct Memory {
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    machine: Machine,
    expiry_queue: ExpiryQueue,
    /// What the machine does not need to know, by owner: removed with the owner's grant or position.
    owners: HashMap<OwnerId, Owner>,
    records: records::RecordTable,
    /// Sent when there may be something new to see.
    changed: watch::Sender<()>,
}

struct Owner {
    since: Moment,
    loss: LossSignal,
    value: Option<Value>,
    /// Notified when the waiting owner is granted or loses its position.
    wakeup: Option<watch::Sender<Option<Wakeup>>>,
}

#[derive(Clone, Copy)]
enum Wakeup {
    Granted(Token, Ttl),
    PositionLost,
}

impl Memory {
    /// An empty store on `clock`.
    #[must_use]
    pub fn new(clock: Arc<dyn Clock>) -> Arc<Self> {
        Arc::new(Self { clock, state: Mutex::default() })
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
        // Read under the lock: an earlier time would start leases too early.
        let now = self.clock.now();
        while let Some(expire) = state.expiry_queue.expired(now) {
            state.apply(expire, now);
        }
        (state, now)
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
    fn register_owner(&mut self, request: &Request, now: Moment) -> &mut Owner {
        let fresh =
            || Owner { since: now, loss: LossSignal::disconnected(), value: None, wakeup: None };
        let owner = self.owners.entry(request.grant.owner).or_insert_with(fresh);
        owner.loss = request.loss.clone();
        if request.value.is_some() {
            owner.value.clone_from(&request.value);
        }
        owner
    }

    /// Applies one command and returns the effect that is the caller's.
    fn apply(&mut self, command: Command, now: Moment) -> Option<Effect> {
        let is_renewal = matches!(command, Command::Renew { .. });
        let effects = self.machine.apply(command);
        for effect in &effects {
            self.expiry_queue.observe(effect, now);
            self.notify_owner(effect, now);
        }
        if !is_renewal {
            self.changed.send_replace(());
        }
        effects.into_iter().next()
    }

    /// Passes an effect on to the owner that it concerns.
    fn notify_owner(&mut self, effect: &Effect, now: Moment) {
        match effect {
            Effect::Granted { owner, token, ttl, ticket: Some(_), .. } => {
                if let Some(known) = self.owners.get_mut(owner) {
                    known.since = now;
                    if let Some(wakeup) = known.wakeup.take() {
                        wakeup.send_replace(Some(Wakeup::Granted(*token, *ttl)));
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
            match known.wakeup {
                Some(wakeup) => {
                    wakeup.send_replace(Some(Wakeup::PositionLost));
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
}

impl Backend for Memory {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        _limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(async move {
            let (mut state, now) = self.state();
            Ok(Reply::new(locks::try_acquire(&mut state, &request, queue, now)?, now))
        })
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(queue::wait(self, request, limit))
    }

    fn renew(&self, batch: Vec<Renewal>, _limit: Moment) -> BoxFuture<'_, Renewals> {
        Box::pin(async move {
            let renew = |renewal: Renewal| {
                let (mut state, now) = self.state();
                let grant = renewal.grant.clone();
                (grant, Ok(Reply::new(locks::renew(&mut state, renewal, now), now)))
            };
            batch.into_iter().map(renew).collect()
        })
    }

    fn release(&self, grant: GrantId, _limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        self.answer(|state, now| locks::release(state, grant, now))
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        _confirm_until: Moment,
        _limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        self.answer(move |state, now| locks::break_lock(state, name, token, now))
    }

    fn guarantees(&self) -> Guarantees {
        guarantees::table()
    }
}

impl Observe for Memory {
    fn inspect(&self, name: LockName, _limit: Moment) -> StoreCall<'_, LockInfo> {
        self.answer(move |state, now| state.info(&name, now, LockInfo::SHOWN_WAITERS))
    }

    fn list(&self, page: PageRequest, _limit: Moment) -> StoreCall<'_, Page> {
        self.answer(move |state, now| inspect::list(state, &page, now))
    }

    fn changed(&self, name: LockName, seen: Option<LockVersion>) -> StoreCall<'_, LockInfo> {
        Box::pin(async move { Ok(inspect::changed(self, name, seen).await) })
    }
}

impl Ledger for Memory {
    fn claim(&self, claim: Claim, _limit: Moment) -> StoreCall<'_, Claimed> {
        self.answer(|state, now| state.records.claim(claim, now))
    }

    fn finish(&self, finish: Completion, _limit: Moment) -> StoreCall<'_, bool> {
        self.answer(|state, now| state.records.finish(finish, now))
    }

    fn look_up(&self, names: Vec<LockName>, _limit: Moment) -> StoreCall<'_, RecordsByName> {
        self.answer(move |state, now| {
            let found = |name| Some((LockName::clone(name), state.records.get(name, now)?));
            names.iter().filter_map(found).collect()
        })
    }

    fn list_records(&self, prefix: &str, _limit: Moment) -> StoreCall<'_, Vec<RecordInfo>> {
        let prefix = prefix.to_owned();
        self.answer(move |state, now| state.records.list_records(&prefix, now))
    }

    fn forget(&self, name: LockName, token: Token, _limit: Moment) -> StoreCall<'_, bool> {
        self.answer(move |state, now| state.records.forget(&name, token, now))
    }
}

impl fmt::Debug for Memory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Memory")
    }
}
