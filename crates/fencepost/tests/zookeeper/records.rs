//! Records of what was done: that one success is recorded, what others see of it, and how it goes.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost::ledger::State;
use fencepost::{Begun, ErrorKind, Fencepost, OnFailure, Once, Turn};
use fencepost_testkit::{LONG, Mode, Proxy, SOON, ZooKeeper, connect, fails, pass, until, within};

use super::common::Site;
use super::ensemble::Three;
use super::raw::{ALL, Kind, Raw};

const KEEP: Duration = Duration::from_hours(1);

fn once(client: &Fencepost, key: &str) -> Once {
    client.once(key).keep(KEEP).ttl(LONG)
}

async fn turn(once: &Once) -> Turn {
    match within(SOON, "its turn", once.begin()).await.unwrap() {
        Begun::Ours(turn) => turn,
        Begun::Settled(entry) => panic!("it is settled: {entry:?}"),
    }
}

/// All nodes of records, with their directories.
fn nodes(site: &Site) -> Vec<String> {
    let shelves = site.children("/.fencepost/records").into_iter().filter(|it| it.len() == 2);
    let inside = |shelf: String| {
        let nodes = site.children(&format!("/.fencepost/records/{shelf}"));
        nodes.into_iter().map(move |node| format!("{shelf}/{node}"))
    };
    shelves.flat_map(inside).collect()
}

#[tokio::test]
async fn of_many_who_race_one_runs_and_all_have_its_result() {
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
                    let work = |run: fencepost::Run| async move {
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
            let recorded = within(SOON, "all are told", task).await.unwrap();
            assert_eq!(recorded.result, recorded.token.to_string().into_bytes());
            ran += usize::from(recorded.ran);
            tokens.push(recorded.token);
        }
        tokens.dedup();
        assert_eq!((ran, runs.load(Ordering::SeqCst), tokens.len()), (1, 1, 1), "{key}");
    }
    let found = clients[0].once_entries().await.unwrap();
    let keys: Vec<_> = found.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["a", "b/c", "ü 🔒%"]);
    assert!(found.iter().all(|(_, entry)| entry.state == State::Done && entry.result.is_empty()));
    assert_eq!(nodes(&site).len(), 3);
    assert!(clients[0].list().await.unwrap().is_empty(), "records are no locks");
}

/// The lock was taken from it: whatever it does then, the record is the next one's.
#[tokio::test]
async fn one_that_was_overtaken_can_not_settle_it() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    for end in ["done", "failed", "given up"] {
        let late = turn(&once(&ours, end)).await;
        theirs.break_lock(&format!("once/{end}")).await.unwrap().unwrap();
        let next = turn(&once(&theirs, end)).await;
        let token = next.token();
        assert!(token > late.token());
        let refused = match end {
            "done" => late.done("mine").await,
            "failed" => late.failed("mine").await,
            _ => late.give_up().await,
        };
        fails(refused, &ErrorKind::Lost(fencepost::LossCause::TakenOver), &[]);
        let entry = once(&ours, end).entry().await.unwrap().unwrap();
        assert_eq!((entry.state, entry.token), (State::Running, token), "{end}");
        next.done("theirs").await.unwrap();
        let entry = once(&ours, end).entry().await.unwrap().unwrap();
        assert_eq!((entry.state, &*entry.result), (State::Done, &b"theirs"[..]), "{end}");
    }
}

#[tokio::test]
async fn a_result_is_kept_byte_for_byte_and_over_a_restart() {
    let server = ZooKeeper::builder().start().unwrap();
    let url = format!("{}/deep/er", server.url());
    let client = connect(&url).await;
    let large: Vec<u8> = (0..64 * 1024_u32).map(|at| (at * 31 % 251) as u8).collect();
    turn(&once(&client, "large")).await.done(large.clone()).await.unwrap();
    turn(&once(&client, "bad")).await.failed("it broke").await.unwrap();
    client.close().await;
    server.restart().unwrap();
    let client = connect(&url).await;
    let entry = once(&client, "large").entry().await.unwrap().unwrap();
    assert!(entry.result == large && entry.state == State::Done);
    assert!(entry.since < SOON * 6 && entry.kept_for <= KEEP && entry.kept_for > KEEP / 2);
    let refused = once(&client, "bad").run(|_| async { Ok::<_, std::io::Error>("no") }).await;
    fails(refused, &ErrorKind::Failed, &["forget"]);
    assert!(once(&client, "bad").forget().await.unwrap());
    assert!(!once(&client, "bad").forget().await.unwrap());
    let work = |_| async { Err::<&str, _>(std::io::Error::other("once more")) };
    once(&client, "bad").on_failure(OnFailure::Retry).run(work).await.unwrap_err();
    assert!(once(&client, "bad").entry().await.unwrap().is_none());
}

/// A record that is over counts as absent, and goes: by whoever meets it, or by what others do.
#[tokio::test]
async fn a_record_goes_when_its_time_is_over() {
    let site = Site::shared();
    let client = site.client().await;
    let second = Duration::from_secs(1);
    for number in 0..24 {
        let brief = client.once(format!("brief/{number}")).keep(second).ttl(LONG);
        turn(&brief).await.done("x").await.unwrap();
    }
    let brief = client.once("brief/0").keep(second).ttl(LONG);
    until("it is over", async || brief.entry().await.unwrap().is_none()).await;
    let again = turn(&brief).await;
    again.give_up().await.unwrap();
    // A list leaves no trace of the others.
    turn(&once(&client, "later")).await.done("").await.unwrap();
    until("they are gone", async || {
        let found = client.once_entries().await.unwrap();
        assert!(found.iter().any(|(key, _)| key == "later"));
        nodes(&site).iter().all(|node| node.contains("later"))
    })
    .await;
}

/// Nobody finishes anything, nor asks for them by name: a list is enough.
#[tokio::test]
async fn records_go_without_anybody_finishing() {
    let site = Site::shared();
    let client = site.client().await;
    let brief = client.once("brief").keep(Duration::from_secs(1)).ttl(LONG);
    turn(&brief).await.done("x").await.unwrap();
    client.close().await;
    let other = site.client().await;
    assert!(once(&other, "other").entry().await.unwrap().is_none());
    until("it is over", async || other.once_entries().await.unwrap().is_empty()).await;
    within(2 * SOON, "it is removed", async {
        while !nodes(&site).is_empty() {
            pass(Duration::from_millis(100)).await;
        }
    })
    .await;
}

/// The leader is killed when the work is done and not recorded yet: it is recorded, and not done again.
#[tokio::test]
async fn what_was_done_is_recorded_over_an_election() {
    let three = Three::take();
    let client = connect(&three.url()).await;
    let runs = Arc::new(AtomicUsize::new(0));
    for key in ["killed", "stopped"] {
        let leader = three.leader().unwrap();
        let running = turn(&once(&client, key)).await;
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

/// A node that is not for us to read is left out of a list, and ends nothing.
#[tokio::test]
async fn an_unreadable_record_is_left_out_of_a_list() {
    let site = Site::shared();
    let client = site.client().await;
    for key in ["a", "b"] {
        turn(&once(&client, key)).await.done("").await.unwrap();
    }
    let mut raw = Raw::connect(site.server.address());
    let records = format!("{}/.fencepost/records", site.chroot);
    let all = nodes(&site);
    let (shelf, _) = all[0].split_once('/').unwrap();
    raw.create(&format!("{records}/{shelf}/once%2Fsecret"), "x", Kind::Stays, ALL & !1);
    raw.create(&format!("{records}/zz"), "", Kind::Stays, ALL & !1);
    let found = client.once_entries().await.unwrap();
    let keys: Vec<_> = found.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["a", "b"]);
}

/// The answer to a step is lost, and it is asked again: it says the same, and is done once.
#[tokio::test]
async fn a_step_whose_answer_is_lost_is_found_done() {
    let site = Site::shared();
    let proxy = Proxy::to(site.server.address()).unwrap();
    let client = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
    let (watcher, key) = (site.client().await, once(&client, "cut"));
    turn(&key).await.give_up().await.unwrap();
    let running = turn(&key).await;
    let token = running.token();
    proxy.set_mode(Mode::DropAnswers);
    let ending = tokio::spawn(running.done("result"));
    let seen = once(&watcher, "cut");
    // A read comes before the write, and its answer is lost as well.
    pass(Duration::from_millis(100)).await;
    proxy.close_all();
    proxy.set_mode(Mode::Pass);
    within(SOON, "it is told", ending).await.unwrap().unwrap();
    let entry = seen.entry().await.unwrap().unwrap();
    assert_eq!((entry.state, entry.token), (State::Done, token));
}

/// With `acl=creator` nobody else reads, settles or removes a record.
#[tokio::test]
async fn credentials_keep_others_from_records() {
    let site = Site::shared();
    let url =
        format!("zookeeper://app:hunter2@{}{}?acl=creator", site.server.address(), site.chroot);
    let (owner, stranger) = (connect(&url).await, site.client().await);
    turn(&once(&owner, "private")).await.done("secret").await.unwrap();
    let key = once(&stranger, "private");
    fails(key.entry().await, &ErrorKind::Refused, &["USER:PASSWORD@", ".fencepost/records"]);
    fails(key.begin().await, &ErrorKind::Refused, &[]);
    fails(stranger.once_entries().await, &ErrorKind::Refused, &[".fencepost/records"]);
    assert!(site.server.children(&format!("{}/.fencepost/records", site.chroot)).is_err());
    assert_eq!(
        once(&connect(&url).await, "private").entry().await.unwrap().unwrap().result,
        b"secret"
    );
}

#[tokio::test]
async fn a_node_that_is_no_record_is_named() {
    let site = Site::shared();
    let client = site.client().await;
    turn(&once(&client, "mine")).await.done("").await.unwrap();
    let node = format!("{}/.fencepost/records/{}", site.chroot, nodes(&site)[0]);
    site.server.delete(&node).unwrap();
    site.server.create(&node, "something else").unwrap();
    fails(once(&client, "mine").entry().await, &ErrorKind::Refused, &[&node, "remove it"]);
    assert!(client.once_entries().await.unwrap().is_empty());
    assert_eq!(site.server.get(&node).unwrap().as_deref(), Some("something else"));
}

/// Many on one cold key, over four clients: one computes.
#[tokio::test]
async fn of_many_who_want_a_value_one_computes() {
    let site = Site::shared();
    let mut clients = Vec::new();
    for _ in 0..4 {
        clients.push(site.client().await);
    }
    let computed = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..200)
        .map(|number| {
            let flight = clients[number % 4].single_flight("cold").keep(KEEP);
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
