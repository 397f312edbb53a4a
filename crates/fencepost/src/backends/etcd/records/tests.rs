//! Ledger steps whose connection fails at the worst moment, on a real etcd behind a fault proxy.

use fencepost_core::Label;
use fencepost_testkit::{Etcd as Server, Mode, Proxy, Trigger, until};
use futures_util::FutureExt as _;
use tokio::task::JoinHandle;

use super::*;
use crate::backends::etcd::testing::open;
use crate::clock::{BootClock, Clock as _};
use crate::error::{ErrorKind, Result};
use crate::ledger::Outcome;
use crate::retry::CALL_TIMEOUT;

const SOON: Duration = Duration::from_secs(15);

async fn claim(etcd: &Etcd, number: u64) -> Result<Claimed> {
    Ok(etcd.claim(claim_of(number), BootClock.now() + SOON).await?.value)
}

async fn finish(etcd: &Etcd, finish: Completion) -> Result<bool> {
    Ok(etcd.finish(finish, BootClock.now() + SOON).await?.value)
}

/// The same in the background, with this timeout.
fn finishing(etcd: &Arc<Etcd>, finish: Completion, within: Duration) -> JoinHandle<Result<bool>> {
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

async fn look_up(etcd: &Etcd) -> RecordInfo {
    let limit = BootClock.now() + SOON;
    let name = claim_of(1).name;
    etcd.look_up(vec![name.clone()], limit).await.unwrap().value.remove(&name).unwrap()
}

/// Waits until no background task of the client is left.
async fn drained(etcd: &Etcd) {
    etcd.0.context.tasks.close();
    etcd.0.context.tasks.wait().await;
}

/// A server, a proxy to it, a client through the proxy and one without.
async fn fixture() -> (Server, Proxy, Arc<Etcd>, Arc<Etcd>) {
    let server = Server::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let (slow, quick) = (open(proxy.address()).await, open(server.address()).await);
    (server, proxy, slow, quick)
}

fn claim_of(number: u64) -> Claim {
    let (name, token) = (LockName::new("once/a").unwrap(), Token::new(number).unwrap());
    Claim::new(name, token, Label::new("me").unwrap(), Duration::from_hours(1))
}

fn finish_of(number: u64, outcome: Outcome) -> Completion {
    let Claim { name, token, label, retention, .. } = claim_of(number);
    Completion::new(name, token, label, outcome, retention)
}

fn done(number: u64) -> Completion {
    finish_of(number, Outcome::Done(b"x".to_vec()))
}

/// Freezes the connection when this request comes. The request is lost, or its reply is.
async fn freeze_connection_at(proxy: &Proxy, first: fn(Vec<u8>) -> Trigger, request: &[u8]) {
    let fired = proxy.fired();
    proxy.cut_on(first(request.to_vec()));
    // The client retries soon: cut again until the proxy is silent.
    for _ in 0..3 {
        proxy.cut_on(Trigger::before(request.to_vec()));
    }
    until("the request comes", async || proxy.fired() > fired).await;
    proxy.set_mode(Mode::Silent);
}

/// A request that names a lease in field 1.
fn names_lease(lease: i64) -> Vec<u8> {
    let mut bytes = vec![0x08];
    let mut left = lease.cast_unsigned();
    while left >= 0x80 {
        bytes.push((left & 0x7f) as u8 | 0x80);
        left >>= 7;
    }
    bytes.push(left as u8);
    bytes
}

/// A request that deletes the record: field 3 of an operation, with the key as its field 1.
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

/// Between the two reads of a claim the record is forgotten and another client claims it: it is not finished any more.
async fn finished_record_is_claimed_again(others: u64, claimed: Claimed) {
    let (server, proxy, slow, quick) = fixture().await;
    let name = claim_of(1).name;
    assert_eq!(claim(&quick, 1).await.unwrap(), Claimed::Ours);
    assert!(finish(&quick, done(1)).await.unwrap());
    let limit = quick.0.now() + SOON;
    let lease = read_snapshot(&quick.0, &name, limit).await.unwrap().lease;
    let claiming = claiming(&slow, 3, SOON);
    freeze_connection_at(&proxy, Trigger::before, &names_lease(lease)).await;
    assert!(forget(&quick, 1).await);
    drained(&quick).await;
    assert_eq!(claim(&quick, others).await.unwrap(), Claimed::Ours);
    proxy.set_mode(Mode::Pass);
    assert_eq!(claiming.await.unwrap().unwrap(), claimed);
    leases(&server, 1).await;
}

#[tokio::test]
async fn forgotten_record_that_runs_under_a_higher_token_is_overtaken() {
    finished_record_is_claimed_again(5, Claimed::Overtaken).await;
}

#[tokio::test]
async fn forgotten_record_that_runs_under_a_lower_token_is_claimed() {
    finished_record_is_claimed_again(2, Claimed::Ours).await;
}

/// The reply is lost, and the next run claims the key before the retry: the first one was abandoned.
#[tokio::test]
async fn abandoned_record_that_is_claimed_again_was_abandoned() {
    let (_server, proxy, slow, quick) = fixture().await;
    assert_eq!(claim(&slow, 1).await.unwrap(), Claimed::Ours);
    let ending = finishing(&slow, finish_of(1, Outcome::Abandoned), SOON);
    freeze_connection_at(&proxy, Trigger::after, &deletion()).await;
    assert_eq!(claim(&quick, 2).await.unwrap(), Claimed::Ours);
    proxy.set_mode(Mode::Pass);
    assert!(ending.await.unwrap().unwrap());
    // Control: a single attempt learns that the record belongs to another run.
    assert!(!finish(&slow, finish_of(1, Outcome::Abandoned)).await.unwrap());
}

/// The reply is lost, and the record is forgotten before the retry. To report "overtaken" would repeat the work.
#[tokio::test]
async fn finish_that_may_have_been_applied_is_not_refused() {
    let (server, proxy, slow, quick) = fixture().await;
    assert_eq!(claim(&slow, 1).await.unwrap(), Claimed::Ours);
    let ending = finishing(&slow, done(1), SOON);
    freeze_connection_at(&proxy, Trigger::after, b"fencepost once 1 done").await;
    assert!(forget(&quick, 1).await, "it was recorded");
    proxy.set_mode(Mode::Pass);
    let error = ending.await.unwrap().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable);
    assert!(error.one_line().contains("is unknown"), "{error}");
    // Control: a single attempt learns that its record does not exist.
    assert!(!finish(&slow, done(1)).await.unwrap());
    leases(&server, 0).await;
}

/// Closing waits for a claim that has its lease but not yet its key.
#[tokio::test]
async fn closed_client_leaves_no_lease_without_a_key() {
    let (server, proxy, slow, quick) = fixture().await;
    // Its caller is gone.
    assert!(claim(&slow, 1).now_or_never().is_none());
    freeze_connection_at(&proxy, Trigger::before, b"fencepost once 1 running").await;
    leases(&server, 1).await;
    assert!(drained(&slow).now_or_never().is_none(), "it is under way");
    proxy.set_mode(Mode::Pass);
    drained(&slow).await;
    let record = look_up(&quick).await;
    assert_eq!(record.token, claim_of(1).token);
    leases(&server, 1).await;
}

/// A claim that was reported as failed leaves nothing.
#[tokio::test]
async fn failed_claim_leaves_no_lease() {
    let (server, proxy, slow, _) = fixture().await;
    let claiming = claiming(&slow, 1, CALL_TIMEOUT);
    freeze_connection_at(&proxy, Trigger::after, b"fencepost once 1 running").await;
    assert_eq!(claiming.await.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
    leases(&server, 1).await;
    assert!(drained(&slow).now_or_never().is_none(), "its lease is being ended");
    proxy.set_mode(Mode::Pass);
    leases(&server, 0).await;
}

/// A finish that was reported as failed may have been applied: it stays.
#[tokio::test]
async fn finish_with_unknown_outcome_is_kept() {
    let (server, proxy, slow, quick) = fixture().await;
    assert_eq!(claim(&slow, 1).await.unwrap(), Claimed::Ours);
    let ending = finishing(&slow, done(1), CALL_TIMEOUT);
    freeze_connection_at(&proxy, Trigger::after, b"fencepost once 1 done").await;
    assert_eq!(ending.await.unwrap().unwrap_err().kind(), ErrorKind::Unreachable);
    proxy.set_mode(Mode::Pass);
    drained(&slow).await;
    assert!(look_up(&quick).await.is_finished());
    // The lease of the claim, which its client could not revoke, and that of the finish.
    leases(&server, 2).await;
    assert!(finish(&slow, done(1)).await.unwrap(), "asked again, it was recorded");
}
