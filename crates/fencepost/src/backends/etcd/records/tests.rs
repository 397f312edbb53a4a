//! Steps whose connection breaks in the worst moment, on a real etcd behind a line that can be cut.

use fencepost_core::Label;
use fencepost_testkit::{Etcd as Server, Mode, Proxy, Trigger};
use futures_util::FutureExt as _;
use tokio::task::JoinHandle;

use super::*;
use crate::backends::etcd::testing::open;
use crate::clock::{BootClock, Clock as _};
use crate::error::{ErrorKind, Result};
use crate::ledger::{Outcome, Over};
use crate::retry::CALL_TIMEOUT;

const SOON: Duration = Duration::from_secs(15);

async fn claim(etcd: &Etcd, number: u64) -> Result<Claimed> {
    Ok(etcd.claim(claim_of(number), BootClock.now() + SOON).await?.value)
}

async fn finish(etcd: &Etcd, finish: Finish) -> Result<bool> {
    Ok(etcd.finish(finish, BootClock.now() + SOON).await?.value)
}

/// The same in the background, by this limit.
fn finishing(etcd: &Arc<Etcd>, finish: Finish, within: Duration) -> JoinHandle<Result<bool>> {
    let etcd = Arc::clone(etcd);
    tokio::spawn(async move { Ok(etcd.finish(finish, BootClock.now() + within).await?.value) })
}

fn claiming(etcd: &Arc<Etcd>, number: u64, within: Duration) -> JoinHandle<Result<Claimed>> {
    let (etcd, claim) = (Arc::clone(etcd), claim_of(number));
    tokio::spawn(async move { Ok(etcd.claim(claim, BootClock.now() + within).await?.value) })
}

async fn forget(etcd: &Etcd, number: u64) -> bool {
    let Claim { name, token, .. } = claim_of(number);
    etcd.forget(name, token, BootClock.now() + SOON).await.unwrap().value
}

async fn look_up(etcd: &Etcd) -> Entry {
    let limit = BootClock.now() + SOON;
    etcd.look_up(claim_of(1).name, limit).await.unwrap().value.unwrap()
}

/// Resolves once nothing runs that a caller left to the client.
async fn drained(etcd: &Etcd) {
    etcd.0.around.tasks.close();
    etcd.0.around.tasks.wait().await;
}

/// A server, a line to it, and a client at either.
async fn scene() -> (Server, Proxy, Arc<Etcd>, Arc<Etcd>) {
    let server = Server::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let (slow, quick) = (open(proxy.address()).await, open(server.address()).await);
    (server, proxy, slow, quick)
}

async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = BootClock.now() + SOON;
    while !holds().await {
        assert!(BootClock.now() < end, "not within {SOON:?}: {what}");
        BootClock.alarm(BootClock.now() + Duration::from_millis(5)).await;
    }
}

fn claim_of(number: u64) -> Claim {
    Claim {
        name: LockName::new("once/a").unwrap(),
        token: Token::new(number).unwrap(),
        label: Label::new("me").unwrap(),
        keep: Duration::from_hours(1),
    }
}

fn finish_of(number: u64, outcome: Outcome) -> Finish {
    let Claim { name, token, label, keep } = claim_of(number);
    Finish { name, token, label, outcome, keep, over: Over::OwnClaim }
}

fn done(number: u64) -> Finish {
    finish_of(number, Outcome::Done(b"x".to_vec()))
}

/// Has the line go silent when this request comes; it is not heard, or its answer is not.
async fn stand_still_at(proxy: &Proxy, first: fn(Vec<u8>) -> Trigger, request: &[u8]) {
    let fired = proxy.fired();
    proxy.cut_on(first(request.to_vec()));
    // It is tried again soon: until we have said that the line is silent, it is cut again.
    for _ in 0..3 {
        proxy.cut_on(Trigger::before(request.to_vec()));
    }
    until("the request comes", async || proxy.fired() > fired).await;
    proxy.set_mode(Mode::Silent);
}

/// How a message names a lease, in its field 1.
fn about(lease: i64) -> Vec<u8> {
    let mut bytes = vec![0x08];
    let mut left = lease.cast_unsigned();
    while left >= 0x80 {
        bytes.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes
}

/// How a request deletes the record: field 3 of an operation, with the key as its field 1.
fn deletion() -> Vec<u8> {
    let key = b"fencepost.once/once/a.";
    let length = u8::try_from(key.len()).unwrap();
    [&[0x1a, length + 2, 0x0a, length], &key[..]].concat()
}

async fn leases(server: &Server, count: usize) {
    until("only as many leases are there", async || {
        let list = server.etcdctl(&["lease", "list"]).unwrap();
        list.lines().filter(|line| !line.starts_with("found")).count() == count
    })
    .await;
}

/// Between the two looks of a claim the record is forgotten, and somebody else runs: it is settled no more.
async fn settled_and_claimed_anew(others: u64, claimed: Claimed) {
    let (server, proxy, slow, quick) = scene().await;
    let name = claim_of(1).name;
    assert_eq!(claim(&quick, 1).await.unwrap(), Claimed::Ours);
    assert!(finish(&quick, done(1)).await.unwrap());
    let limit = quick.0.now() + SOON;
    let lease = seen(&quick.0, &name, limit).await.unwrap().lease;
    let claiming = claiming(&slow, 3, SOON);
    stand_still_at(&proxy, Trigger::before, &about(lease)).await;
    assert!(forget(&quick, 1).await);
    drained(&quick).await;
    assert_eq!(claim(&quick, others).await.unwrap(), Claimed::Ours);
    proxy.set_mode(Mode::Pass);
    assert_eq!(claiming.await.unwrap().unwrap(), claimed);
    leases(&server, 1).await;
}

#[tokio::test]
async fn what_was_settled_and_runs_by_now_under_a_higher_token_is_not_settled() {
    settled_and_claimed_anew(5, Claimed::Overtaken).await;
}

#[tokio::test]
async fn what_was_settled_and_runs_by_now_under_a_lower_token_can_be_claimed() {
    settled_and_claimed_anew(2, Claimed::Ours).await;
}

/// The answer is lost, and the next one claims the key before it is asked again: it was given up.
#[tokio::test]
async fn what_was_given_up_and_is_the_next_ones_by_now_was_given_up() {
    let (_server, proxy, slow, quick) = scene().await;
    assert_eq!(claim(&slow, 1).await.unwrap(), Claimed::Ours);
    let ending = finishing(&slow, finish_of(1, Outcome::Abandoned), SOON);
    stand_still_at(&proxy, Trigger::after, &deletion()).await;
    assert_eq!(claim(&quick, 2).await.unwrap(), Claimed::Ours);
    proxy.set_mode(Mode::Pass);
    assert!(ending.await.unwrap().unwrap());
    // The control: asked once, it is told that the record is not its own.
    assert!(!finish(&slow, finish_of(1, Outcome::Abandoned)).await.unwrap());
}

/// The answer is lost, and the record is forgotten before it is asked again: to say that it was overtaken would
/// have it done again.
#[tokio::test]
async fn an_end_that_may_have_been_recorded_is_not_told_as_refused() {
    let (server, proxy, slow, quick) = scene().await;
    assert_eq!(claim(&slow, 1).await.unwrap(), Claimed::Ours);
    let ending = finishing(&slow, done(1), SOON);
    stand_still_at(&proxy, Trigger::after, b"fencepost once 1 done").await;
    assert!(forget(&quick, 1).await, "it was recorded");
    proxy.set_mode(Mode::Pass);
    let error = ending.await.unwrap().unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable);
    assert!(error.to_string().contains("nobody knows"), "{error}");
    // The control: asked once, it is told that there is no record of its own.
    assert!(!finish(&slow, done(1)).await.unwrap());
    leases(&server, 0).await;
}

/// A client that closes waits for a claim that has its lease and not yet its key.
#[tokio::test]
async fn a_client_that_closes_leaves_no_lease_without_a_key() {
    let (server, proxy, slow, quick) = scene().await;
    // Nobody waits for it any more.
    assert!(claim(&slow, 1).now_or_never().is_none());
    stand_still_at(&proxy, Trigger::before, b"fencepost once 1 running").await;
    leases(&server, 1).await;
    assert!(drained(&slow).now_or_never().is_none(), "it is under way");
    proxy.set_mode(Mode::Pass);
    drained(&slow).await;
    let entry = look_up(&quick).await;
    assert_eq!(entry.token, claim_of(1).token);
    leases(&server, 1).await;
}

/// Of a claim that was told as failed nothing is left.
#[tokio::test]
async fn a_claim_that_fails_leaves_no_lease() {
    let (server, proxy, slow, _) = scene().await;
    let claiming = claiming(&slow, 1, CALL_TIMEOUT);
    stand_still_at(&proxy, Trigger::after, b"fencepost once 1 running").await;
    assert_eq!(*claiming.await.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
    leases(&server, 1).await;
    assert!(drained(&slow).now_or_never().is_none(), "its lease is being ended");
    proxy.set_mode(Mode::Pass);
    leases(&server, 0).await;
}

/// An end that was told as failed may have been recorded: it stays.
#[tokio::test]
async fn an_end_in_doubt_is_kept() {
    let (server, proxy, slow, quick) = scene().await;
    assert_eq!(claim(&slow, 1).await.unwrap(), Claimed::Ours);
    let ending = finishing(&slow, done(1), CALL_TIMEOUT);
    stand_still_at(&proxy, Trigger::after, b"fencepost once 1 done").await;
    assert_eq!(*ending.await.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
    proxy.set_mode(Mode::Pass);
    drained(&slow).await;
    assert!(look_up(&quick).await.is_settled());
    // That of the claim, which its client could not end, and that of the end.
    leases(&server, 2).await;
    assert!(finish(&slow, done(1)).await.unwrap(), "asked again, it was recorded");
}
