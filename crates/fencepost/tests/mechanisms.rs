//! `once`, single flight and elections in one process on a manual clock: what happens between their steps. What
//! stores must do is in the conformance suite.

#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this file is a test")]

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Waker};
use std::time::Duration;

use fencepost::backend::{BackendContext, Observe as _, Store, StoreCall, StoreError};
use fencepost::backends::memory::Memory;
use fencepost::clock::{BootClock, Clock, ManualClock};
use fencepost::ledger::{Claim, Claimed, Completion, RecordInfo, RecordsByName, State};
use fencepost::{
    Error, ErrorKind, Fencepost, Ledger, LockName, LossCause, Moment, OnFailure, RunGuard, Start,
    Token,
};
use fencepost_conformance::{Line, Severable};

/// A client whose connection can be cut, another without faults, and the clock of both.
struct World {
    clock: ManualClock,
    line: Arc<Severable>,
    client: Fencepost,
    other: Fencepost,
    memory: Arc<Memory>,
}

async fn world() -> World {
    let clock = ManualClock::new();
    let memory = Memory::new(Arc::new(clock.clone()));
    let line = Severable::new(Store::from(Arc::clone(&memory)));
    let cut = line.store();
    let connect = async |store: Store| {
        Fencepost::with_backend(Arc::new(clock.clone()), |_| async { Ok(store) }).await.unwrap()
    };
    let (client, other) = (connect(cut).await, connect(Store::from(Arc::clone(&memory))).await);
    World { clock, line, client, other, memory }
}

/// The value of the future, while time passes. A test that would hang fails instead.
async fn soon<T>(world: &World, future: impl Future<Output = T>) -> T {
    let end = BootClock.now() + Duration::from_secs(10);
    let mut future = pin!(future);
    loop {
        assert!(BootClock.now() < end, "it did not happen");
        tokio::select! {
            value = &mut future => return value,
            () = BootClock.alarm(BootClock.now() + Duration::from_millis(2)) => {
                world.clock.advance(Duration::from_millis(50));
            }
        }
    }
}

async fn claim(client: &Fencepost, key: &str) -> RunGuard {
    match client.once(key).may_repeat().begin().await.unwrap() {
        Start::Claimed(run_guard) => run_guard,
        Start::Finished(record) => panic!("{record:?}"),
    }
}

/// Why the guard was lost, as the error of a call says it.
fn lost(error: &Error) -> Option<LossCause> {
    assert_eq!(error.kind(), ErrorKind::Lost, "{error}");
    error.loss_cause()
}

async fn state(client: &Fencepost, key: &str) -> Option<State> {
    client.once(key).record().await.unwrap().map(|record| record.state)
}

/// What callers have left to the client comes first, then what the backend still has open; the client waits for both.
#[tokio::test]
async fn closing_client_releases_first_and_then_lets_the_backend_close() {
    for close in [true, false] {
        let memory = Memory::new(Arc::new(BootClock));
        let free_at_the_end = Arc::new(OnceLock::new());
        let open = |context: BackendContext| {
            let (store, closing, free) =
                (Arc::clone(&memory), context.closing.clone(), Arc::clone(&free_at_the_end));
            let work = async move {
                closing.cancelled().await;
                let name = LockName::new("a").unwrap();
                let info = store.inspect(name, Moment::NEVER).await.unwrap().value;
                free.set(info.holder.is_none()).unwrap();
            };
            context.tasks.spawn_on(work, &context.runtime);
            let store = Store::from(Arc::clone(&memory));
            async move { Ok(store) }
        };
        let client = Fencepost::with_backend(Arc::new(BootClock), open).await.unwrap();
        drop(client.lock("a").acquire().await.unwrap());
        assert_eq!(free_at_the_end.get(), None, "the backend closes too early");
        if close {
            client.close().await;
        } else {
            drop(client);
        }
        assert_eq!(free_at_the_end.get(), Some(&true));
    }
}

#[tokio::test]
async fn handle_outlives_its_guard_and_reports_the_release() {
    let world = world().await;
    let guard = world.client.lock("a").acquire().await.unwrap();
    let handle = guard.handle();
    let for_ever = tokio::spawn({
        let handle = handle.clone();
        async move { handle.run(std::future::pending::<()>()).await }
    });
    handle.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!(lost(&handle.check().unwrap_err()), Some(LossCause::Released));
    let ended = soon(&world, for_ever).await.unwrap().unwrap_err();
    assert_eq!(lost(&ended), Some(LossCause::Released));
}

#[tokio::test]
async fn short_outage_does_not_repeat_the_work() {
    let world = world().await;
    let run_guard = claim(&world.client, "a").await;
    world.line.set(Line::Refusing);
    let done = tokio::spawn(run_guard.done("result"));
    // It retries, and the key is not released meanwhile.
    for _ in 0..20 {
        world.clock.advance(Duration::from_millis(200));
        BootClock.alarm(BootClock.now() + Duration::from_millis(2)).await;
    }
    assert!(!done.is_finished());
    assert_eq!(state(&world.other, "a").await, Some(State::Running));
    assert!(world.other.inspect("once/a").await.unwrap().holder.is_some());
    world.line.set(Line::Whole);
    soon(&world, done).await.unwrap().unwrap();
    assert_eq!(state(&world.other, "a").await, Some(State::Done));
}

/// A ledger whose row is locked for the first few claims. It counts its calls.
struct BusyLedger {
    memory: Arc<Memory>,
    left: AtomicU32,
    calls: AtomicU32,
}

impl Ledger for BusyLedger {
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        let left =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        match left {
            Ok(_) => Box::pin(async { Err(StoreError::unavailable("somebody keeps the row")) }),
            Err(_) => self.memory.claim(claim, limit),
        }
    }

    fn finish(&self, finish: Completion, limit: Moment) -> StoreCall<'_, bool> {
        self.memory.finish(finish, limit)
    }

    fn look_up(&self, names: Vec<LockName>, limit: Moment) -> StoreCall<'_, RecordsByName> {
        self.calls.fetch_add(1, Ordering::Relaxed);
        self.memory.look_up(names, limit)
    }

    fn list_records(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<RecordInfo>> {
        self.memory.list_records(prefix, limit)
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        self.memory.forget(name, token, limit)
    }
}

/// A client of such a ledger, on a store of its own.
async fn busy_ledger(world: &World, left: u32) -> (Fencepost, Arc<BusyLedger>) {
    let memory = Memory::new(Arc::new(world.clock.clone()));
    let (left, calls) = (AtomicU32::new(left), AtomicU32::new(0));
    let busy = Arc::new(BusyLedger { memory: Arc::clone(&memory), left, calls });
    let store = Store { ledger: Some(Arc::clone(&busy) as Arc<dyn Ledger>), ..Store::from(memory) };
    let clock = Arc::new(world.clock.clone());
    (Fencepost::with_backend(clock, |_| async { Ok(store) }).await.unwrap(), busy)
}

/// Two look-ups, and no attempt to lock any of them.
#[tokio::test]
async fn claims_ask_for_200_finished_keys_in_two_calls() {
    let world = world().await;
    let (client, ledger) = busy_ledger(&world, 0).await;
    let mut items: Vec<_> = (0..200).map(|number| format!("item {number}")).collect();
    for item in &items {
        claim(&client, item).await.done("").await.unwrap();
    }
    let calls = || ledger.calls.swap(0, Ordering::Relaxed);
    let token = async || {
        let guard = client.lock("tokens").acquire().await.unwrap();
        let token = guard.token().get();
        guard.release().await.unwrap();
        token
    };
    let before = token().await;
    let claims = client.claim(&items).may_repeat();
    calls();
    assert!(claims.take().await.unwrap().is_none());
    assert_eq!(calls(), 2);
    assert_eq!(claims.left().await.unwrap(), 0);
    assert_eq!(calls(), 2);
    assert_eq!(token().await, before + 1, "a finished key was locked");
    // One that is free costs what it would cost alone: the last batch, and its claim.
    items.push("free".into());
    let claims = client.claim(&items).may_repeat();
    let run_guard = claims.take().await.unwrap().unwrap();
    assert_eq!((run_guard.key(), calls()), ("free", 3 + 1));
    assert_eq!(claims.left().await.unwrap(), 1, "it is in work");
    run_guard.done("").await.unwrap();
    assert_eq!(claims.left().await.unwrap(), 0);
}

#[tokio::test]
async fn failed_claim_is_retried_until_the_limit() {
    let world = world().await;
    let (client, busy) = busy_ledger(&world, 3).await;
    soon(&world, claim(&client, "x")).await.done("").await.unwrap();
    for wait in [Duration::ZERO, Duration::from_secs(1)] {
        busy.left.store(1000, Ordering::Relaxed);
        let once = client.once("y").may_repeat().wait_timeout(wait);
        let error = soon(&world, once.begin()).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
        let tried = 1000 - busy.left.load(Ordering::Relaxed);
        assert_eq!(tried > 1, !wait.is_zero(), "{tried} times in {wait:?}");
    }
}

/// A finish that got no reply and then finds no record may have been applied.
#[tokio::test]
async fn finish_with_unknown_outcome_and_no_record_is_not_overtaken() {
    let world = world().await;
    let run_guard = claim(&world.client, "a").await;
    let (name, token) = (run_guard.guard().name().clone(), run_guard.token());
    world.line.set(Line::Refusing);
    let done = tokio::spawn(run_guard.done("result"));
    // It was sent and not answered.
    for _ in 0..20 {
        world.clock.advance(Duration::from_millis(200));
        BootClock.alarm(BootClock.now() + Duration::from_millis(2)).await;
    }
    assert!(world.memory.forget(name, token, Moment::NEVER).await.unwrap().value);
    world.line.set(Line::Whole);
    let error = soon(&world, done).await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.one_line().contains("is unknown"), "{error}");
    // Control: a single attempt learns that its record does not exist.
    let run_guard = claim(&world.client, "b").await;
    let (name, token) = (run_guard.guard().name().clone(), run_guard.token());
    assert!(world.memory.forget(name, token, Moment::NEVER).await.unwrap().value);
    let error = soon(&world, run_guard.done("result")).await.unwrap_err();
    assert_eq!(lost(&error), Some(LossCause::TakenOver));
}

#[tokio::test]
async fn cancelled_finish_is_completed() {
    let world = world().await;
    let run_guard = claim(&world.client, "a").await;
    world.line.set(Line::Silent);
    {
        // Polled once, so that it has started, and dropped.
        let mut done = pin!(run_guard.done(""));
        assert!(done.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    world.line.set(Line::Whole);
    soon(&world, world.client.close()).await;
    assert_eq!(state(&world.other, "a").await, Some(State::Done));
    assert!(world.other.inspect("once/a").await.unwrap().holder.is_none());
}

#[tokio::test]
async fn overtaken_run_cannot_finish() {
    let world = world().await;
    let paused = claim(&world.client, "a").await;
    world.line.set(Line::Refusing);
    world.clock.advance(Duration::from_secs(31));
    let next = claim(&world.other, "a").await;
    world.line.set(Line::Whole);
    assert!(next.token() > paused.token());
    let refused = soon(&world, paused.done("late")).await.unwrap_err();
    assert_eq!(lost(&refused), Some(LossCause::TakenOver));
    soon(&world, next.done("in time")).await.unwrap();
    let record = world.other.once("a").record().await.unwrap().unwrap();
    assert_eq!((record.state, &*record.result), (State::Done, &b"in time"[..]));
}

#[tokio::test]
async fn work_is_not_started_under_a_lost_lock() {
    let world = world().await;
    let guard = world.client.lock("a").acquire().await.unwrap();
    world.line.set(Line::Refusing);
    world.clock.advance(Duration::from_secs(31));
    let entered = guard.run(async { panic!("it was entered") }).await.unwrap_err();
    assert_eq!(entered.kind(), ErrorKind::Lost, "{entered}");
}

#[tokio::test]
async fn failure_is_retried_or_recorded() {
    let world = world().await;
    let retried = world.client.once("a").may_repeat();
    let fails = |_| async { Err::<&str, _>(io::Error::other("the disk is full")) };
    let error = soon(&world, retried.run(fails)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Failed);
    assert!(error.one_line().contains("the disk is full"), "{error}");
    assert_eq!(state(&world.other, "a").await, None);
    let recorded = retried.clone().on_failure(OnFailure::Record);
    soon(&world, recorded.run(fails)).await.unwrap_err();
    let works = |_| async { Ok::<_, io::Error>("fine") };
    let error = soon(&world, retried.run(works)).await.unwrap_err();
    assert!(error.one_line().contains("failed before"), "{error}");
    assert!(error.one_line().contains("the disk is full"), "{error}");
    assert!(soon(&world, retried.forget()).await.unwrap());
    assert!(soon(&world, retried.run(works)).await.unwrap().ran);
}

#[tokio::test]
async fn result_that_is_too_long_does_not_repeat_the_work() {
    let world = world().await;
    let once = world.client.once("a").may_repeat();
    let error = soon(&world, once.run(|_| async { Ok::<_, io::Error>(vec![0; 65_537]) }));
    let error = error.await.unwrap_err();
    assert!(error.one_line().contains("65537"), "{error}");
    assert_eq!(state(&world.other, "a").await, Some(State::Failed));
}

#[tokio::test]
async fn store_that_can_lose_records_is_refused() {
    let world = world().await;
    let error = world.client.once("a").begin().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.one_line().contains("memory"), "{error}");
}

#[tokio::test]
async fn callers_of_one_process_share_a_failure_and_the_next_one_retries() {
    let world = world().await;
    let tries = AtomicU32::new(0);
    let flight = world.client.single_flight("a");
    let fail = || async {
        tries.fetch_add(1, Ordering::SeqCst);
        tokio::task::yield_now().await;
        Err::<&str, _>(io::Error::other("no route"))
    };
    let both = async { tokio::join!(flight.get_or(fail), flight.get_or(fail)) };
    let (first, second) = soon(&world, both).await;
    for error in [first.unwrap_err(), second.unwrap_err()] {
        assert_eq!(error.kind(), ErrorKind::Failed);
        assert!(error.one_line().contains("no route"), "{error}");
    }
    assert_eq!(tries.load(Ordering::SeqCst), 1);
    let value = soon(&world, flight.get_or(|| async { Ok::<_, io::Error>("fine") })).await;
    assert_eq!(value.unwrap(), b"fine");
}

#[tokio::test]
async fn unpolled_caller_does_not_keep_an_old_value() {
    let world = world().await;
    let flight = world.client.single_flight("a").retain_for(Duration::from_mins(1));
    let value = |text: &'static str| {
        move || async move {
            tokio::task::yield_now().await;
            Ok::<_, io::Error>(text)
        }
    };
    // Both callers want the value, one computes it, and the other is never polled again.
    let mut first = Box::pin(flight.get_or(value("old")));
    let mut left = Box::pin(flight.get_or(value("never")));
    let mut context = Context::from_waker(Waker::noop());
    assert!(first.as_mut().poll(&mut context).is_pending());
    assert!(left.as_mut().poll(&mut context).is_pending());
    assert_eq!(soon(&world, first).await.unwrap(), b"old");
    world.clock.advance(Duration::from_mins(2));
    assert_eq!(soon(&world, flight.get_or(value("new"))).await.unwrap(), b"new");
    drop(left);
}

#[tokio::test]
async fn value_of_a_paused_computation_is_not_cached() {
    let world = world().await;
    let flight = world.client.single_flight("a").retain_for(Duration::from_secs(1));
    let compute = || async {
        world.line.set(Line::Refusing);
        world.clock.advance(Duration::from_secs(31));
        Ok::<_, io::Error>("old")
    };
    assert_eq!(soon(&world, flight.get_or(compute)).await.unwrap(), b"old", "for itself");
    world.line.set(Line::Whole);
    let value = soon(&world, flight.get_or(|| async { Ok::<_, io::Error>("new") })).await;
    assert_eq!(value.unwrap(), b"new");
}

#[tokio::test]
async fn stale_value_is_returned_while_another_computes() {
    let world = world().await;
    let flight = world.client.single_flight("a").retain_for(Duration::from_secs(10));
    let flight = flight.stale_for(Duration::from_mins(1));
    let value = |text: &'static str| move || async move { Ok::<_, io::Error>(text) };
    soon(&world, flight.get_or(value("old"))).await.unwrap();
    world.clock.advance(Duration::from_secs(11));
    let other = world.other.single_flight("a").retain_for(Duration::from_secs(10));
    let meanwhile = other.clone().stale_for(Duration::from_mins(1));
    let compute = || async {
        // While one computes, the others get the stale value, unless they accept none.
        assert_eq!(meanwhile.get_or(value("never")).await.unwrap(), b"old");
        let none = other.clone().wait_timeout(Duration::ZERO).get_or(value("never")).await;
        assert_eq!(none.unwrap_err().kind(), ErrorKind::Held);
        Ok::<_, io::Error>("new")
    };
    assert_eq!(soon(&world, flight.get_or(compute)).await.unwrap(), b"new");
    // If the computation fails, the stale value is returned again, but not forever.
    world.clock.advance(Duration::from_secs(11));
    let fail = || async { Err::<&str, _>(io::Error::other("no route")) };
    assert_eq!(soon(&world, flight.get_or(fail)).await.unwrap(), b"new");
    world.clock.advance(Duration::from_mins(2));
    soon(&world, flight.get_or(fail)).await.unwrap_err();
}

#[tokio::test]
async fn terms_are_observed_in_order_with_their_values() {
    let world = world().await;
    let (here, there) = (world.client.election("a"), world.other.election("a"));
    let mut observer = there.observe().unwrap();
    assert_eq!(observer.next().await.unwrap(), None);
    let leadership = here.campaign("one").await.unwrap();
    let text = |leader: &fencepost::Leader| leader.value.as_ref().unwrap().text().into_owned();
    let first = soon(&world, observer.next()).await.unwrap().unwrap();
    assert_eq!((first.term, &*text(&first)), (Some(leadership.term()), "one"));
    leadership.proclaim("two").await.unwrap();
    let second = soon(&world, observer.next()).await.unwrap().unwrap();
    assert_eq!((second.term, &*text(&second)), (first.term, "two"));
    let next = tokio::spawn(async move { there.campaign("three").await });
    // Resigns after the drain has ended, and not before.
    let drained = leadership.resign_after(async {
        tokio::task::yield_now().await;
        assert!(!next.is_finished());
        "drained"
    });
    assert_eq!(soon(&world, drained).await.unwrap(), "drained");
    let leadership = soon(&world, next).await.unwrap().unwrap();
    let last = loop {
        let seen = soon(&world, observer.next()).await.unwrap();
        if let Some(leader) = seen.filter(|leader| leader.term != second.term) {
            break leader;
        }
    };
    assert_eq!((last.term, &*text(&last)), (Some(leadership.term()), "three"));
    assert!(last.term > first.term);
    assert_eq!(here.leader().await.unwrap(), Some(last));
}

#[tokio::test]
async fn leading_work_is_cancelled_on_loss_and_starts_again() {
    let world = world().await;
    let terms = std::sync::Mutex::new(Vec::new());
    let election = world.client.election("a");
    let led = election.lead("me", |term| {
        let first = terms.lock().unwrap().is_empty();
        terms.lock().unwrap().push(term.number());
        let (line, clock) = (&world.line, &world.clock);
        async move {
            if first {
                line.set(Line::Refusing);
                clock.advance(Duration::from_secs(31));
                line.set(Line::Whole);
                std::future::pending::<()>().await;
            }
            term.number()
        }
    });
    let last = soon(&world, led).await.unwrap();
    let terms = terms.into_inner().unwrap();
    assert_eq!(terms.len(), 2);
    assert!(terms[0] < terms[1] && terms[1] == last, "{terms:?}");
    assert!(world.other.inspect("a").await.unwrap().holder.is_none());
}
