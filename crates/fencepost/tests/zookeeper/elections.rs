//! Elections: a candidate's node contains its value, all clients see the leader's, and terms rise.

use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, Leader, Leadership, LossCause, Observer, Value};

use fencepost_testkit::{
    LONG, SOON, ZooKeeper, connect, fails, fails_because, pass, until, until_waiting, within,
};

use super::common::Site;
use super::ensemble::PooledEnsemble;
use super::raw_client::{ALL, Kind, Raw};

async fn campaign(client: &Fencepost, name: &str, value: &str) -> Leadership {
    let election = client.election(name).ttl(LONG);
    within(SOON, "it leads", election.campaign(value)).await.unwrap()
}

async fn next(observer: &mut Observer) -> Option<Leader> {
    within(SOON, "the observer sees a change", observer.next()).await.unwrap()
}

/// The contents of the nodes in this queue, in order.
fn values(site: &Site, name: &str) -> Vec<String> {
    let mut nodes = site.children(&format!("/{name}"));
    nodes.sort_by_key(|node| node[node.len() - 10..].to_owned());
    let get = |node: &String| site.server.get(&format!("{}/{name}/{node}", site.chroot)).unwrap();
    nodes.iter().filter_map(get).collect()
}

/// The directory of a lock can appear between the two requests that watch for it, and the leader after that. An observer
/// that misses this looks again after 5 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn observer_from_before_the_first_candidate_sees_the_leader_at_once() {
    let site = Site::shared();
    let client = connect(&site.url()).await;
    let mut raw = Raw::connect(site.server.address());
    raw.create(&site.chroot, "", Kind::Persistent, ALL);
    let mut observers = Vec::new();
    for number in 0..40 {
        let name = format!("new-{number}");
        let mut observer = client.election(&name).observe().unwrap();
        assert_eq!(next(&mut observer).await, None);
        let path = format!("{}/{name}", site.chroot);
        let observing = tokio::spawn(async move { next(&mut observer).await });
        raw.create(&path, "", Kind::Persistent, ALL);
        observers.push((name, observing));
    }
    // Long enough for each observer to read its directory, which is still empty.
    pass(Duration::from_millis(100)).await;
    for (name, observing) in observers {
        let leadership = campaign(&client, &name, "first").await;
        let leader = within(Duration::from_secs(3), "it is seen", observing).await.unwrap();
        assert_eq!(leader.and_then(|leader| leader.term), Some(leadership.term()), "{name}");
    }
}

#[tokio::test]
async fn node_of_a_candidate_contains_only_its_value() {
    let site = Site::shared();
    for (style, kind) in [("", "-lock-"), ("?style=kazoo", "__lock__"), ("?style=latch", "-latch-")]
    {
        let ours = connect(&format!("{}{style}", site.url())).await;
        let first = campaign(&ours, "boss", "10.0.0.7:80").await;
        let second = ours.clone();
        let waiting = tokio::spawn(async move { campaign(&second, "boss", "10.0.0.8:80").await });
        until_waiting(&ours, "boss", 1).await;
        assert!(site.children("/boss").iter().all(|node| node.contains(kind)));
        assert_eq!(values(&site, "boss"), ["10.0.0.7:80", "10.0.0.8:80"]);
        let info = ours.inspect("boss").await.unwrap();
        let holder = info.holder.unwrap();
        assert_eq!(holder.value, Some(Value::new("10.0.0.7:80").unwrap()));
        assert_eq!((holder.label.as_str(), holder.token), ("10.0.0.7:80", Some(first.term())));
        assert_eq!(info.waiters[0].label.as_str(), "10.0.0.8:80");
        // Heartbeats keep writing the proclaimed value.
        if style == "?style=latch" {
            // A LeaderLatch behind it would not notice its end.
            fails(first.proclaim("busy").await, ErrorKind::Refused, &["LeaderLatch"]);
            ours.renew("boss", first.guard().owner(), None).await.unwrap();
            assert_eq!(values(&site, "boss"), ["10.0.0.7:80", "10.0.0.8:80"]);
        } else {
            first.proclaim("busy").await.unwrap();
            assert_eq!(values(&site, "boss"), ["busy", "10.0.0.8:80"]);
        }
        fails(first.proclaim("x\nfencepost 1 1000 -").await, ErrorKind::Invalid, &["value"]);
        let term = first.term();
        first.resign().await.unwrap();
        let second = within(SOON, "the next", waiting).await.unwrap();
        assert!(second.term() > term);
        let leader = ours.election("boss").leader().await.unwrap().unwrap();
        assert_eq!(leader.value, Some(Value::new("10.0.0.8:80").unwrap()));
        second.resign().await.unwrap();
        assert!(ours.election("boss").leader().await.unwrap().is_none());
    }
}

/// Locks, elections and third-party nodes share one queue.
#[tokio::test]
async fn lock_and_election_share_one_queue() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let leader = campaign(&ours, "shared", "").await;
    let held = theirs.lock("shared").try_acquire().await.unwrap();
    assert!(held.is_none());
    assert_eq!(ours.inspect("shared").await.unwrap().holder.unwrap().value, Value::new("").ok());
    leader.resign().await.unwrap();
    let guard = theirs.lock("shared").ttl(LONG).label("plain").acquire().await.unwrap();
    let seen = ours.election("shared").leader().await.unwrap().unwrap();
    assert_eq!((seen.value, seen.label.as_str()), (None, "plain"));
    guard.release().await.unwrap();
    for (node, data, value) in [
        ("_c_x-lock-0000000000", "127.0.0.1", Some("127.0.0.1")),
        ("_c_x-latch-0000000000", "a latch", Some("a latch")),
        ("abc__lock__0000000000", "", None),
    ] {
        let path = format!("{}/shared/{node}", site.chroot);
        let mut raw = Raw::connect(site.server.address());
        raw.create(&path, data, Kind::Ephemeral, ALL);
        let seen = ours.election("shared").leader().await.unwrap().unwrap();
        assert_eq!(seen.value, value.map(|value| Value::new(value).unwrap()), "{node}");
        assert!(theirs.lock("shared").try_acquire().await.unwrap().is_none(), "{node}");
        site.server.delete(&path).unwrap();
    }
}

/// A broken leader learns the cause, though its node does not name its owner.
#[tokio::test]
async fn broken_leader_learns_the_cause() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let leader = campaign(&ours, "broken", "me").await;
    let broken = theirs.break_lock("broken").await.unwrap().unwrap();
    assert_eq!((broken.label.as_str(), broken.token), ("me", Some(leader.term())));
    assert_eq!(within(SOON, "the guard is lost", leader.guard().lost()).await, LossCause::Broken);
    until("no note is left", async || site.children("/.fencepost/broken").is_empty()).await;
    let refused = leader.proclaim("still me").await;
    fails_because(refused, ErrorKind::Lost, LossCause::Broken, &[]);
}

/// Proclaims and heartbeats cross: the newest value stays. Concurrent renewals force heartbeats.
#[tokio::test]
async fn heartbeat_does_not_overwrite_a_newer_value() {
    let site = Site::shared();
    let client = site.client().await;
    let leader = campaign(&client, "words", "0").await;
    let owner = leader.guard().owner();
    for number in 1..=50 {
        let value = number.to_string();
        let renew = || client.renew("words", owner, None);
        let (a, proclaimed, b, c) =
            tokio::join!(renew(), leader.proclaim(&value), renew(), renew());
        proclaimed.unwrap();
        for renewal in [a, b, c] {
            renewal.unwrap();
        }
        assert_eq!(leader_value(&site), value);
    }
    leader.resign().await.unwrap();
}

fn leader_value(site: &Site) -> String {
    values(site, "words").remove(0)
}

/// A value proclaimed through one server is seen through another, in order, and the last one always.
#[tokio::test]
async fn observers_on_other_servers_see_terms_in_order() {
    let three = PooledEnsemble::take();
    let member = |number: usize| {
        format!("zookeeper://{}{}", three.members()[number].address(), three.chroot)
    };
    let (ours, theirs, third) =
        (connect(&member(0)).await, connect(&member(1)).await, connect(&member(2)).await);
    let mut observers =
        [theirs.election("o").observe().unwrap(), third.election("o").observe().unwrap()];
    for observer in &mut observers {
        assert_eq!(next(observer).await, None);
    }
    let mut last = None;
    for round in 0..5 {
        let client = [&ours, &theirs, &third][round % 3];
        let leader = campaign(client, "o", &format!("start {round}")).await;
        for word in ["one", "two"] {
            leader.proclaim(format!("{word} {round}")).await.unwrap();
        }
        let (term, value) = (leader.term(), Value::new(format!("two {round}")).ok());
        for observer in &mut observers {
            loop {
                let Some(seen) = next(observer).await else { continue };
                assert!(seen.term >= last, "{seen:?} after {last:?}");
                if seen.term == Some(term) && seen.value == value {
                    break;
                }
            }
        }
        last = Some(term);
        leader.resign().await.unwrap();
    }
}

/// Heartbeats do not repeat a value that the servers refused: they would be refused as well.
#[tokio::test]
async fn refused_value_is_not_repeated_by_heartbeats() {
    let server = ZooKeeper::builder().config("enforceQuota", "true").start().unwrap();
    let client = connect(&format!("{}/q", server.url())).await;
    let leader = campaign(&client, "words", "short").await;
    for node in ["/zookeeper/quota/q", "/zookeeper/quota/q/zookeeper_stats"] {
        server.create(node, "count=1,bytes=0").unwrap();
    }
    let limits = "count=-1,bytes=-1;byteHardLimit=100;countHardLimit=-1";
    server.create("/zookeeper/quota/q/zookeeper_limits", limits).unwrap();
    leader.proclaim("shorter").await.unwrap();
    fails(leader.proclaim("long".repeat(100)).await, ErrorKind::Refused, &["quota"]);
    let renewed = client.renew("words", leader.guard().owner(), None).await.unwrap().value;
    assert_eq!(renewed.token, leader.term());
    let seen = client.election("words").leader().await.unwrap().unwrap();
    assert_eq!(seen.value, Value::new("shorter").ok());
    leader.guard().check().unwrap();
}

/// Heartbeats do not notify an observer.
#[tokio::test]
async fn heartbeats_do_not_notify_observers() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let leader = campaign(&ours, "quiet", "still").await;
    let mut observer = theirs.election("quiet").observe().unwrap();
    assert_eq!(next(&mut observer).await.unwrap().term, Some(leader.term()));
    let owner = leader.guard().owner();
    let renewals = async {
        for _ in 0..100 {
            ours.renew("quiet", owner, None).await.unwrap();
        }
        leader.proclaim("moved").await.unwrap();
    };
    let (seen, ()) = tokio::join!(next(&mut observer), renewals);
    assert_eq!(seen.unwrap().value, Value::new("moved").ok());
}

/// A candidate requests a session of the TTL itself, so that the next one leads by then; its lease is two thirds.
#[tokio::test]
async fn lease_of_a_leader_ends_before_the_requested_ttl() {
    let site = Site::shared();
    let client = site.client().await;
    let ttl = Duration::from_secs(9);
    let leader = client.election("lease").ttl(ttl).campaign("x").await.unwrap();
    assert_eq!(leader.guard().ttl().as_duration(), ttl * 2 / 3);
    leader.resign().await.unwrap();
}
