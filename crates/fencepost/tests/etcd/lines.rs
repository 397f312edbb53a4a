//! The connection breaks in the middle of a call, or answers stay away.
//!
//! What must hold (P6): the call is made again and finds out what became of it; nothing is granted twice,
//! nothing is lost that was not, and nothing is left behind. Leases are long and the next one is granted in
//! seconds, so what passes was undone and did not run out.

use std::sync::Arc;
use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, GuardState};
use fencepost_testkit::{
    Etcd, Mode, Proxy, Trigger, connect, fails, granted, granted_unheard, ms, nothing_is_left,
    pass, until, until_waiting, waits, within,
};

use crate::common::{SOON, kept_for, leases, line, shared};

/// So that the request for its lease can be told from others.
const SECONDS: u8 = 111;
const LONG: Duration = Duration::from_secs(SECONDS as u64);

/// A client behind a line that can be cut, and one that has its own.
struct Lines {
    etcd: Arc<Etcd>,
    proxy: Proxy,
    ours: Fencepost,
    theirs: Fencepost,
}

async fn lines() -> Lines {
    lines_to(shared()).await
}

/// To a server that nobody else uses: all leases there are ours.
async fn own_lines() -> Lines {
    lines_to(Arc::new(Etcd::builder().start().unwrap())).await
}

async fn lines_to(etcd: Arc<Etcd>) -> Lines {
    let proxy = Proxy::to(etcd.address()).unwrap();
    let ours = connect(&format!("etcd://{}", proxy.address())).await;
    let theirs = connect(&etcd.url()).await;
    Lines { etcd, proxy, ours, theirs }
}

/// What a `LeaseGrant` of [`LONG`] starts with: field 1, the TTL; field 2, the id.
const GRANT: [u8; 3] = [8, SECONDS, 16];
/// What our key holds: only the transaction that makes it has this.
const VALUE: &str = "\nfencepost 1";

/// The request for the lease is lost, its answer is; the key's request is, its answer is.
fn triggers() -> [Trigger; 4] {
    [Trigger::before(GRANT), Trigger::after(GRANT), Trigger::before(VALUE), Trigger::after(VALUE)]
}

/// A request about this lease: field 1, the id.
fn about(lease: &str) -> Vec<u8> {
    let mut rest = u64::from_str_radix(lease, 16).unwrap();
    let mut bytes = vec![8];
    while rest >= 0x80 {
        bytes.push(u8::try_from(rest & 0x7f).unwrap() | 0x80);
        rest >>= 7;
    }
    bytes.push(u8::try_from(rest).unwrap());
    bytes
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_is_cut_off_is_granted_once() {
    let Lines { etcd, proxy, ours, theirs } = lines().await;
    let name = "lines/acquire";
    let mut last = None;
    for (count, trigger) in triggers().into_iter().enumerate() {
        proxy.cut_on(trigger.clone());
        let guard = ours.lock(name).ttl(LONG).acquire_within(SOON).await.unwrap();
        assert_eq!(proxy.fired(), count + 1, "{trigger:?}");
        assert!(Some(guard.token()) > last, "{trigger:?}");
        last = Some(guard.token());
        assert_eq!(line(&etcd, name).len(), 1, "{trigger:?}");
        let shown = theirs.inspect(name).await.unwrap();
        assert_eq!(shown.holder.unwrap().token, last, "{trigger:?}");
        assert!(theirs.lock(name).try_acquire().await.unwrap().is_none(), "{trigger:?}");
        // However often it was asked for, it has no more time than it was given.
        assert!(guard.remaining() <= kept_for(&etcd, &line(&etcd, name)[0]).unwrap() + ms(1000));
        guard.release().await.unwrap();
        assert!(line(&etcd, name).is_empty(), "{trigger:?}");
        nothing_is_left(&theirs, name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_try_that_is_cut_off_is_granted_once() {
    let Lines { etcd, proxy, ours, theirs } = lines().await;
    let name = "lines/try";
    for (count, trigger) in triggers().into_iter().enumerate() {
        proxy.cut_on(trigger.clone());
        let guard = ours.lock(name).ttl(LONG).try_acquire().await.unwrap();
        assert_eq!(proxy.fired(), count + 1, "{trigger:?}");
        assert_eq!(line(&etcd, name).len(), 1, "{trigger:?}");
        drop(guard.expect("it was free, and what the first try got is ours"));
        nothing_is_left(&theirs, name).await;
    }
}

/// One that has to queue up: it stands in line once, and is granted in its turn.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_waiter_that_is_cut_off_stands_in_line_once() {
    let Lines { etcd, proxy, ours, theirs } = lines().await;
    let name = "lines/queue";
    for (count, trigger) in triggers().into_iter().enumerate() {
        let holder = theirs.lock(name).ttl(LONG).acquire_within(SOON).await.unwrap();
        proxy.cut_on(trigger.clone());
        let waiter = waits(&ours, name, LONG);
        until("the call was cut", async || proxy.fired() == count + 1).await;
        until_waiting(&theirs, name, 1).await;
        // And its watch is cut as well.
        proxy.close_all();
        assert!(!waiter.is_finished(), "{trigger:?}");
        assert_eq!(line(&etcd, name).len(), 2, "{trigger:?}");
        let token = holder.token();
        holder.release().await.unwrap();
        let next = granted(waiter).await;
        assert!(next.token() > token, "{trigger:?}");
        assert_eq!(line(&etcd, name).len(), 1, "{trigger:?}");
        next.release().await.unwrap();
    }
}

/// redis-py#3847, redsync: the acquire was carried out, nobody heard of it, and the lock was left to its TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_was_carried_out_unheard_is_undone() {
    let Lines { etcd, proxy, ours, theirs } = own_lines().await;
    let name = "lines/unheard";
    proxy.set_mode(Mode::DropAnswers);
    let unheard = ours.lock(name).ttl(LONG).acquire_within(ms(2500));
    let mut lease = None;
    let made = until("its lease is made", async || {
        lease = leases(&etcd).pop();
        lease.is_some()
    });
    let (outcome, ()) = tokio::join!(unheard, made);
    fails(outcome, &ErrorKind::Unreachable, &["etcd", &proxy.address().to_string()]);
    let lease = lease.unwrap();
    // And the way back is blocked for a while.
    proxy.set_mode(Mode::Refuse);
    let tries = proxy.accepted();
    until("the client tries to connect", async || proxy.accepted() > tries).await;
    proxy.set_mode(Mode::Pass);
    nothing_is_left(&theirs, name).await;
    within(SOON, "the client settles everything", ours.close()).await;
    assert!(line(&etcd, name).is_empty(), "nothing came later");
    assert_eq!(kept_for(&etcd, &lease), None);
}

/// sqlx#4198, rslock#30: the caller went away at just that moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_is_dropped_unheard_leaves_nothing() {
    let Lines { etcd, proxy, ours, theirs } = own_lines().await;
    let name = "lines/dropped";
    for mode in [Mode::DropAnswers, Mode::DropRequests, Mode::Silent] {
        proxy.set_mode(mode);
        let acquire = waits(&ours, name, LONG);
        match mode {
            Mode::DropAnswers => {
                until("its lease is made", async || !leases(&etcd).is_empty()).await;
            }
            // It is under way, which nobody can see.
            _ => pass(ms(100)).await,
        }
        acquire.abort();
        assert!(acquire.await.unwrap_err().is_cancelled());
        proxy.set_mode(Mode::Pass);
        until(&format!("{mode:?}: it is free"), async || {
            theirs.inspect(name).await.unwrap().holder.is_none()
        })
        .await;
        nothing_is_left(&theirs, name).await;
        until("no lease is left either", async || leases(&etcd).is_empty()).await;
    }
    within(SOON, "the client settles everything", ours.close()).await;
    assert!(line(&etcd, name).is_empty(), "nothing came later");
}

/// The acquire stood in the network until its release was long done: then its lease runs out, and no later.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_acquire_that_comes_after_its_release_runs_out() {
    let Lines { etcd, proxy, ours, theirs } = lines().await;
    let name = "lines/late";
    proxy.set_mode(Mode::DropRequests);
    let outcome = ours.lock(name).ttl(Duration::from_secs(2)).acquire_within(ms(300)).await;
    fails(outcome, &ErrorKind::Unreachable, &["etcd"]);
    within(SOON, "the client gives up", ours.close()).await;
    proxy.set_mode(Mode::Pass);
    let next = theirs.lock(name).ttl(LONG).acquire_within(SOON).await.unwrap();
    assert_eq!(line(&etcd, name).len(), 1);
    next.release().await.unwrap();
}

/// curator#980: a release that was hit by the loss of its connection left its node behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_cut_off_is_a_release() {
    let Lines { etcd, proxy, ours, theirs } = lines().await;
    let name = "lines/release";
    for (count, after) in [false, true].into_iter().enumerate() {
        let guard = ours.lock(name).ttl(LONG).acquire_within(SOON).await.unwrap();
        let lease = line(&etcd, name)[0].clone();
        let pattern = about(&lease);
        proxy.cut_on(if after { Trigger::after(pattern) } else { Trigger::before(pattern) });
        let outcome = within(SOON, "the release comes back", guard.release()).await;
        assert!(outcome.is_ok(), "after: {after}: {outcome:?}");
        assert_eq!(proxy.fired(), count + 1, "after: {after}");
        assert!(line(&etcd, name).is_empty(), "after: {after}");
        assert_eq!(kept_for(&etcd, &lease), None, "after: {after}");
        nothing_is_left(&theirs, name).await;
    }
}

/// The same with somebody waiting: when the release is asked for again somebody else has the lock. That is no
/// loss: the guard was held when it was released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_release_that_is_cut_off_with_a_waiter_is_a_release() {
    let Lines { etcd, proxy, ours, theirs } = lines().await;
    let name = "lines/release/waiter";
    let guard = ours.lock(name).ttl(LONG).acquire().await.unwrap();
    let token = guard.token();
    let waiter = waits(&theirs, name, LONG);
    until_waiting(&theirs, name, 1).await;
    proxy.cut_on(Trigger::after(about(&line(&etcd, name)[0])));
    let (outcome, next) = tokio::join!(guard.release(), granted_unheard(&proxy, waiter));
    assert!(outcome.is_ok(), "it was released, and only then given to the next: {outcome:?}");
    next.check().unwrap();
    assert!(next.token() > token);
    assert_eq!(theirs.inspect(name).await.unwrap().holder.unwrap().token, Some(next.token()));
}

/// dynamolock#280, pglock#175: the renewal was applied, its answer lost, and the lock declared lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewal_that_is_cut_off_is_no_loss() {
    let Lines { etcd, proxy, ours, theirs } = lines().await;
    let name = "lines/renewal";
    let guard = ours.lock(name).ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let lease = line(&etcd, name)[0].clone();
    // The keep-alive, and the read that proves it.
    let patterns = [about(&lease), format!("{name}/{lease}").into_bytes()];
    let each = patterns
        .into_iter()
        .flat_map(|pattern| [Trigger::before(pattern.clone()), Trigger::after(pattern)]);
    for (count, trigger) in each.enumerate() {
        proxy.cut_on(trigger.clone());
        until("a renewal is cut", async || proxy.fired() == count + 1).await;
        let before = guard.deadline();
        until("it is renewed all the same", async || {
            guard.check().expect("the guard is not lost");
            guard.deadline() > before
        })
        .await;
        until("it is held", async || guard.state() == GuardState::Held).await;
        assert!(theirs.lock(name).try_acquire().await.unwrap().is_none(), "{trigger:?}");
    }
    guard.release().await.unwrap();
}

/// A line that flaps: each call has to get through within its patience, however often it is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn locks_are_taken_and_released_over_a_line_that_flaps() {
    let Lines { etcd, proxy, ours, theirs } = lines().await;
    let name = "lines/flaps";
    let mut last = None;
    for _ in 0..8 {
        for trigger in triggers() {
            proxy.cut_on(trigger);
        }
        let guard = ours.lock(name).ttl(LONG).acquire_within(SOON).await.unwrap();
        assert!(Some(guard.token()) > last, "{} after {last:?}", guard.token());
        last = Some(guard.token());
        assert_eq!(line(&etcd, name).len(), 1);
        guard.release().await.unwrap();
    }
    assert!(proxy.fired() >= 16, "{}", proxy.fired());
    nothing_is_left(&theirs, name).await;
}
