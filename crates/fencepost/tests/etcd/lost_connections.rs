//! The connection fails during a call, or replies are lost.
//!
//! What must hold (P6): the retry finds the result of the first request; nothing is granted twice, no guard is lost,
//! nothing is left behind. Leases are long and the next grant takes seconds, so the test only passes if the call was
//! undone and did not expire.

use std::sync::Arc;
use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, GuardStatus};
use fencepost_testkit::{
    Etcd, Mode, Proxy, Trigger, connect, fails, granted, granted_without_reply, ms,
    nothing_is_left, pass, until, until_waiting, waits, within,
};

use crate::common::{SOON, leases, queue, remaining_ttl, shared};

/// A TTL that identifies the request for its lease.
const SECONDS: u8 = 111;
const LONG: Duration = Duration::from_secs(SECONDS as u64);

/// A client behind a fault proxy, and one without.
struct Fixture {
    etcd: Arc<Etcd>,
    proxy: Proxy,
    ours: Fencepost,
    theirs: Fencepost,
}

async fn fixture() -> Fixture {
    fixture_with(shared()).await
}

/// With a server of its own: all leases there belong to the test.
async fn fixture_with_own_server() -> Fixture {
    fixture_with(Arc::new(Etcd::builder().start().unwrap())).await
}

async fn fixture_with(etcd: Arc<Etcd>) -> Fixture {
    let proxy = Proxy::to(etcd.address()).unwrap();
    let ours = connect(&format!("etcd://{}", proxy.address())).await;
    let theirs = connect(&etcd.url()).await;
    Fixture { etcd, proxy, ours, theirs }
}

/// The first bytes of a `LeaseGrant` of [`LONG`]: field 1, the TTL; field 2, the id.
const GRANT: [u8; 3] = [8, SECONDS, 16];
/// Part of our key's value: only the transaction that creates the key contains it.
const VALUE: &str = "\nfencepost 1";

/// The lease request or its reply is lost; the key request or its reply is lost.
fn triggers() -> [Trigger; 4] {
    [Trigger::before(GRANT), Trigger::after(GRANT), Trigger::before(VALUE), Trigger::after(VALUE)]
}

/// A request that names this lease in field 1.
fn names_lease(lease: &str) -> Vec<u8> {
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
async fn acquire_whose_connection_is_lost_is_granted_once() {
    let Fixture { etcd, proxy, ours, theirs } = fixture().await;
    let name = "lines/acquire";
    let mut last = None;
    for (count, trigger) in triggers().into_iter().enumerate() {
        proxy.cut_on(trigger.clone());
        let guard = ours.lock(name).ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        assert_eq!(proxy.fired(), count + 1, "{trigger:?}");
        assert!(Some(guard.token()) > last, "{trigger:?}");
        last = Some(guard.token());
        assert_eq!(queue(&etcd, name).len(), 1, "{trigger:?}");
        let shown = theirs.inspect(name).await.unwrap();
        assert_eq!(shown.holder.unwrap().token, last, "{trigger:?}");
        assert!(theirs.lock(name).try_acquire().await.unwrap().is_none(), "{trigger:?}");
        // Retries do not extend the lease.
        assert!(
            guard.remaining() <= remaining_ttl(&etcd, &queue(&etcd, name)[0]).unwrap() + ms(1000)
        );
        guard.release().await.unwrap();
        assert!(queue(&etcd, name).is_empty(), "{trigger:?}");
        nothing_is_left(&theirs, name).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn try_acquire_whose_connection_is_lost_is_granted_once() {
    let Fixture { etcd, proxy, ours, theirs } = fixture().await;
    let name = "lines/try";
    for (count, trigger) in triggers().into_iter().enumerate() {
        proxy.cut_on(trigger.clone());
        let guard = ours.lock(name).ttl(LONG).try_acquire().await.unwrap();
        assert_eq!(proxy.fired(), count + 1, "{trigger:?}");
        assert_eq!(queue(&etcd, name).len(), 1, "{trigger:?}");
        drop(guard.expect("it was free, and what the first try got is ours"));
        nothing_is_left(&theirs, name).await;
    }
}

/// A waiter has one position, and is granted in order.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_connection_is_lost_has_one_position() {
    let Fixture { etcd, proxy, ours, theirs } = fixture().await;
    let name = "lines/queue";
    for (count, trigger) in triggers().into_iter().enumerate() {
        let holder = theirs.lock(name).ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        proxy.cut_on(trigger.clone());
        let waiter = waits(&ours, name, LONG);
        until("the call was cut", async || proxy.fired() == count + 1).await;
        until_waiting(&theirs, name, 1).await;
        // Its watch is cut as well.
        proxy.close_all();
        assert!(!waiter.is_finished(), "{trigger:?}");
        assert_eq!(queue(&etcd, name).len(), 2, "{trigger:?}");
        let token = holder.token();
        holder.release().await.unwrap();
        let next = granted(waiter).await;
        assert!(next.token() > token, "{trigger:?}");
        assert_eq!(queue(&etcd, name).len(), 1, "{trigger:?}");
        next.release().await.unwrap();
    }
}

/// The lease of the position is older than the request that found it, so a grant must not count from that request.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn waiter_whose_lease_was_granted_without_a_reply_claims_no_more_than_the_store_keeps() {
    let Fixture { etcd, proxy, ours, theirs } = fixture_with_own_server().await;
    let name = "lines/old-lease";
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    let before = leases(&etcd).len();
    proxy.set_mode(Mode::DropAnswers);
    let waiter = waits(&ours, name, LONG);
    until("the lease is granted", async || leases(&etcd).len() > before).await;
    // So much older that whole seconds show it.
    pass(ms(2500)).await;
    proxy.set_mode(Mode::Refuse);
    until("the connection is cut", async || proxy.connections() == 0).await;
    proxy.set_mode(Mode::Pass);
    until_waiting(&theirs, name, 1).await;
    holder.release().await.unwrap();
    let next = granted(waiter).await;
    let (claimed, kept) = (next.remaining(), remaining_ttl(&etcd, &queue(&etcd, name)[0]).unwrap());
    assert!(claimed <= kept + ms(1000), "claims {claimed:?} of {kept:?}");
    next.release().await.unwrap();
}

/// redis-py#3847, redsync: the acquire was applied, its reply was lost, and the lock stayed until its TTL.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_that_was_applied_without_a_reply_is_undone() {
    let Fixture { etcd, proxy, ours, theirs } = fixture_with_own_server().await;
    let name = "lines/unheard";
    proxy.set_mode(Mode::DropAnswers);
    let unheard = ours.lock(name).ttl(LONG).wait_timeout(ms(2500)).acquire();
    let mut lease = None;
    let made = until("its lease is made", async || {
        lease = leases(&etcd).pop();
        lease.is_some()
    });
    let (outcome, ()) = tokio::join!(unheard, made);
    fails(outcome, ErrorKind::Unreachable, &["etcd", &proxy.address().to_string()]);
    let lease = lease.unwrap();
    // The client cannot reconnect for a while.
    proxy.set_mode(Mode::Refuse);
    let tries = proxy.accepted();
    until("the client tries to connect", async || proxy.accepted() > tries).await;
    proxy.set_mode(Mode::Pass);
    nothing_is_left(&theirs, name).await;
    within(SOON, "the client closes", ours.close()).await;
    assert!(queue(&etcd, name).is_empty(), "nothing came later");
    assert_eq!(remaining_ttl(&etcd, &lease), None);
}

/// sqlx#4198, rslock#30: the caller was cancelled at that moment.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_acquire_without_a_reply_leaves_nothing() {
    let Fixture { etcd, proxy, ours, theirs } = fixture_with_own_server().await;
    let name = "lines/dropped";
    for mode in [Mode::DropAnswers, Mode::DropRequests, Mode::Silent] {
        proxy.set_mode(mode);
        let acquire = waits(&ours, name, LONG);
        match mode {
            Mode::DropAnswers => {
                until("its lease is made", async || !leases(&etcd).is_empty()).await;
            }
            // The request is in flight, which cannot be observed.
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
    within(SOON, "the client closes", ours.close()).await;
    assert!(queue(&etcd, name).is_empty(), "nothing came later");
}

/// The acquire arrives long after its release. Its lease then expires by itself.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acquire_that_arrives_after_its_release_expires() {
    let Fixture { etcd, proxy, ours, theirs } = fixture().await;
    let name = "lines/late";
    proxy.set_mode(Mode::DropRequests);
    let outcome = ours.lock(name).ttl(Duration::from_secs(2)).wait_timeout(ms(300)).acquire().await;
    fails(outcome, ErrorKind::Unreachable, &["etcd"]);
    within(SOON, "the client gives up", ours.close()).await;
    proxy.set_mode(Mode::Pass);
    let next = theirs.lock(name).ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    assert_eq!(queue(&etcd, name).len(), 1);
    next.release().await.unwrap();
}

/// curator#980: a release that lost its connection left its node behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_whose_connection_is_lost_releases() {
    let Fixture { etcd, proxy, ours, theirs } = fixture().await;
    let name = "lines/release";
    for (count, after) in [false, true].into_iter().enumerate() {
        let guard = ours.lock(name).ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        let lease = queue(&etcd, name)[0].clone();
        let pattern = names_lease(&lease);
        proxy.cut_on(if after { Trigger::after(pattern) } else { Trigger::before(pattern) });
        let outcome = within(SOON, "the release comes back", guard.release()).await;
        assert!(outcome.is_ok(), "after: {after}: {outcome:?}");
        assert_eq!(proxy.fired(), count + 1, "after: {after}");
        assert!(queue(&etcd, name).is_empty(), "after: {after}");
        assert_eq!(remaining_ttl(&etcd, &lease), None, "after: {after}");
        nothing_is_left(&theirs, name).await;
    }
}

/// The same with a waiter: when the release is retried, another client has the lock. That is no loss, because the
/// guard was held when it was released.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn release_whose_connection_is_lost_with_a_waiter_releases() {
    // The server ends with its last handle: a pattern with `..` would drop it here.
    let Fixture { etcd: _server, proxy, ours, theirs } = fixture().await;
    let name = "lines/release/waiter";
    let guard = ours.lock(name).ttl(LONG).acquire().await.unwrap();
    let token = guard.token();
    let waiter = waits(&theirs, name, LONG);
    until_waiting(&theirs, name, 1).await;
    proxy.set_mode(Mode::DropAnswers);
    let (outcome, next) = tokio::join!(guard.release(), granted_without_reply(&proxy, waiter));
    assert!(outcome.is_ok(), "it was released, and only then given to the next: {outcome:?}");
    next.check().unwrap();
    assert!(next.token() > token);
    assert_eq!(theirs.inspect(name).await.unwrap().holder.unwrap().token, Some(next.token()));
}

/// dynamolock#280, pglock#175: the renewal was applied, its reply was lost, and the lock was declared lost.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_whose_connection_is_lost_does_not_lose_the_guard() {
    let Fixture { etcd, proxy, ours, theirs } = fixture().await;
    let name = "lines/renewal";
    let guard = ours.lock(name).ttl(Duration::from_secs(3)).acquire().await.unwrap();
    let lease = queue(&etcd, name)[0].clone();
    // The keep-alive, and the read that proves it.
    let patterns = [names_lease(&lease), format!("{name}/{lease}").into_bytes()];
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
        until("it is held", async || guard.status() == GuardStatus::Held).await;
        assert!(theirs.lock(name).try_acquire().await.unwrap().is_none(), "{trigger:?}");
    }
    guard.release().await.unwrap();
}

/// Each call must succeed within its timeout, however often its connection is cut.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn flapping_connection_grants_and_releases() {
    let Fixture { etcd, proxy, ours, theirs } = fixture().await;
    let name = "lines/flaps";
    let mut last = None;
    for _ in 0..8 {
        for trigger in triggers() {
            proxy.cut_on(trigger);
        }
        let guard = ours.lock(name).ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        assert!(Some(guard.token()) > last, "{} after {last:?}", guard.token());
        last = Some(guard.token());
        assert_eq!(queue(&etcd, name).len(), 1);
        guard.release().await.unwrap();
    }
    assert!(proxy.fired() >= 16, "{}", proxy.fired());
    nothing_is_left(&theirs, name).await;
}
