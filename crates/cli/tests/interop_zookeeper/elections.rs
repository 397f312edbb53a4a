//! Candidates of kazoo's `Election`, Curator's `LeaderSelector` and `LeaderLatch`, and fencepost, each in a process of its
//! own. Each reads the values of the others.

use std::io::BufRead as _;
use std::process::Command;
use std::time::Duration;

use fencepost::{Fencepost, Leader};
use fencepost_testkit::command::{LIMIT, now, wait_for};
use fencepost_testkit::interop::contender::{Contender, Protocol};
use fencepost_testkit::interop::servers::Members;
use fencepost_testkit::interop::worker::{Worker, python};

use crate::zookeeper::{Fixture, java};

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ClientKind {
    Fencepost(&'static str),
    Kazoo,
    Selector,
    Latch,
}

const OURS: ClientKind = ClientKind::Fencepost("curator");
const OURS_AS_KAZOO: ClientKind = ClientKind::Fencepost("kazoo");
const OURS_AS_LATCH: ClientKind = ClientKind::Fencepost("latch");
/// Pairs that can contend with each other.
const PAIRS: [(ClientKind, ClientKind); 3] = [
    (OURS, ClientKind::Selector),
    (OURS_AS_KAZOO, ClientKind::Kazoo),
    (OURS_AS_LATCH, ClientKind::Latch),
];
/// The variable with the task of a fencepost candidate.
const CANDIDATE: &str = "FENCEPOST_TEST_CANDIDATE";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// Not a test: the process of a fencepost candidate, which the tests below start. It takes the same orders as the
/// third-party candidates, and `renew`, which renews its lease, and `say VALUE`.
#[test]
#[ignore = "the other tests start it"]
fn candidate() {
    let Ok(orders) = std::env::var(CANDIDATE) else { return };
    let [url, name, ttl, value]: [&str; 4] =
        orders.split('\n').collect::<Vec<_>>().try_into().unwrap();
    let runtime = runtime();
    let client = runtime.block_on(Fencepost::connect(url)).unwrap();
    let ttl = Duration::from_millis(ttl.parse().unwrap());
    let election = client.election(name).ttl(ttl);
    let mut leading = None;
    println!("\nready");
    for line in std::io::stdin().lock().lines().map_while(Result::ok) {
        match line.split_once(' ').unwrap_or((&line, "")) {
            ("acquire", _) => {
                let leadership = runtime.block_on(election.campaign(value)).unwrap();
                println!("granted {}", leadership.term());
                leading = Some(leadership);
            }
            ("say", value) => {
                let term = leading.as_ref().unwrap();
                runtime.block_on(term.proclaim(value)).unwrap();
                println!("said");
            }
            ("renew", _) => {
                let owner = leading.as_ref().unwrap().guard().owner();
                for _ in 0..3 {
                    runtime.block_on(client.renew(name, owner, None)).unwrap();
                }
                println!("renewed");
            }
            ("release", _) => {
                runtime.block_on(leading.take().unwrap().resign()).unwrap();
                println!("released");
            }
            _ => panic!("{line}"),
        }
    }
    runtime.block_on(client.close());
}

/// Starts a worker, which prints `ready` when it is connected.
fn worker(fixture: &Fixture, kind: ClientKind, value: &str, ttl: Duration) -> Worker {
    let ttl = ttl.as_millis().to_string();
    let (hosts, path) = (fixture.member().address().to_string(), format!("/{}", fixture.name));
    let mut command = match kind {
        ClientKind::Fencepost(style) => {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let url = format!("zookeeper://{hosts}?style={style}");
            command.env(CANDIDATE, [&url, &fixture.name, &ttl, value].join("\n"));
            command.args(["--exact", "elections::candidate", "--ignored", "--nocapture"]);
            return Worker::spawn(command, fixture.store.dir.path());
        }
        ClientKind::Kazoo => python("kazoo_election.py"),
        ClientKind::Selector | ClientKind::Latch => {
            let mut command = java("CuratorElection");
            command.arg(if kind == ClientKind::Latch { "latch" } else { "selector" });
            command
        }
    };
    command.args([&hosts, &path, &ttl, value]);
    Worker::spawn(command, fixture.store.dir.path())
}

/// Starts a candidate that leads as soon as it is elected.
fn campaign(fixture: &Fixture, kind: ClientKind, value: &str, ttl: u64) -> Contender {
    let mut worker = worker(fixture, kind, value, Duration::from_secs(ttl));
    worker.send("acquire");
    Contender::new(worker, Protocol::WORKER)
}

/// The leader, as fencepost sees it.
fn leader(fixture: &Fixture) -> Option<Leader> {
    runtime().block_on(async {
        let client = Fencepost::connect(&fixture.member().url()).await.unwrap();
        let leader = client.election(&fixture.name).leader().await.unwrap();
        client.close().await;
        leader
    })
}

fn value(leader: Option<Leader>) -> Option<String> {
    leader.and_then(|leader| leader.value).map(|value| value.text().into_owned())
}

fn with_each(test: impl Fn(&Fixture, ClientKind, ClientKind) + Sync) {
    for (ours, theirs) in PAIRS {
        let fixture = Fixture::with(Members::One);
        println!("{ours:?} and {theirs:?}: {}", fixture.name);
        test(&fixture, ours, theirs);
    }
}

/// Each waits for the other and reads its value. Terms rise across both.
#[test]
fn curator_and_fencepost_candidates_take_turns() {
    with_each(|fixture, ours, theirs| {
        let mut first = campaign(fixture, theirs, "theirs", 30);
        let term = first.granted();
        let seen = leader(fixture).unwrap();
        assert_eq!(seen.term.map(fencepost::Token::get), Some(term));
        assert_eq!(value(Some(seen)).as_deref(), Some("theirs"));
        let mut second = campaign(fixture, ours, "ours", 30);
        fixture.wait_for_waiters(1);
        let mut third = campaign(fixture, theirs, "theirs too", 30);
        fixture.wait_for_waiters(2);
        assert!(second.token().is_none() && third.token().is_none());
        let listed = ["ours", "theirs", "theirs too"];
        let others = first.ask("contenders", "contenders ");
        let mut others: Vec<&str> = others.split(',').collect();
        others.sort_unstable();
        assert_eq!(others, listed, "{theirs:?} reads all values");
        first.release();
        let next = second.granted();
        assert!(next > term && third.token().is_none());
        if theirs != ClientKind::Kazoo {
            assert_eq!(third.ask("leader", "leader "), "ours");
        }
        // Renewals do not keep the third candidate from learning of the end of the term.
        second.ask("renew", "renewed");
        // Other clients read a proclaimed value too. `LeaderLatch` has no such read.
        if theirs != ClientKind::Latch {
            second.ask("say ours, busy", "said");
            assert_eq!(value(leader(fixture)).as_deref(), Some("ours, busy"));
        }
        match theirs {
            ClientKind::Latch => {}
            ClientKind::Kazoo => {
                assert!(third.ask("contenders", "contenders ").starts_with("ours, busy,"));
            }
            _ => assert_eq!(third.ask("leader", "leader "), "ours, busy"),
        }
        second.release();
        assert!(third.granted() > next);
        third.release();
        wait_for("nobody leads", LIMIT, || leader(fixture).is_none());
    });
}

/// After `kill -9` of either, the other leads when the session has ended.
#[test]
fn third_party_candidate_follows_a_killed_leader() {
    with_each(|fixture, ours, theirs| {
        for (dies, follows) in [(ours, theirs), (theirs, ours)] {
            let mut leading = campaign(fixture, dies, "leads", 3);
            let term = leading.granted();
            let mut next = campaign(fixture, follows, "follows", 20);
            fixture.wait_for_waiters(1);
            let before = now();
            leading.kill();
            assert!(next.granted() > term);
            println!(
                "{dies:?} with a TTL of 3 s was killed, {follows:?} led after {:.2?}",
                now().since(before)
            );
            assert_eq!(value(leader(fixture)).as_deref(), Some("follows"));
            next.release();
        }
    });
}

/// How soon a dead fencepost leader is replaced: its session is as long as the TTL, and ends at a tick of the server.
#[test]
fn next_candidate_leads_soon_after_the_ttl() {
    let fixture = Fixture::with(Members::One);
    for ttl in [2, 4] {
        for _ in 0..3 {
            let mut leading = campaign(&fixture, OURS, "leads", ttl);
            leading.granted();
            let mut next = campaign(&fixture, OURS, "follows", 20);
            fixture.wait_for_waiters(1);
            let before = now();
            leading.kill();
            next.granted();
            println!("a TTL of {ttl} s: the next led {:.2?} after kill -9", now().since(before));
            next.release();
        }
    }
}

/// The facts behind the choice of a style: a `LeaderLatch` orders children by what follows `latch-`, a `LeaderSelector`
/// by what follows `lock-`, and each sorts the other's children behind its own. Fencepost waits for all.
#[test]
fn latch_waits_for_latches_and_selector_for_locks() {
    for (holder, contender, waits) in [
        (OURS, ClientKind::Latch, false),
        (OURS_AS_LATCH, ClientKind::Selector, false),
        (OURS_AS_LATCH, ClientKind::Kazoo, false),
        (ClientKind::Latch, OURS, true),
        (ClientKind::Selector, OURS_AS_LATCH, true),
        (ClientKind::Kazoo, OURS_AS_LATCH, true),
        (OURS_AS_KAZOO, OURS_AS_LATCH, true),
    ] {
        let fixture = Fixture::with(Members::One);
        let mut first = campaign(&fixture, holder, "first", 30);
        first.granted();
        let mut second = campaign(&fixture, contender, "second", 30);
        println!("{contender:?} waits for {holder:?}: {waits}");
        if waits {
            fixture.wait_for_waiters(1);
            assert!(second.token().is_none(), "{contender:?} and {holder:?}: update the docs");
            first.release();
            second.granted();
        } else {
            second.granted();
            first.release();
        }
        second.release();
    }
}
