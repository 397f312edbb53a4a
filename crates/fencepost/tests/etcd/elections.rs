//! Elections: the leader's value is the value of its key.

use fencepost::{ErrorKind, LossCause};
use fencepost_testkit::elections::{
    campaigns, leader, leads, lost_leader_cannot_change_the_value, one_leads_after_the_other,
    renewals_keep_the_value, sees, value_of_leader,
};
use fencepost_testkit::{
    Etcd, Mode, Proxy, Trigger, connect, fails, fails_because, until, until_waiting, within,
};

use crate::common::{LEASE, LONG, SOON, leases, queue, shared};

async fn two(url: &str) -> [fencepost::Fencepost; 2] {
    [connect(url).await, connect(url).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leaders_follow_each_other_with_their_own_values() {
    let etcd = Etcd::builder().start().unwrap();
    let [ours, theirs] = two(&etcd.url()).await;
    one_leads_after_the_other(&ours, &theirs).await;
    assert!(leases(&etcd).is_empty());
    let keys = etcd.etcdctl(&["get", "--prefix", "--keys-only", ""]).unwrap();
    assert_eq!(keys.trim(), "", "nothing is left");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renewal_keeps_the_value() {
    let etcd = shared();
    let [ours, theirs] = two(&etcd.url()).await;
    renewals_keep_the_value(&ours, &theirs, LEASE).await;
}

/// A break recognizes a candidate of ours: the lease goes with the key, though the value does not name us.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn deposed_leader_has_no_value() {
    let etcd = Etcd::builder().start().unwrap();
    let [ours, theirs] = two(&etcd.url()).await;
    lost_leader_cannot_change_the_value(&ours, &theirs).await;
    let _leads = leads(campaigns(&ours, "broken", b"words", LONG)).await;
    let lease = queue(&etcd, "broken").pop().unwrap();
    assert!(leases(&etcd).contains(&lease));
    let broken = theirs.break_lock("broken").await.unwrap().unwrap();
    assert!(!broken.label.as_str().contains("another client"), "{}", broken.label);
    assert!(!leases(&etcd).contains(&lease), "its lease is gone as well");
}

/// A candidate's label is stored in a key of its own, because the value cannot contain it.
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

/// A value that could be taken for a plain lock is refused.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn value_that_looks_like_a_lock_is_refused() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let election = client.election("unspeakable").ttl(LONG);
    fails(election.campaign("x\nfencepost 1").await, ErrorKind::Refused, &["fencepost 1"]);
    let leadership = leads(campaigns(&client, "unspeakable", b"fine", LONG)).await;
    fails(leadership.proclaim("x\nfencepost 1").await, ErrorKind::Refused, &["fencepost 1"]);
    assert_eq!(value_of_leader(&client, "unspeakable").await.as_deref(), Some(&b"fine"[..]));
}

/// A proclaim whose reply is lost is applied once, and an observer sees it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn proclaim_whose_connection_is_lost_is_observed() {
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

/// Between the renewal and the put of a proclaim, somebody overwrites the leader's key and so detaches it from its
/// lease. For all other clients the leader is gone. If it put its value there, or treated the value as its own, there
/// would be two leaders.
async fn leader_is_lost_when_its_key_is_put(name: &str, put: &str) {
    let etcd = shared();
    let proxy = Proxy::to(etcd.url().strip_prefix("etcd://").unwrap().parse().unwrap()).unwrap();
    let ours = connect(&format!("etcd://{}", proxy.address())).await;
    let theirs = connect(&etcd.url()).await;
    let leadership = leads(campaigns(&ours, name, b"mine", LONG)).await;
    let key = format!("{name}/{}", queue(&etcd, name).pop().unwrap());
    // The client retries soon: cut again until the proxy is silent.
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
        within(SOON, "the proclaim ends", async { tokio::join!(proclaiming, meanwhile) }).await;
    // The heartbeat may notice first, since it renews when the watch is back. It then deletes the stray key.
    let cause = match outcome.as_ref().map_err(fencepost::Error::loss_cause) {
        Err(Some(LossCause::SessionGone)) => LossCause::SessionGone,
        _ => LossCause::TakenOver,
    };
    fails_because(outcome, ErrorKind::Lost, cause, &[name]);
    assert!(leadership.check().is_err());
    let next = leads(campaigns(&theirs, name, b"next", LONG)).await;
    assert!(next.term() > leadership.term());
    etcd.etcdctl(&["del", &key]).unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_is_lost_when_its_key_is_detached_from_the_lease() {
    leader_is_lost_when_its_key_is_put("off-its-lease", "x").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_is_lost_when_its_own_value_is_put_without_its_lease() {
    leader_is_lost_when_its_key_is_put("off-its-lease-too", "proclaimed").await;
}

/// The same before the proclaim starts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn leader_without_its_lease_cannot_proclaim() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let leadership = leads(campaigns(&client, "off-before", b"mine", LONG)).await;
    let key = format!("off-before/{}", queue(&etcd, "off-before").pop().unwrap());
    etcd.etcdctl(&["put", &key, "x"]).unwrap();
    let outcome = leadership.proclaim("proclaimed").await;
    fails_because(outcome, ErrorKind::Lost, LossCause::TakenOver, &["off-before"]);
    assert!(leader(&client, "off-before").await.is_none());
}
