//! A client on a clock in the test's hand, over a store that can be told to misbehave.

use std::collections::VecDeque;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, mpsc};
use std::time::Duration;

use fencepost::backend::{
    Acquired, Backend, BoxFuture, Broken, GrantId, LockInfo, LossSignal, NotHeld, Observe, Queue,
    Renewal, Renewals, Reply, Request, Store, StoreCall, StoreError, StoreResult,
};
use fencepost::backends::memory::Memory;
use fencepost::clock::{BootClock, Clock, ManualClock};
use fencepost::guarantees::Guarantees;
use fencepost::{Fencepost, Guard, LockName, Moment, Token, Ttl};
use fencepost_conformance::{Line, Severable};
use tokio::sync::Semaphore;

pub(crate) const fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

/// Waits, in real time, for what another thread is about to do.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = BootClock.now() + Duration::from_secs(10);
    while !condition() {
        assert!(BootClock.now() < end, "did not happen: {what}");
        BootClock.alarm(BootClock.now() + ms(1)).await;
    }
}

/// What the future gives; a test that would hang fails instead.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::select! {
        value = future => value,
        () = BootClock.alarm(BootClock.now() + Duration::from_secs(10)) => {
            panic!("did not happen: {what}")
        }
    }
}

pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) store: Arc<Tricky>,
    pub(crate) line: Cut,
    pub(crate) client: Fencepost,
    memory: Arc<Memory>,
}

/// The line from the client to the store, which counts what comes to its near end.
pub(crate) struct Cut {
    line: Arc<Severable>,
    near: Arc<Tricky>,
}

impl Cut {
    pub(crate) fn set(&self, line: Line) {
        self.line.set(line);
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        let clock = ManualClock::new();
        let memory = Memory::new(Arc::new(clock.clone()));
        let store = Tricky::over(memory.clone().into());
        let line = Severable::new(store.store());
        let near = Tricky::over(line.store());
        let end = near.store();
        let client = Fencepost::over(Arc::new(clock.clone()), move |_| async move { Ok(end) });
        let client = client.await.unwrap();
        Self { clock, store, line: Cut { line, near }, client, memory }
    }

    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }

    pub(crate) fn memory_store(&self) -> Store {
        Arc::clone(&self.memory).into()
    }

    async fn inspect(&self, name: &str) -> LockInfo {
        let name = LockName::new(name).unwrap();
        self.memory.inspect(name, Moment::NEVER).await.unwrap().value
    }

    /// What the store itself says, past the line.
    pub(crate) async fn memory_holder(&self, name: &str) -> Option<Token> {
        self.inspect(name).await.holder.and_then(|holder| holder.token)
    }

    /// Waits, in real time, until nobody holds `name` at the store.
    pub(crate) async fn until_free(&self, name: &str) {
        soon("nothing stays behind", async {
            while self.memory_holder(name).await.is_some() {
                BootClock.alarm(BootClock.now() + ms(1)).await;
            }
        })
        .await;
    }

    pub(crate) async fn memory_waiting(&self, name: &str) -> usize {
        self.inspect(name).await.waiting
    }

    /// How many renewals the client has tried, answered or not.
    pub(crate) fn line_tries(&self) -> usize {
        self.line.near.batches()
    }

    /// Moves the clock on by `gap`, again and again, until the condition holds. Once is enough if the
    /// client's thread has set its alarm already; it may still be about to.
    pub(crate) async fn advance_until(
        &self,
        gap: Duration,
        what: &str,
        condition: impl Fn() -> bool,
    ) {
        for _ in 0..8 {
            self.clock.advance(gap);
            let end = BootClock.now() + ms(250);
            while BootClock.now() < end {
                if condition() {
                    return;
                }
                BootClock.alarm(BootClock.now() + ms(1)).await;
            }
        }
        panic!("did not happen: {what}");
    }

    /// Moves the clock on until the client tries a renewal again.
    pub(crate) async fn tries_again(&self, gap: Duration) {
        let tried = self.line_tries();
        self.advance_until(gap, "a renewal is tried", || self.line_tries() > tried).await;
    }

    pub(crate) async fn alarms(&self, count: usize) {
        eventually("the alarms are set", || self.clock.alarms() >= count).await;
    }

    /// Waits until the client's thread has set its alarm.
    pub(crate) async fn keeper_waits(&self) {
        self.alarms(1).await;
    }

    /// Gives the client's thread the chance to do what it should not: it answers a call in between.
    pub(crate) async fn settled(&self) {
        for _ in 0..3 {
            let guard = self.client.lock("settled").acquire().await.unwrap();
            drop(guard);
            // The release runs on the client's own thread, after what was queued there before it.
            let free = async || self.memory_holder("settled").await.is_none();
            while !free().await {
                BootClock.alarm(BootClock.now() + ms(1)).await;
            }
        }
    }

    /// Lets a third of the TTL pass, and waits for the renewal.
    pub(crate) async fn renew_once(&self, guard: &Guard) {
        let before = self.store.renewals();
        self.keeper_waits().await;
        self.clock.advance(guard.ttl().as_duration() / 3);
        eventually("it is renewed", || self.store.renewals() > before).await;
        let mine = self.now();
        eventually("the renewal is credited", || {
            guard.deadline() > mine && self.store.last_renewal() == mine
        })
        .await;
        self.settled().await;
    }
}

/// What to do with the next renewal instead of answering it.
pub(crate) enum Trick {
    Panic,
    HangForEver,
    /// Carry it out, then block the whole thread until told to go on.
    Freeze(mpsc::Receiver<()>),
}

/// Passes calls on, counts them, and plays a trick when told to.
pub(crate) struct Tricky {
    inner: Store,
    tricks: Mutex<VecDeque<Trick>>,
    renewals: AtomicUsize,
    batches: AtomicUsize,
    frozen: AtomicUsize,
    last: Mutex<Moment>,
    gate: Mutex<Option<Gate>>,
    loss: Mutex<LossSignal>,
    max_ttl: Mutex<Option<Ttl>>,
    refused_releases: AtomicUsize,
    releases: AtomicUsize,
}

/// Keeps answers to acquires back until it is opened.
#[derive(Clone)]
pub(crate) struct Gate(Arc<(Semaphore, AtomicUsize)>);

impl Gate {
    pub(crate) fn waiting(&self) -> usize {
        self.0.1.load(Ordering::SeqCst)
    }

    pub(crate) fn open(&self) {
        self.0.0.add_permits(1000);
    }
}

impl Tricky {
    fn over(inner: Store) -> Arc<Self> {
        Arc::new(Self {
            inner,
            tricks: Mutex::default(),
            renewals: AtomicUsize::new(0),
            batches: AtomicUsize::new(0),
            frozen: AtomicUsize::new(0),
            last: Mutex::default(),
            gate: Mutex::default(),
            loss: Mutex::default(),
            max_ttl: Mutex::default(),
            refused_releases: AtomicUsize::new(0),
            releases: AtomicUsize::new(0),
        })
    }

    fn store(self: &Arc<Self>) -> Store {
        Store { backend: self.clone(), observe: self.inner.observe.clone(), ledger: None }
    }

    pub(crate) fn play(&self, trick: Trick) {
        self.tricks.lock().unwrap().push_back(trick);
    }

    pub(crate) fn play_freeze(&self) -> mpsc::Sender<()> {
        let (wake, frozen) = mpsc::channel();
        self.play(Trick::Freeze(frozen));
        wake
    }

    pub(crate) fn tricks_left(&self) -> usize {
        self.tricks.lock().unwrap().len()
    }

    /// Notifies the last holder, as a store does after a break.
    pub(crate) fn notify_holder(&self) {
        self.loss.lock().unwrap().renew_now();
    }

    /// Grants a shorter TTL than was asked for.
    pub(crate) fn keep_at_most(&self, ttl: Ttl) {
        *self.max_ttl.lock().unwrap() = Some(ttl);
    }

    /// Refuses this many releases.
    pub(crate) fn refuse_releases(&self, count: usize) {
        self.refused_releases.store(count, Ordering::SeqCst);
    }

    /// How many releases have come.
    pub(crate) fn releases(&self) -> usize {
        self.releases.load(Ordering::SeqCst)
    }

    pub(crate) fn hold_back_acquires(&self) -> Gate {
        let gate = Gate(Arc::new((Semaphore::new(0), AtomicUsize::new(0))));
        *self.gate.lock().unwrap() = Some(gate.clone());
        gate
    }

    /// How many renewals were carried out and answered.
    pub(crate) fn renewals(&self) -> usize {
        self.renewals.load(Ordering::SeqCst)
    }

    /// How many batches of renewals have come.
    pub(crate) fn batches(&self) -> usize {
        self.batches.load(Ordering::SeqCst)
    }

    /// How many renewals were carried out and then froze.
    pub(crate) fn frozen(&self) -> usize {
        self.frozen.load(Ordering::SeqCst)
    }

    /// To which moment the last renewal was credited.
    pub(crate) fn last_renewal(&self) -> Moment {
        *self.last.lock().unwrap()
    }
}

impl Tricky {
    /// Passes an answer on, as a store that misbehaves would. The gate holds back what ends an acquire.
    async fn answered(
        &self,
        mut answer: StoreResult<Acquired>,
        first: bool,
    ) -> StoreResult<Acquired> {
        let (gate, max_ttl) = (self.gate.lock().unwrap().clone(), *self.max_ttl.lock().unwrap());
        if let (Ok(Reply { value: Acquired::Granted(grant), .. }), Some(max)) =
            (&mut answer, max_ttl)
        {
            grant.ttl = grant.ttl.min(max);
        }
        let queued = matches!(&answer, Ok(Reply { value: Acquired::Queued { .. }, .. }));
        if let Some(gate) = gate.filter(|_| !(first && queued)) {
            gate.0.1.fetch_add(1, Ordering::SeqCst);
            let _ = gate.0.0.acquire().await;
        }
        answer
    }
}

impl Backend for Tricky {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        *self.loss.lock().unwrap() = request.loss.clone();
        let call = self.inner.backend.try_acquire(request, queue, limit);
        Box::pin(async move { self.answered(call.await, true).await })
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        let call = self.inner.backend.wait(request, limit);
        Box::pin(async move { self.answered(call.await, false).await })
    }

    fn renew(&self, batch: Vec<Renewal>, limit: Moment) -> BoxFuture<'_, Renewals> {
        self.batches.fetch_add(1, Ordering::SeqCst);
        let trick = self.tricks.lock().unwrap().pop_front();
        Box::pin(async move {
            match &trick {
                Some(Trick::Panic) => panic!("a backend that panics"),
                Some(Trick::HangForEver) => std::future::pending().await,
                _ => {}
            }
            let answers = self.inner.backend.renew(batch, limit).await;
            if let Some(Trick::Freeze(frozen)) = trick {
                self.frozen.fetch_add(1, Ordering::SeqCst);
                frozen.recv().unwrap();
            }
            for reply in answers.iter().flatten().filter(|reply| reply.value.is_ok()) {
                *self.last.lock().unwrap() = reply.sent;
                self.renewals.fetch_add(1, Ordering::SeqCst);
            }
            answers
        })
    }

    fn release(&self, grant: GrantId, limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        self.releases.fetch_add(1, Ordering::SeqCst);
        let left = |count: usize| count.checked_sub(1);
        if self.refused_releases.fetch_update(Ordering::SeqCst, Ordering::SeqCst, left).is_ok() {
            return Box::pin(async { Err(StoreError::refused("READONLY: this is a replica")) });
        }
        self.inner.backend.release(grant, limit)
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        self.inner.backend.break_lock(name, token, confirm_until, limit)
    }

    fn guarantees(&self) -> Guarantees {
        self.inner.backend.guarantees()
    }
}
