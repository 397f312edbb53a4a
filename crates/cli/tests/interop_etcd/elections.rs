//! Candidates of fencepost and of `etcdctl elect` in one election, on one server and on three.
//!
//! What must hold: they lead one after the other, each reads the other's value, and a dead leader is replaced.

use std::future::Future;
use std::io::Read as _;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Fencepost, Leader, Leadership, Observer};
use fencepost_testkit::command::{LIMIT, now, wait_for};
use fencepost_testkit::interop::contender::{Contender, Protocol};
use fencepost_testkit::interop::servers::Members;
use fencepost_testkit::interop::worker::Worker;

use crate::etcd::{ClientKind, Fixture};

/// The value of `etcdctl elect` here.
const THEIRS: &[u8] = b"node-3";
/// More than its lease, which cannot be configured.
const ETCDCTL_LEASE: Duration = Duration::from_secs(90);
const LONG: Duration = Duration::from_mins(2);

fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

async fn within<T>(limit: Duration, what: &str, work: impl Future<Output = T>) -> T {
    tokio::select! {
        done = work => done,
        () = BootClock.alarm(now() + limit) => panic!("not within {limit:?}: {what}"),
    }
}

/// A fencepost candidate, on a thread of its own.
fn campaigns(client: &Fencepost, fixture: &Fixture, words: &'static str) -> JoinHandle<Leadership> {
    let election = client.election(&fixture.name).ttl(LONG);
    std::thread::spawn(move || block_on(election.campaign(words)).unwrap())
}

fn leads(candidate: JoinHandle<Leadership>, limit: Duration) -> Leadership {
    wait_for("fencepost leads", limit, || candidate.is_finished());
    candidate.join().unwrap()
}

fn value(leader: Option<&Leader>) -> Option<&[u8]> {
    leader?.value.as_ref().map(fencepost::Value::as_bytes)
}

/// Observes until the leader has this value.
async fn sees(observer: &mut Observer, words: &[u8]) -> Leader {
    within(LIMIT, "the observer sees it", async {
        loop {
            let leader = observer.next().await.unwrap();
            if value(leader.as_ref()) == Some(words) {
                return leader.unwrap();
            }
        }
    })
    .await
}

/// `etcdctl elect -l NAME`, which prints the value of each leader.
fn listener(fixture: &Fixture) -> Worker {
    let mut command = fixture.member().etcdctl_command();
    command.args(["elect", "-l", &fixture.name]);
    Worker::spawn(command, fixture.store.dir.path())
}

fn prints(listener: &mut Worker, words: &str) {
    listener.wait_for_line(|lines| lines.iter().any(|line| line == words).then_some(()));
}

fn take_turns(members: Members) {
    let fixture = Fixture::with(members);
    block_on(async {
        let client = Fencepost::connect(fixture.url()).await.unwrap();
        let mut observer = client.election(&fixture.name).observe().unwrap();
        let mut printed = listener(&fixture);

        let ours = leads(campaigns(&client, &fixture, "ours first"), LIMIT);
        prints(&mut printed, "ours first");
        ours.proclaim("ours, proclaimed").await.unwrap();
        prints(&mut printed, "ours, proclaimed");
        assert_eq!(sees(&mut observer, b"ours, proclaimed").await.term, Some(ours.term()));

        // etcdctl waits for fencepost ...
        let mut theirs = fixture.contend(ClientKind::Elect, 60);
        fixture.wait_for_waiters(1);
        assert!(theirs.token().is_none());
        let term = ours.term();
        ours.resign().await.unwrap();
        let token = theirs.granted();
        assert!(token > term.get());
        let leader = sees(&mut observer, THEIRS).await;
        assert_eq!(leader.term.map(fencepost::Token::get), Some(token));
        prints(&mut printed, "node-3");

        // ... and fencepost for etcdctl.
        let next = campaigns(&client, &fixture, "ours again");
        fixture.wait_for_waiters(1);
        assert!(!next.is_finished());
        theirs.release();
        let next = leads(next, LIMIT);
        assert!(next.term().get() > token);
        assert_eq!(sees(&mut observer, b"ours again").await.term, Some(next.term()));
        prints(&mut printed, "ours again");
        next.resign().await.unwrap();
    });
}

#[test]
fn etcdctl_and_fencepost_candidates_take_turns() {
    take_turns(Members::One);
}

#[test]
fn etcdctl_and_fencepost_candidates_take_turns_on_three_members() {
    take_turns(Members::Three);
}

/// A plain lock of a third-party client is not a leader, and has no value.
#[test]
fn third_party_lock_has_no_value() {
    let fixture = Fixture::with(Members::One);
    let mut holder = fixture.contend(ClientKind::Lock, 60);
    let token = holder.granted();
    block_on(async {
        let client = Fencepost::connect(fixture.url()).await.unwrap();
        let leader = client.election(&fixture.name).leader().await.unwrap().unwrap();
        assert_eq!((leader.term.map(fencepost::Token::get), leader.value), (Some(token), None));
    });
    holder.release();
}

const NAME: &str = "FENCEPOST_TEST_ELECTION";

/// Not a test: the process of a fencepost candidate, which leads until its input ends.
#[test]
#[ignore = "started by the tests here"]
fn candidate_process() {
    let Ok(name) = std::env::var(NAME) else { return };
    block_on(async {
        let client = Fencepost::from_env().await.unwrap();
        let election = client.election(name).ttl(Duration::from_secs(3));
        let leadership = election.campaign("ours, to be killed").await.unwrap();
        println!("\ntoken {}", leadership.term());
        // The library renews on a thread of its own.
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        leadership.resign().await.unwrap();
    });
}

fn candidate(fixture: &Fixture) -> Contender {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "elections::candidate_process", "--ignored", "--nocapture"]);
    command.env(NAME, &fixture.name).env("FENCEPOST_URL", fixture.url());
    Contender::new(Worker::spawn(command, fixture.store.dir.path()), Protocol::FENCEPOST)
}

#[test]
fn third_party_candidate_follows_a_killed_leader() {
    let fixture = Fixture::with(Members::One);
    let mut ours = candidate(&fixture);
    let token = ours.granted();
    assert_eq!(fixture.show()["token"], token);
    let mut theirs = fixture.contend(ClientKind::Elect, 60);
    fixture.wait_for_waiters(1);
    ours.kill();
    assert!(theirs.granted() > token);
    wait_for("its end", LIMIT, || ours.has_ended());
    theirs.release();
}

#[test]
fn candidate_follows_a_killed_third_party_leader() {
    let fixture = Fixture::with(Members::One);
    let mut theirs = fixture.contend(ClientKind::Elect, 60);
    let token = theirs.granted();
    block_on(async {
        let client = Fencepost::connect(fixture.url()).await.unwrap();
        let ours = campaigns(&client, &fixture, "ours");
        fixture.wait_for_waiters(1);
        theirs.kill();
        let ours = leads(ours, ETCDCTL_LEASE);
        assert!(ours.term().get() > token);
        ours.resign().await.unwrap();
    });
}
