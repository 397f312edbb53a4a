//! Elections between clients of ours: what the leader says is the value of its key.

use fencepost::{ErrorKind, LossCause};
use fencepost_testkit::elections::{
    a_deposed_leader_is_not_heard, campaigns, leader, leads, one_leads_after_the_other,
    renewals_keep_the_words, said, sees,
};
use fencepost_testkit::{Etcd, Mode, Proxy, Trigger, connect, fails, until, until_waiting, within};

use crate::common::{LEASE, LONG, SOON, leases, line, shared};

async fn two(url: &str) -> [fencepost::Fencepost; 2] {
    [connect(url).await, connect(url).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_leads_after_the_other_and_says_its_own() {
    let etcd = Etcd::builder().start().unwrap();
    let [ours, theirs] = two(&etcd.url()).await;
    one_leads_after_the_other(&ours, &theirs).await;
    assert!(leases(&etcd).is_empty());
    let keys = etcd.etcdctl(&["get", "--prefix", "--keys-only", ""]).unwrap();
    assert_eq!(keys.trim(), "", "nothing is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewals_leave_what_was_said() {
    let etcd = shared();
    let [ours, theirs] = two(&etcd.url()).await;
    renewals_keep_the_words(&ours, &theirs, LEASE).await;
}

/// A break knows its own: the lease goes with the key, though the value tells nothing of us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_was_deposed_is_not_heard() {
    let etcd = Etcd::builder().start().unwrap();
    let [ours, theirs] = two(&etcd.url()).await;
    a_deposed_leader_is_not_heard(&ours, &theirs).await;
    let _leads = leads(campaigns(&ours, "broken", b"words", LONG)).await;
    let lease = line(&etcd, "broken").pop().unwrap();
    assert!(leases(&etcd).contains(&lease));
    let broken = theirs.break_lock("broken").await.unwrap().unwrap();
    assert!(!broken.label.as_str().contains("another client"), "{}", broken.label);
    assert!(!leases(&etcd).contains(&lease), "its lease is gone as well");
}

/// The label of a candidate, which its value can not carry, stands beside it: of the leader and of who waits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn candidates_have_labels() {
    let etcd = shared();
    let [ours, theirs] = two(&etcd.url()).await;
    let first = ours.election("labels").label("web-1").ttl(LONG).campaign("a").await.unwrap();
    let second = theirs.election("labels").label("web-2").ttl(LONG);
    let second = tokio::spawn(async move { second.campaign("").await });
    until_waiting(&ours, "labels", 1).await;
    let info = theirs.inspect("labels").await.unwrap();
    assert_eq!(info.holder.unwrap().label.as_str(), "web-1");
    assert_eq!(info.waiters[0].label.as_str(), "web-2");
    first.resign().await.unwrap();
    let second = leads(second).await;
    let shown = leader(&ours, "labels").await.unwrap();
    assert_eq!((shown.label.as_str(), shown.term), ("web-2", Some(second.term())));
    assert_eq!(shown.value.unwrap().as_bytes(), b"", "it says nothing, and is no plain lock");
}

/// What would be taken for the value of a lock is not said.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn words_that_look_like_a_lock_are_refused() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let election = client.election("unspeakable").ttl(LONG);
    fails(election.campaign("x\nfencepost 1").await, &ErrorKind::Refused, &["fencepost 1"]);
    let leadership = leads(campaigns(&client, "unspeakable", b"fine", LONG)).await;
    fails(leadership.proclaim("x\nfencepost 1").await, &ErrorKind::Refused, &["fencepost 1"]);
    assert_eq!(said(&client, "unspeakable").await.as_deref(), Some(&b"fine"[..]));
}

/// A proclamation whose answer is lost is made once, and an observer sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_proclamation_that_is_cut_off_is_heard() {
    let etcd = shared();
    let proxy = Proxy::to(etcd.url().strip_prefix("etcd://").unwrap().parse().unwrap()).unwrap();
    let ours = connect(&format!("etcd://{}", proxy.address())).await;
    let theirs = connect(&etcd.url()).await;
    let leadership = leads(campaigns(&ours, "cut", b"mine", LONG)).await;
    let mut observer = theirs.election("cut").observe().unwrap();
    for (fired, words) in ["proclaimed first", "proclaimed second"].into_iter().enumerate() {
        proxy.cut_on(if fired == 0 { Trigger::before(words) } else { Trigger::after(words) });
        within(SOON, "it is proclaimed", leadership.proclaim(words)).await.unwrap();
        assert_eq!(proxy.fired(), fired + 1);
        let shown = sees(&mut observer, Some(words.as_bytes())).await.unwrap();
        assert_eq!(shown.term, Some(leadership.term()));
    }
}

/// Between the renewal and the put of a proclamation somebody puts a value into the leader's key and so takes it off
/// its lease. For everybody else it counts no more: a leader that put its words there, or took what is there for its
/// own, would be one of two.
async fn a_leader_whose_key_is_taken_off_its_lease(name: &str, put: &str) {
    let etcd = shared();
    let proxy = Proxy::to(etcd.url().strip_prefix("etcd://").unwrap().parse().unwrap()).unwrap();
    let ours = connect(&format!("etcd://{}", proxy.address())).await;
    let theirs = connect(&etcd.url()).await;
    let leadership = leads(campaigns(&ours, name, b"mine", LONG)).await;
    let key = format!("{name}/{}", line(&etcd, name).pop().unwrap());
    // It is tried again soon: until the line is silent, it is cut again.
    for _ in 0..4 {
        proxy.cut_on(Trigger::before("proclaimed"));
    }
    let proclaiming = leadership.proclaim("proclaimed");
    let meanwhile = async {
        until("the put comes", async || proxy.fired() > 0).await;
        proxy.set_mode(Mode::Silent);
        etcd.etcdctl(&["put", &key, put]).unwrap();
        proxy.set_mode(Mode::Pass);
    };
    let (outcome, ()) =
        within(SOON, "it is told", async { tokio::join!(proclaiming, meanwhile) }).await;
    // The heartbeat may find it first, since it renews when the watch is back: it takes the stray key away.
    let cause = match outcome.as_ref().map_err(fencepost::Error::kind) {
        Err(ErrorKind::Lost(LossCause::SessionGone)) => LossCause::SessionGone,
        _ => LossCause::TakenOver,
    };
    fails(outcome, &ErrorKind::Lost(cause), &[name]);
    assert!(leadership.check().is_err());
    let next = leads(campaigns(&theirs, name, b"next", LONG)).await;
    assert!(next.term() > leadership.term());
    etcd.etcdctl(&["del", &key]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_key_is_taken_off_its_lease_is_told() {
    a_leader_whose_key_is_taken_off_its_lease("off-its-lease", "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_whose_very_words_are_put_without_its_lease_is_told() {
    a_leader_whose_key_is_taken_off_its_lease("off-its-lease-too", "proclaimed").await;
}

/// The same before it is proclaimed at all.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_leader_that_lost_its_lease_before_it_proclaims_is_told() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let leadership = leads(campaigns(&client, "off-before", b"mine", LONG)).await;
    let key = format!("off-before/{}", line(&etcd, "off-before").pop().unwrap());
    etcd.etcdctl(&["put", &key, "x"]).unwrap();
    let outcome = leadership.proclaim("proclaimed").await;
    fails(outcome, &ErrorKind::Lost(LossCause::TakenOver), &["off-before"]);
    assert!(leader(&client, "off-before").await.is_none());
}
