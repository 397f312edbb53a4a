//! Records: one success is recorded, others see it, and it is removed in the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::ledger::State;
use fencepost::{ErrorKind, Fencepost, OnFailure, Once, RunGuard, Start};
use fencepost_testkit::{
    LONG, Mode, Proxy, SOON, ZooKeeper, connect, fails, fails_because, pass, until, within,
};

use super::common::Site;
use super::ensemble::PooledEnsemble;
use super::raw_client::{ALL, Kind, Raw};

const RETENTION: Duration = Duration::from_hours(1);

fn once(client: &Fencepost, key: &str) -> Once {
    client.once(key).retain_for(RETENTION).ttl(LONG)
}

async fn run_guard(once: &Once) -> RunGuard {
    match within(SOON, "the waiter is granted", once.begin()).await.unwrap() {
        Start::Claimed(run_guard) => run_guard,
        Start::Finished(record) => panic!("finished already: {record:?}"),
    }
}

/// The nodes of all records, with their directories.
fn nodes(site: &Site) -> Vec<String> {
    let shards = site.children("/.fencepost/records").into_iter().filter(|it| it.len() == 2);
    let inside = |shard: String| {
        let nodes = site.children(&format!("/.fencepost/records/{shard}"));
        nodes.into_iter().map(move |node| format!("{shard}/{node}"))
    };
    shards.flat_map(inside).collect()
}

#[tokio::test]
async fn one_of_many_runs_and_all_get_its_result() {
    let site = Site::shared();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(site.client().await);
    }
    for key in ["a", "b/c", "ü 🔒%"] {
        let runs = Arc::new(AtomicUsize::new(0));
        let tasks: Vec<_> = (0..16)
            .map(|number| {
                let (once, runs) = (once(&clients[number % 4], key), Arc::clone(&runs));
                tokio::spawn(async move {
                    let work = |run: fencepost::RunHandle| async move {
                        runs.fetch_add(1, Ordering::SeqCst);
                        Ok::<_, std::io::Error>(run.token().to_string())
                    };
                    once.run(work).await.unwrap()
                })
            })
            .collect();
        let mut ran = 0;
        let mut tokens = Vec::new();
        for task in tasks {
            let recorded = within(SOON, "all runs end", task).await.unwrap();
            assert_eq!(recorded.result, recorded.token.to_string().into_bytes());
            ran += usize::from(recorded.ran);
            tokens.push(recorded.token);
        }
        tokens.dedup();
        assert_eq!((ran, runs.load(Ordering::SeqCst), tokens.len()), (1, 1, 1), "{key}");
    }
    let found = clients[0].once_records().await.unwrap();
    let keys: Vec<_> = found.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["a", "b/c", "ü 🔒%"]);
    assert!(
        found.iter().all(|(_, record)| record.state == State::Done && record.result.is_empty())
    );
    assert_eq!(nodes(&site).len(), 3);
    assert!(clients[0].list().await.unwrap().is_empty(), "records are no locks");
}

/// The run lost its lock: whatever it does, the record belongs to the next run.
#[tokio::test]
async fn overtaken_run_cannot_finish() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    for end in ["done", "failed", "given up"] {
        let late = run_guard(&once(&ours, end)).await;
        theirs.break_lock(&format!("once/{end}")).await.unwrap().unwrap();
        let next = run_guard(&once(&theirs, end)).await;
        let token = next.token();
        assert!(token > late.token());
        let refused = match end {
            "done" => late.done("mine").await,
            "failed" => late.failed("mine").await,
            _ => late.give_up().await,
        };
        fails_because(refused, ErrorKind::Lost, fencepost::LossCause::TakenOver, &[]);
        let record = once(&ours, end).record().await.unwrap().unwrap();
        assert_eq!((record.state, record.token), (State::Running, token), "{end}");
        next.done("theirs").await.unwrap();
        let record = once(&ours, end).record().await.unwrap().unwrap();
        assert_eq!((record.state, &*record.result), (State::Done, &b"theirs"[..]), "{end}");
    }
}

#[tokio::test]
async fn result_is_kept_byte_for_byte_over_a_restart() {
    let server = ZooKeeper::builder().start().unwrap();
    let url = format!("{}/deep/er", server.url());
    let client = connect(&url).await;
    let large: Vec<u8> = (0..64 * 1024_u32).map(|at| (at * 31 % 251) as u8).collect();
    run_guard(&once(&client, "large")).await.done(large.clone()).await.unwrap();
    run_guard(&once(&client, "bad")).await.failed("it broke").await.unwrap();
    client.close().await;
    server.restart().unwrap();
    let client = connect(&url).await;
    let record = once(&client, "large").record().await.unwrap().unwrap();
    assert!(record.result == large && record.state == State::Done);
    assert!(
        record.since < SOON * 6 && record.kept_for <= RETENTION && record.kept_for > RETENTION / 2
    );
    let refused = once(&client, "bad").run(|_| async { Ok::<_, std::io::Error>("no") }).await;
    fails(refused, ErrorKind::Failed, &["forget"]);
    assert!(once(&client, "bad").forget().await.unwrap());
    assert!(!once(&client, "bad").forget().await.unwrap());
    let work = |_| async { Err::<&str, _>(std::io::Error::other("once more")) };
    once(&client, "bad").on_failure(OnFailure::Retry).run(work).await.unwrap_err();
    assert!(once(&client, "bad").record().await.unwrap().is_none());
}

/// An expired record counts as absent. A read of it removes it, and so do other steps.
#[tokio::test]
async fn expired_record_is_removed() {
    let site = Site::shared();
    let client = site.client().await;
    let second = Duration::from_secs(1);
    for number in 0..24 {
        let brief = client.once(format!("brief/{number}")).retain_for(second).ttl(LONG);
        run_guard(&brief).await.done("x").await.unwrap();
    }
    let brief = client.once("brief/0").retain_for(second).ttl(LONG);
    until("it is over", async || brief.record().await.unwrap().is_none()).await;
    let again = run_guard(&brief).await;
    again.give_up().await.unwrap();
    // In the end the list has removed all others.
    run_guard(&once(&client, "later")).await.done("").await.unwrap();
    until("they are gone", async || {
        let found = client.once_records().await.unwrap();
        assert!(found.iter().any(|(key, _)| key == "later"));
        nodes(&site).iter().all(|node| node.contains("later"))
    })
    .await;
}

/// A list is enough: nobody finishes anything or reads them by name.
#[tokio::test]
async fn listing_removes_expired_records() {
    let site = Site::shared();
    let client = site.client().await;
    let brief = client.once("brief").retain_for(Duration::from_secs(1)).ttl(LONG);
    run_guard(&brief).await.done("x").await.unwrap();
    client.close().await;
    let other = site.client().await;
    assert!(once(&other, "other").record().await.unwrap().is_none());
    until("it is over", async || other.once_records().await.unwrap().is_empty()).await;
    within(2 * SOON, "it is removed", async {
        while !nodes(&site).is_empty() {
            pass(Duration::from_millis(100)).await;
        }
    })
    .await;
}

/// The leader dies after the work and before its record: the work is recorded, and not repeated.
#[tokio::test]
async fn finish_during_an_election_is_recorded() {
    let three = PooledEnsemble::take();
    let client = connect(&three.url()).await;
    let runs = Arc::new(AtomicUsize::new(0));
    for key in ["killed", "stopped"] {
        let leader = three.leader().unwrap();
        let running = run_guard(&once(&client, key)).await;
        runs.fetch_add(1, Ordering::SeqCst);
        let member = &three.members()[leader];
        if key == "killed" {
            member.kill().unwrap();
        } else {
            member.stop().unwrap();
        }
        within(LONG, "it is recorded", running.done("result")).await.unwrap();
        let late = once(&client, key);
        let runs = Arc::clone(&runs);
        let work = |_| async move {
            runs.fetch_add(1, Ordering::SeqCst);
            Ok::<_, std::io::Error>("again")
        };
        let found = within(LONG, "it is found", late.run(work)).await.unwrap();
        assert_eq!((found.ran, &*found.result), (false, &b"result"[..]), "{key}");
        if key == "killed" {
            member.launch().unwrap();
        } else {
            member.resume().unwrap();
        }
        three.wait_until_healthy().unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 2);
}

/// A node that we may not read is left out of the list.
#[tokio::test]
async fn unreadable_record_is_left_out_of_the_list() {
    let site = Site::shared();
    let client = site.client().await;
    for key in ["a", "b"] {
        run_guard(&once(&client, key)).await.done("").await.unwrap();
    }
    let mut raw = Raw::connect(site.server.address());
    let records = format!("{}/.fencepost/records", site.chroot);
    let all = nodes(&site);
    let (shard, _) = all[0].split_once('/').unwrap();
    raw.create(&format!("{records}/{shard}/once%2Fsecret"), "x", Kind::Persistent, ALL & !1);
    raw.create(&format!("{records}/zz"), "", Kind::Persistent, ALL & !1);
    let found = client.once_records().await.unwrap();
    let keys: Vec<_> = found.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["a", "b"]);
}

/// The reply to a step is lost, and the step is retried: it gives the same result, and is applied once.
#[tokio::test]
async fn step_whose_reply_is_lost_is_applied_once() {
    let site = Site::shared();
    let proxy = Proxy::to(site.server.address()).unwrap();
    let client = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
    let (watcher, key) = (site.client().await, once(&client, "cut"));
    run_guard(&key).await.give_up().await.unwrap();
    let running = run_guard(&key).await;
    let token = running.token();
    proxy.set_mode(Mode::DropAnswers);
    let ending = tokio::spawn(running.done("result"));
    let seen = once(&watcher, "cut");
    // A read precedes the write, and its reply is lost as well.
    pass(Duration::from_millis(100)).await;
    proxy.close_all();
    proxy.set_mode(Mode::Pass);
    within(SOON, "the step ends", ending).await.unwrap().unwrap();
    let record = seen.record().await.unwrap().unwrap();
    assert_eq!((record.state, record.token), (State::Done, token));
}

/// With `acl=creator` nobody else reads, finishes or removes a record.
#[tokio::test]
async fn acl_protects_records() {
    let site = Site::shared();
    let url =
        format!("zookeeper://app:hunter2@{}{}?acl=creator", site.server.address(), site.chroot);
    let (owner, other) = (connect(&url).await, site.client().await);
    run_guard(&once(&owner, "private")).await.done("secret").await.unwrap();
    let key = once(&other, "private");
    fails(key.record().await, ErrorKind::Refused, &["USER:PASSWORD@", ".fencepost/records"]);
    fails(key.begin().await, ErrorKind::Refused, &[]);
    fails(other.once_records().await, ErrorKind::Refused, &[".fencepost/records"]);
    assert!(site.server.children(&format!("{}/.fencepost/records", site.chroot)).is_err());
    assert_eq!(
        once(&connect(&url).await, "private").record().await.unwrap().unwrap().result,
        b"secret"
    );
}

#[tokio::test]
async fn node_that_is_not_a_record_is_named() {
    let site = Site::shared();
    let client = site.client().await;
    run_guard(&once(&client, "mine")).await.done("").await.unwrap();
    let node = format!("{}/.fencepost/records/{}", site.chroot, nodes(&site)[0]);
    site.server.delete(&node).unwrap();
    site.server.create(&node, "something else").unwrap();
    fails(once(&client, "mine").record().await, ErrorKind::Refused, &[&node, "delete the node"]);
    assert!(client.once_records().await.unwrap().is_empty());
    assert_eq!(site.server.get(&node).unwrap().as_deref(), Some("something else"));
}

/// Many callers of one missing value, over four clients: one computes it.
#[tokio::test]
async fn one_of_many_callers_computes_a_value() {
    let site = Site::shared();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(site.client().await);
    }
    let computed = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..200)
        .map(|number| {
            let flight = clients[number % 4].single_flight("cold").retain_for(RETENTION);
            let computed = Arc::clone(&computed);
            tokio::spawn(async move {
                let compute = || async move {
                    computed.fetch_add(1, Ordering::SeqCst);
                    Ok::<_, std::io::Error>("value")
                };
                flight.get_or(compute).await.unwrap()
            })
        })
        .collect();
    for task in tasks {
        assert_eq!(within(SOON, "a value", task).await.unwrap(), b"value");
    }
    assert_eq!(computed.load(Ordering::SeqCst), 1);
}
