//! Once per key, single flight and elections in one process, on a clock that moves only when told to: what
//! happens between two steps of theirs. What stores must do is in the conformance suite.

#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this file is a test")]

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use fencepost::backend::{Store, StoreCall, StoreError};
use fencepost::backends::memory::Memory;
use fencepost::clock::{BootClock, Clock, ManualClock};
use fencepost::ledger::{Claim, Claimed, Entry, Finish, State};
use fencepost::{
    Begun, ErrorKind, Fencepost, Ledger, LockName, LossCause, Moment, OnFailure, Token, Turn,
};
use fencepost_conformance::{Line, Severable};

/// A client whose line to the store can be cut, another that is never cut, and the clock of both.
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
        Fencepost::over(Arc::new(clock.clone()), |_| async { Ok(store) }).await.unwrap()
    };
    let (client, other) = (connect(cut).await, connect(Store::from(Arc::clone(&memory))).await);
    World { clock, line, client, other, memory }
}

/// What the future gives, while time goes on; a test that would hang fails instead.
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

async fn ours(client: &Fencepost, key: &str) -> Turn {
    match client.once(key).may_repeat().begin().await.unwrap() {
        Begun::Ours(turn) => turn,
        Begun::Settled(entry) => panic!("{entry:?}"),
    }
}

async fn state(client: &Fencepost, key: &str) -> Option<State> {
    client.once(key).entry().await.unwrap().map(|entry| entry.state)
}

#[tokio::test]
async fn what_outlives_its_guard_is_told() {
    let world = world().await;
    let guard = world.client.lock("a").acquire().await.unwrap();
    let standing = guard.standing();
    let for_ever = tokio::spawn({
        let standing = standing.clone();
        async move { standing.run(std::future::pending::<()>()).await }
    });
    standing.check().unwrap();
    guard.release().await.unwrap();
    assert_eq!(*standing.check().unwrap_err().kind(), ErrorKind::Lost(LossCause::Released));
    let ended = soon(&world, for_ever).await.unwrap().unwrap_err();
    assert_eq!(*ended.kind(), ErrorKind::Lost(LossCause::Released));
}

#[tokio::test]
async fn a_store_that_is_away_for_a_moment_does_not_repeat_the_work() {
    let world = world().await;
    let turn = ours(&world.client, "a").await;
    world.line.set(Line::Refusing);
    let done = tokio::spawn(turn.done("result"));
    // It tries again, and the key is not let go meanwhile.
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

/// The records of a store, which can not be claimed a few times: somebody keeps the row.
struct Busy {
    memory: Arc<Memory>,
    left: AtomicU32,
}

impl Ledger for Busy {
    fn claim(&self, claim: Claim, limit: Moment) -> StoreCall<'_, Claimed> {
        let left =
            self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |n| n.checked_sub(1));
        match left {
            Ok(_) => Box::pin(async { Err(StoreError::unavailable("somebody keeps the row")) }),
            Err(_) => self.memory.claim(claim, limit),
        }
    }

    fn finish(&self, finish: Finish, limit: Moment) -> StoreCall<'_, bool> {
        self.memory.finish(finish, limit)
    }

    fn look_up(&self, name: LockName, limit: Moment) -> StoreCall<'_, Option<Entry>> {
        self.memory.look_up(name, limit)
    }

    fn entries(&self, prefix: &str, limit: Moment) -> StoreCall<'_, Vec<Entry>> {
        self.memory.entries(prefix, limit)
    }

    fn forget(&self, name: LockName, token: Token, limit: Moment) -> StoreCall<'_, bool> {
        self.memory.forget(name, token, limit)
    }
}

#[tokio::test]
async fn a_claim_that_fails_is_made_again_while_there_is_time() {
    let world = world().await;
    let memory = Memory::new(Arc::new(world.clock.clone()));
    let busy = Arc::new(Busy { memory: Arc::clone(&memory), left: AtomicU32::new(3) });
    let store = Store { ledger: Some(Arc::clone(&busy) as Arc<dyn Ledger>), ..Store::from(memory) };
    let clock = Arc::new(world.clock.clone());
    let client = Fencepost::over(clock, |_| async { Ok(store) }).await.unwrap();
    soon(&world, ours(&client, "x")).await.done("").await.unwrap();
    for wait in [Duration::ZERO, Duration::from_secs(1)] {
        busy.left.store(1000, Ordering::Relaxed);
        let once = client.once("y").may_repeat().wait_at_most(wait);
        let error = soon(&world, once.begin()).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
        let tried = 1000 - busy.left.load(Ordering::Relaxed);
        assert_eq!(tried > 1, !wait.is_zero(), "{tried} times in {wait:?}");
    }
}

/// Of a mark that was not answered and then meets no record nobody knows whether it was made.
#[tokio::test]
async fn a_mark_in_doubt_whose_record_has_gone_is_not_told_as_overtaken() {
    let world = world().await;
    let turn = ours(&world.client, "a").await;
    let (name, token) = (turn.name().clone(), turn.token());
    world.line.set(Line::Refusing);
    let done = tokio::spawn(turn.done("result"));
    // It has begun, and was not answered.
    for _ in 0..20 {
        world.clock.advance(Duration::from_millis(200));
        BootClock.alarm(BootClock.now() + Duration::from_millis(2)).await;
    }
    assert!(world.memory.forget(name, token, Moment::NEVER).await.unwrap().value);
    world.line.set(Line::Whole);
    let error = soon(&world, done).await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("nobody knows"), "{error}");
    // The control: asked but once, it is told that there is no record of its own.
    let turn = ours(&world.client, "b").await;
    let (name, token) = (turn.name().clone(), turn.token());
    assert!(world.memory.forget(name, token, Moment::NEVER).await.unwrap().value);
    let error = soon(&world, turn.done("result")).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Lost(LossCause::TakenOver));
}

#[tokio::test]
async fn a_cancelled_mark_is_made_all_the_same() {
    let world = world().await;
    let turn = ours(&world.client, "a").await;
    world.line.set(Line::Silent);
    {
        // Polled once, so that it has begun, and dropped.
        let mut done = pin!(turn.done(""));
        assert!(done.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
    }
    world.line.set(Line::Whole);
    soon(&world, world.client.close()).await;
    assert_eq!(state(&world.other, "a").await, Some(State::Done));
    assert!(world.other.inspect("once/a").await.unwrap().holder.is_none());
}

#[tokio::test]
async fn one_that_was_overtaken_can_not_mark_it() {
    let world = world().await;
    let paused = ours(&world.client, "a").await;
    world.line.set(Line::Refusing);
    world.clock.advance(Duration::from_secs(31));
    let next = ours(&world.other, "a").await;
    world.line.set(Line::Whole);
    assert!(next.token() > paused.token());
    let refused = soon(&world, paused.done("late")).await.unwrap_err();
    assert_eq!(*refused.kind(), ErrorKind::Lost(LossCause::TakenOver));
    soon(&world, next.done("in time")).await.unwrap();
    let entry = world.other.once("a").entry().await.unwrap().unwrap();
    assert_eq!((entry.state, &*entry.result), (State::Done, &b"in time"[..]));
}

#[tokio::test]
async fn work_is_not_entered_under_a_lost_lock() {
    let world = world().await;
    let guard = world.client.lock("a").acquire().await.unwrap();
    world.line.set(Line::Refusing);
    world.clock.advance(Duration::from_secs(31));
    let entered = guard.run(async { panic!("it was entered") }).await.unwrap_err();
    assert!(matches!(entered.kind(), ErrorKind::Lost(_)), "{entered}");
}

#[tokio::test]
async fn a_failure_is_tried_again_or_recorded() {
    let world = world().await;
    let retried = world.client.once("a").may_repeat();
    let fails = |_| async { Err::<&str, _>(io::Error::other("the disk is full")) };
    let error = soon(&world, retried.run(fails)).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Failed);
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert_eq!(state(&world.other, "a").await, None);
    let recorded = retried.clone().on_failure(OnFailure::Record);
    soon(&world, recorded.run(fails)).await.unwrap_err();
    let works = |_| async { Ok::<_, io::Error>("fine") };
    let error = soon(&world, retried.run(works)).await.unwrap_err();
    assert!(error.to_string().contains("failed before"), "{error}");
    assert!(error.to_string().contains("the disk is full"), "{error}");
    assert!(soon(&world, retried.forget()).await.unwrap());
    assert!(soon(&world, retried.run(works)).await.unwrap().ran);
}

#[tokio::test]
async fn a_result_that_is_too_long_does_not_repeat_the_work() {
    let world = world().await;
    let once = world.client.once("a").may_repeat();
    let error = soon(&world, once.run(|_| async { Ok::<_, io::Error>(vec![0; 65_537]) }));
    let error = error.await.unwrap_err();
    assert!(error.to_string().contains("65537"), "{error}");
    assert_eq!(state(&world.other, "a").await, Some(State::Failed));
}

#[tokio::test]
async fn a_store_that_may_lose_records_is_refused() {
    let world = world().await;
    let error = world.client.once("a").begin().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("memory"), "{error}");
}

#[tokio::test]
async fn callers_of_one_process_share_a_failure_and_the_next_one_tries() {
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
        assert_eq!(*error.kind(), ErrorKind::Failed);
        assert!(error.to_string().contains("no route"), "{error}");
    }
    assert_eq!(tries.load(Ordering::SeqCst), 1);
    let value = soon(&world, flight.get_or(|| async { Ok::<_, io::Error>("fine") })).await;
    assert_eq!(value.unwrap(), b"fine");
}

#[tokio::test]
async fn one_who_is_not_polled_any_more_does_not_keep_an_old_value_alive() {
    let world = world().await;
    let flight = world.client.single_flight("a").keep(Duration::from_mins(1));
    let value = |text: &'static str| {
        move || async move {
            tokio::task::yield_now().await;
            Ok::<_, io::Error>(text)
        }
    };
    // Both want it, one of them computes, and the other is never asked again.
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
async fn one_who_was_paused_while_computing_does_not_pass_its_value_for_fresh() {
    let world = world().await;
    let flight = world.client.single_flight("a").keep(Duration::from_secs(1));
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
async fn an_old_value_will_do_while_one_computes_if_the_caller_says_so() {
    let world = world().await;
    let flight = world.client.single_flight("a").keep(Duration::from_secs(10));
    let flight = flight.stale_for(Duration::from_mins(1));
    let value = |text: &'static str| move || async move { Ok::<_, io::Error>(text) };
    soon(&world, flight.get_or(value("old"))).await.unwrap();
    world.clock.advance(Duration::from_secs(11));
    let other = world.other.single_flight("a").keep(Duration::from_secs(10));
    let meanwhile = other.clone().stale_for(Duration::from_mins(1));
    let compute = || async {
        // Somebody is at it: the others take the old one, but not one who wants none.
        assert_eq!(meanwhile.get_or(value("never")).await.unwrap(), b"old");
        let none = other.clone().wait_at_most(Duration::ZERO).get_or(value("never")).await;
        assert!(matches!(none.unwrap_err().kind(), ErrorKind::Held(_)));
        Ok::<_, io::Error>("new")
    };
    assert_eq!(soon(&world, flight.get_or(compute)).await.unwrap(), b"new");
    // And if it can not be computed, the old one will do once more; but not for ever.
    world.clock.advance(Duration::from_secs(11));
    let fail = || async { Err::<&str, _>(io::Error::other("no route")) };
    assert_eq!(soon(&world, flight.get_or(fail)).await.unwrap(), b"new");
    world.clock.advance(Duration::from_mins(2));
    soon(&world, flight.get_or(fail)).await.unwrap_err();
}

#[tokio::test]
async fn terms_are_told_in_order_and_values_within_them() {
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
    // Steps down when it has drained, and not before.
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
async fn work_that_leads_is_cancelled_on_loss_and_begins_anew() {
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
