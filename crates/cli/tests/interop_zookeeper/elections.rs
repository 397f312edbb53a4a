//! Candidates of other makes: kazoo's `Election`, Curator's `LeaderSelector` and `LeaderLatch`, and ours, each in a
//! process of its own. What each says of itself is what the others read.

use std::io::BufRead as _;
use std::process::Command;
use std::time::Duration;

use fencepost::{Fencepost, Leader};
use fencepost_testkit::command::{LIMIT, now, wait_for};
use fencepost_testkit::interop::contender::{Contender, Ways};
use fencepost_testkit::interop::servers::Members;
use fencepost_testkit::interop::worker::{Worker, python};

use crate::zookeeper::{Scene, java};

/// Whose candidate it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Make {
    Ours(&'static str),
    Kazoo,
    Selector,
    Latch,
}

const OURS: Make = Make::Ours("curator");
const OURS_AS_KAZOO: Make = Make::Ours("kazoo");
const OURS_AS_LATCH: Make = Make::Ours("latch");
/// Those that take part with each other.
const PAIRS: [(Make, Make); 3] =
    [(OURS, Make::Selector), (OURS_AS_KAZOO, Make::Kazoo), (OURS_AS_LATCH, Make::Latch)];
/// Where our candidate is told what it is to do.
const CANDIDATE: &str = "FENCEPOST_TEST_CANDIDATE";

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().build().unwrap()
}

/// One of ours, in a process of its own: the tests below start it. It takes the same orders as the others, and
/// `beat`, which renews its lease, and `say VALUE`.
#[test]
#[ignore = "it is started by the others"]
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
            ("beat", _) => {
                let owner = leading.as_ref().unwrap().guard().owner();
                for _ in 0..3 {
                    runtime.block_on(client.renew(name, owner, None)).unwrap();
                }
                println!("beaten");
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

/// Starts a worker; it says `ready` some time.
fn worker(scene: &Scene, make: Make, value: &str, ttl: Duration) -> Worker {
    let ttl = ttl.as_millis().to_string();
    let (hosts, path) = (scene.member().address().to_string(), format!("/{}", scene.name));
    let mut command = match make {
        Make::Ours(style) => {
            let mut command = Command::new(std::env::current_exe().unwrap());
            let url = format!("zookeeper://{hosts}?style={style}");
            command.env(CANDIDATE, [&url, &scene.name, &ttl, value].join("\n"));
            command.args(["--exact", "elections::candidate", "--ignored", "--nocapture"]);
            return Worker::spawn(command, scene.store.dir.path());
        }
        Make::Kazoo => python("kazoo_election.py"),
        Make::Selector | Make::Latch => {
            let mut command = java("CuratorElection");
            command.arg(if make == Make::Latch { "latch" } else { "selector" });
            command
        }
    };
    command.args([&hosts, &path, &ttl, value]);
    Worker::spawn(command, scene.store.dir.path())
}

/// Starts one that leads as soon as it is elected.
fn campaign(scene: &Scene, make: Make, value: &str, ttl: u64) -> Contender {
    let mut worker = worker(scene, make, value, Duration::from_secs(ttl));
    worker.tell("acquire");
    Contender::new(worker, Ways::WORKER)
}

/// Who leads, as we see it.
fn leader(scene: &Scene) -> Option<Leader> {
    runtime().block_on(async {
        let client = Fencepost::connect(&scene.member().url()).await.unwrap();
        let leader = client.election(&scene.name).leader().await.unwrap();
        client.close().await;
        leader
    })
}

fn value(leader: Option<Leader>) -> Option<String> {
    leader.and_then(|leader| leader.value).map(|value| value.text().into_owned())
}

fn with_each(test: impl Fn(&Scene, Make, Make) + Sync) {
    for (ours, theirs) in PAIRS {
        let scene = Scene::with(Members::One);
        println!("{ours:?} and {theirs:?}: {}", scene.name);
        test(&scene, ours, theirs);
    }
}

/// Each waits for the other, and reads what the other says of itself; terms rise over both.
#[test]
fn candidates_of_two_makes_lead_in_turn() {
    with_each(|scene, ours, theirs| {
        let mut first = campaign(scene, theirs, "theirs", 30);
        let term = first.granted();
        let seen = leader(scene).unwrap();
        assert_eq!(seen.term.map(fencepost::Token::get), Some(term));
        assert_eq!(value(Some(seen)).as_deref(), Some("theirs"));
        let mut second = campaign(scene, ours, "ours", 30);
        scene.wait_for_waiters(1);
        let mut third = campaign(scene, theirs, "theirs too", 30);
        scene.wait_for_waiters(2);
        assert!(second.token().is_none() && third.token().is_none());
        let listed = ["ours", "theirs", "theirs too"];
        let others = first.ask("contenders", "contenders ");
        let mut others: Vec<&str> = others.split(',').collect();
        others.sort_unstable();
        assert_eq!(others, listed, "{theirs:?} reads what all say");
        first.release();
        let next = second.granted();
        assert!(next > term && third.token().is_none());
        if theirs != Make::Kazoo {
            assert_eq!(third.ask("leader", "leader "), "ours");
        }
        // Its heartbeats keep nobody from hearing of its end.
        second.ask("beat", "beaten");
        // What is proclaimed is read by them as well, but where that would.
        if theirs != Make::Latch {
            second.ask("say ours, busy", "said");
            assert_eq!(value(leader(scene)).as_deref(), Some("ours, busy"));
        }
        match theirs {
            Make::Latch => {}
            Make::Kazoo => {
                assert!(third.ask("contenders", "contenders ").starts_with("ours, busy,"));
            }
            _ => assert_eq!(third.ask("leader", "leader "), "ours, busy"),
        }
        second.release();
        assert!(third.granted() > next);
        third.release();
        wait_for("nobody leads", LIMIT, || leader(scene).is_none());
    });
}

/// `kill -9` of either: the other leads when the session is over.
#[test]
fn a_killed_leader_is_followed_by_the_other_make() {
    with_each(|scene, ours, theirs| {
        for (dies, follows) in [(ours, theirs), (theirs, ours)] {
            let mut leading = campaign(scene, dies, "leads", 3);
            let term = leading.granted();
            let mut next = campaign(scene, follows, "follows", 20);
            scene.wait_for_waiters(1);
            let before = now();
            leading.kill();
            assert!(next.granted() > term);
            println!(
                "{dies:?} was killed with 3 s, {follows:?} led after {:.2?}",
                now().since(before)
            );
            assert_eq!(value(leader(scene)).as_deref(), Some("follows"));
            next.release();
        }
    });
}

/// How soon a leader of ours that dies is followed: the session is as long as the TTL, and ends with a tick.
#[test]
fn the_next_of_ours_leads_soon_after_the_ttl() {
    let scene = Scene::with(Members::One);
    for ttl in [2, 4] {
        for _ in 0..3 {
            let mut leading = campaign(&scene, OURS, "leads", ttl);
            leading.granted();
            let mut next = campaign(&scene, OURS, "follows", 20);
            scene.wait_for_waiters(1);
            let before = now();
            leading.kill();
            next.granted();
            println!("a TTL of {ttl} s: the next led {:.2?} after kill -9", now().since(before));
            next.release();
        }
    }
}

/// The facts that the choice of a style rests on: a `LeaderLatch` orders children by what follows `latch-`, a
/// `LeaderSelector` by what follows `lock-`, and each takes the other's for later ones. We wait for all.
#[test]
fn a_latch_waits_for_latches_and_a_selector_for_locks() {
    for (holder, contender, waits) in [
        (OURS, Make::Latch, false),
        (OURS_AS_LATCH, Make::Selector, false),
        (OURS_AS_LATCH, Make::Kazoo, false),
        (Make::Latch, OURS, true),
        (Make::Selector, OURS_AS_LATCH, true),
        (Make::Kazoo, OURS_AS_LATCH, true),
        (OURS_AS_KAZOO, OURS_AS_LATCH, true),
    ] {
        let scene = Scene::with(Members::One);
        let mut first = campaign(&scene, holder, "first", 30);
        first.granted();
        let mut second = campaign(&scene, contender, "second", 30);
        println!("{contender:?} waits for {holder:?}: {waits}");
        if waits {
            scene.wait_for_waiters(1);
            assert!(second.token().is_none(), "{contender:?} and {holder:?}: tell the docs");
            first.release();
            second.granted();
        } else {
            second.granted();
            first.release();
        }
        second.release();
    }
}
