//! Candidates of ours and of `etcdctl elect` in one election, on one server and on three.
//!
//! What must hold: they lead one after the other, each reads what the other says, and whoever dies is followed.

use std::future::Future;
use std::io::Read as _;
use std::process::Command;
use std::thread::JoinHandle;
use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Fencepost, Leader, Leadership, Observer};
use fencepost_testkit::command::{LIMIT, now, wait_for};
use fencepost_testkit::interop::contender::{Contender, Ways};
use fencepost_testkit::interop::servers::Members;
use fencepost_testkit::interop::worker::Worker;

use crate::etcd::{Make, Scene};

/// What `etcdctl elect` is told to say here.
const THEIRS: &[u8] = b"node-3";
/// Its lease, which nobody can choose, and some.
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

/// A candidate of ours, on a thread of its own.
fn stands(client: &Fencepost, scene: &Scene, words: &'static str) -> JoinHandle<Leadership> {
    let election = client.election(&scene.name).ttl(LONG);
    std::thread::spawn(move || block_on(election.campaign(words)).unwrap())
}

fn leads(candidate: JoinHandle<Leadership>, limit: Duration) -> Leadership {
    wait_for("ours leads", limit, || candidate.is_finished());
    candidate.join().unwrap()
}

fn value(leader: Option<&Leader>) -> Option<&[u8]> {
    leader?.value.as_ref().map(fencepost::Value::as_bytes)
}

/// Observes until this is said.
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

/// `etcdctl elect -l NAME`, which shows whoever leads, and what it says.
fn listener(scene: &Scene) -> Worker {
    let mut command = scene.member().etcdctl_command();
    command.args(["elect", "-l", &scene.name]);
    Worker::spawn(command, scene.store.dir.path())
}

fn hears(listener: &mut Worker, words: &str) {
    listener.wait_for_line(|lines| lines.iter().any(|line| line == words).then_some(()));
}

fn take_turns(members: Members) {
    let scene = Scene::with(members);
    block_on(async {
        let client = Fencepost::connect(scene.url()).await.unwrap();
        let mut observer = client.election(&scene.name).observe().unwrap();
        let mut heard = listener(&scene);

        let ours = leads(stands(&client, &scene, "ours first"), LIMIT);
        hears(&mut heard, "ours first");
        ours.proclaim("ours, proclaimed").await.unwrap();
        hears(&mut heard, "ours, proclaimed");
        assert_eq!(sees(&mut observer, b"ours, proclaimed").await.term, Some(ours.term()));

        // Theirs waits for ours ...
        let mut theirs = scene.contend(Make::Elect, 60);
        scene.wait_for_waiters(1);
        assert!(theirs.token().is_none());
        let term = ours.term();
        ours.resign().await.unwrap();
        let token = theirs.granted();
        assert!(token > term.get());
        let leader = sees(&mut observer, THEIRS).await;
        assert_eq!(leader.term.map(fencepost::Token::get), Some(token));
        hears(&mut heard, "node-3");

        // ... and ours for theirs.
        let next = stands(&client, &scene, "ours again");
        scene.wait_for_waiters(1);
        assert!(!next.is_finished());
        theirs.release();
        let next = leads(next, LIMIT);
        assert!(next.term().get() > token);
        assert_eq!(sees(&mut observer, b"ours again").await.term, Some(next.term()));
        hears(&mut heard, "ours again");
        next.resign().await.unwrap();
    });
}

#[test]
fn candidates_of_both_makes_take_turns() {
    take_turns(Members::One);
}

#[test]
fn candidates_of_both_makes_take_turns_on_three_members() {
    take_turns(Members::Three);
}

/// A plain lock of another make leads nothing: it says nothing.
#[test]
fn a_lock_of_another_make_has_no_value() {
    let scene = Scene::with(Members::One);
    let mut holder = scene.contend(Make::Lock, 60);
    let token = holder.granted();
    block_on(async {
        let client = Fencepost::connect(scene.url()).await.unwrap();
        let leader = client.election(&scene.name).leader().await.unwrap().unwrap();
        assert_eq!((leader.term.map(fencepost::Token::get), leader.value), (Some(token), None));
    });
    holder.release();
}

const NAME: &str = "FENCEPOST_TEST_ELECTION";

/// Not a test: the process of a candidate of ours, which leads until its input ends.
#[test]
#[ignore = "started by the tests here"]
fn a_candidate_of_ours() {
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

fn candidate_of_ours(scene: &Scene) -> Contender {
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--exact", "elections::a_candidate_of_ours", "--ignored", "--nocapture"]);
    command.env(NAME, &scene.name).env("FENCEPOST_URL", scene.url());
    Contender::new(Worker::spawn(command, scene.store.dir.path()), Ways::FENCEPOST)
}

#[test]
fn a_killed_leader_of_ours_is_followed_by_the_other_make() {
    let scene = Scene::with(Members::One);
    let mut ours = candidate_of_ours(&scene);
    let token = ours.granted();
    assert_eq!(scene.show()["token"], token);
    let mut theirs = scene.contend(Make::Elect, 60);
    scene.wait_for_waiters(1);
    ours.kill();
    assert!(theirs.granted() > token);
    wait_for("its end", LIMIT, || ours.has_ended());
    theirs.release();
}

#[test]
fn a_killed_leader_of_the_other_make_is_followed_by_ours() {
    let scene = Scene::with(Members::One);
    let mut theirs = scene.contend(Make::Elect, 60);
    let token = theirs.granted();
    block_on(async {
        let client = Fencepost::connect(scene.url()).await.unwrap();
        let ours = stands(&client, &scene, "ours");
        scene.wait_for_waiters(1);
        theirs.kill();
        let ours = leads(ours, ETCDCTL_LEASE);
        assert!(ours.term().get() > token);
        ours.resign().await.unwrap();
    });
}
