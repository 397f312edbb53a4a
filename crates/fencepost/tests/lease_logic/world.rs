//! A client on a manual clock, over a store with injected faults.

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

/// Waits in real time for something that another thread is about to do.
pub(crate) async fn eventually(what: &str, mut condition: impl FnMut() -> bool) {
    let end = BootClock.now() + Duration::from_secs(10);
    while !condition() {
        assert!(BootClock.now() < end, "did not happen: {what}");
        BootClock.alarm(BootClock.now() + ms(1)).await;
    }
}

/// The value of the future. A test that would hang fails instead.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    tokio::select! {
        value = future => value,
        () = BootClock.alarm(BootClock.now() + Duration::from_secs(10)) => {
            panic!("did not happen: {what}")
        }
    }
}

/// The system clock, which panics once when the client's own thread reads it.
#[derive(Clone, Debug, Default)]
pub(crate) struct PanickingClock(Arc<AtomicUsize>);

impl PanickingClock {
    const DONE: usize = usize::MAX;

    pub(crate) fn panic_at_second_read(&self) {
        self.0.store(2, Ordering::SeqCst);
    }

    pub(crate) fn has_panicked(&self) -> bool {
        self.0.load(Ordering::SeqCst) == Self::DONE
    }
}

impl Clock for PanickingClock {
    fn now(&self) -> Moment {
        let looks = self.0.load(Ordering::SeqCst);
        if matches!(looks, 1 | 2) && std::thread::current().name() == Some("fencepost-heartbeat") {
            self.0.store(if looks == 1 { Self::DONE } else { 1 }, Ordering::SeqCst);
            assert!(looks != 1, "the test wants a panic here");
        }
        BootClock.now()
    }

    fn alarm(&self, at: Moment) -> BoxFuture<'static, ()> {
        BootClock.alarm(at)
    }
}

pub(crate) struct World {
    pub(crate) clock: ManualClock,
    pub(crate) store: Arc<FaultyStore>,
    pub(crate) line: CountedLine,
    pub(crate) client: Fencepost,
    memory: Arc<Memory>,
}

/// The connection from the client to the store. It counts the calls of the client.
pub(crate) struct CountedLine {
    line: Arc<Severable>,
    near: Arc<FaultyStore>,
}

impl CountedLine {
    pub(crate) fn set(&self, line: Line) {
        self.line.set(line);
    }
}

impl World {
    pub(crate) async fn new() -> Self {
        let clock = ManualClock::new();
        let memory = Memory::new(Arc::new(clock.clone()));
        let store = FaultyStore::over(memory.clone().into());
        let line = Severable::new(store.store());
        let near = FaultyStore::over(line.store());
        let end = near.store();
        let client =
            Fencepost::with_backend(Arc::new(clock.clone()), move |_| async move { Ok(end) });
        let client = client.await.unwrap();
        Self { clock, store, line: CountedLine { line, near }, client, memory }
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

    /// The state at the store itself, bypassing the connection.
    pub(crate) async fn memory_holder(&self, name: &str) -> Option<Token> {
        self.inspect(name).await.holder.and_then(|holder| holder.token)
    }

    /// Waits in real time until nobody holds `name` in the store.
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

    /// How many renewals the client has sent, answered or not.
    pub(crate) fn attempted_batches(&self) -> usize {
        self.line.near.batches()
    }

    /// Advances the clock by `gap` until the condition holds. Once is enough if the client's thread has already set
    /// its alarm.
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

    /// Advances the clock until the client retries a renewal.
    pub(crate) async fn advance_until_retry(&self, gap: Duration) {
        let tried = self.attempted_batches();
        self.advance_until(gap, "a renewal is tried", || self.attempted_batches() > tried).await;
    }

    pub(crate) async fn until_alarms(&self, count: usize) {
        eventually("the alarms are set", || self.clock.alarms() >= count).await;
    }

    /// Waits until the client's thread has set its alarm.
    pub(crate) async fn until_heartbeat_waits(&self) {
        self.until_alarms(1).await;
    }

    /// Gives the client's thread the time to do something wrong: it serves a call meanwhile.
    pub(crate) async fn settle(&self) {
        for _ in 0..3 {
            let guard = self.client.lock("settled").acquire().await.unwrap();
            drop(guard);
            // The release runs on the client's own thread, after everything that was queued there before.
            let free = async || self.memory_holder("settled").await.is_none();
            while !free().await {
                BootClock.alarm(BootClock.now() + ms(1)).await;
            }
        }
    }

    /// Advances the clock by a third of the TTL, and waits for the renewal.
    pub(crate) async fn renew_once(&self, guard: &Guard) {
        let before = self.store.renewals();
        self.until_heartbeat_waits().await;
        self.clock.advance(guard.ttl().as_duration() / 3);
        eventually("it is renewed", || self.store.renewals() > before).await;
        let mine = self.now();
        eventually("the renewal is credited", || {
            guard.deadline() > mine && self.store.last_renewal() == mine
        })
        .await;
        self.settle().await;
    }
}

/// What happens to the next renewal instead of a reply.
pub(crate) enum Fault {
    Panic,
    HangForEver,
    /// Applies it, then blocks the whole thread until released.
    Freeze(mpsc::Receiver<()>),
    /// Applies it, and leaves out the answer for this lock.
    LeaveOut(&'static str),
}

/// Passes calls on, counts them, and injects faults.
pub(crate) struct FaultyStore {
    inner: Store,
    faults: Mutex<VecDeque<Fault>>,
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

/// Holds back the replies to acquires until it is opened.
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

impl FaultyStore {
    fn over(inner: Store) -> Arc<Self> {
        Arc::new(Self {
            inner,
            faults: Mutex::default(),
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

    pub(crate) fn inject(&self, fault: Fault) {
        self.faults.lock().unwrap().push_back(fault);
    }

    pub(crate) fn inject_freeze(&self) -> mpsc::Sender<()> {
        let (wake, frozen) = mpsc::channel();
        self.inject(Fault::Freeze(frozen));
        wake
    }

    pub(crate) fn faults_left(&self) -> usize {
        self.faults.lock().unwrap().len()
    }

    /// Notifies the last holder, as a store does after a break.
    pub(crate) fn notify_holder(&self) {
        self.loss.lock().unwrap().renew_now();
    }

    /// Grants at most this TTL.
    pub(crate) fn limit_ttl(&self, ttl: Ttl) {
        *self.max_ttl.lock().unwrap() = Some(ttl);
    }

    /// Refuses this many releases.
    pub(crate) fn refuse_releases(&self, count: usize) {
        self.refused_releases.store(count, Ordering::SeqCst);
    }

    /// How many releases came.
    pub(crate) fn releases(&self) -> usize {
        self.releases.load(Ordering::SeqCst)
    }

    pub(crate) fn hold_back_acquires(&self) -> Gate {
        let gate = Gate(Arc::new((Semaphore::new(0), AtomicUsize::new(0))));
        *self.gate.lock().unwrap() = Some(gate.clone());
        gate
    }

    /// How many renewals were applied and answered.
    pub(crate) fn renewals(&self) -> usize {
        self.renewals.load(Ordering::SeqCst)
    }

    /// How many batches of renewals came.
    pub(crate) fn batches(&self) -> usize {
        self.batches.load(Ordering::SeqCst)
    }

    /// How many renewals were applied and then froze.
    pub(crate) fn frozen(&self) -> usize {
        self.frozen.load(Ordering::SeqCst)
    }

    /// The moment to which the last renewal was credited.
    pub(crate) fn last_renewal(&self) -> Moment {
        *self.last.lock().unwrap()
    }
}

impl FaultyStore {
    /// Passes a reply on, with the injected faults. The gate holds back replies that end an acquire.
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

impl Backend for FaultyStore {
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
        let fault = self.faults.lock().unwrap().pop_front();
        Box::pin(async move {
            match &fault {
                Some(Fault::Panic) => panic!("a backend that panics"),
                Some(Fault::HangForEver) => std::future::pending().await,
                _ => {}
            }
            let mut answers = self.inner.backend.renew(batch, limit).await;
            match fault {
                Some(Fault::Freeze(frozen)) => {
                    self.frozen.fetch_add(1, Ordering::SeqCst);
                    frozen.recv().unwrap();
                }
                Some(Fault::LeaveOut(name)) => {
                    answers.retain(|grant, _| grant.name.as_str() != name);
                }
                _ => {}
            }
            for reply in answers.values().flatten().filter(|reply| reply.value.is_ok()) {
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
