//! Third-party clients on the same ZooKeeper: kazoo's `Lock` and Curator's `InterProcessMutex`, in processes of their
//! own. They do not exclude each other, so fencepost follows one of them or the other: see
//! [`clients_wait_for_each_other_as_documented`].
//!
//! `scripts/clients` installs and compiles them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod elections;
mod zookeeper;

use std::time::Duration;

use fencepost_testkit::command::{LIMIT, now, running_in_group, wait_for};
use fencepost_testkit::interop::mixed::{self, LONG, Party, SHORT};
use fencepost_testkit::interop::servers::Members;
use fencepost_testkit::interop::worker::Worker;
use rustix::process::Signal;
use zookeeper::{ClientKind, Fixture};

/// Pairs of a fencepost style and a third-party client that exclude each other.
const PAIRS: [(ClientKind, ClientKind); 3] = [
    (ClientKind::Fencepost, ClientKind::Curator),
    (ClientKind::Fencepost, ClientKind::WideKazoo),
    (ClientKind::FencepostAsKazoo, ClientKind::Kazoo),
];

/// Runs the test with each pair.
fn with_each(test: impl Fn(&Fixture, ClientKind, ClientKind) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for (ours, theirs) in PAIRS {
            scope.spawn(move || {
                let fixture = Fixture::with(Members::One);
                println!("{ours:?} and {theirs:?}: {}", fixture.name);
                test(&fixture, ours, theirs);
            });
        }
    });
}

fn mixed_processes(members: Members, clients: &[ClientKind]) {
    let fixture = Fixture::with(members);
    let clients: Vec<_> = clients.iter().map(|kind| (*kind, &*fixture.name)).collect();
    let result = fixture.count(&clients, SHORT);
    result.report(&format!("{members:?}, {clients:?}"));
    result.assert_excluded();
}

#[test]
fn mixed_processes_lose_no_update() {
    for (ours, theirs) in PAIRS {
        mixed_processes(Members::One, &[ours, ours, theirs, theirs]);
    }
}

/// Fencepost recognizes both kinds of node, and so does a kazoo that is configured to.
#[test]
fn both_styles_and_a_wide_kazoo_lose_no_update() {
    let clients = [ClientKind::Fencepost, ClientKind::FencepostAsKazoo, ClientKind::WideKazoo];
    mixed_processes(Members::One, &clients);
}

#[test]
fn mixed_processes_lose_no_update_on_three_members() {
    mixed_processes(
        Members::Three,
        &[ClientKind::Fencepost, ClientKind::Fencepost, ClientKind::Curator],
    );
    mixed_processes(
        Members::Three,
        &[ClientKind::FencepostAsKazoo, ClientKind::FencepostAsKazoo, ClientKind::Kazoo],
    );
}

/// Control: the checks above fail with another name, with the wrong style, and without a lock.
#[test]
fn control_client_without_the_lock_loses_updates() {
    for (ours, theirs, same) in [
        (ClientKind::Fencepost, ClientKind::Curator, false),
        (ClientKind::FencepostAsKazoo, ClientKind::Kazoo, false),
        (ClientKind::Fencepost, ClientKind::Kazoo, true),
        (ClientKind::FencepostAsKazoo, ClientKind::Curator, true),
    ] {
        let fixture = Fixture::with(Members::One);
        let other = format!("{}-other", fixture.name);
        let clients = [(ours, &*fixture.name), (theirs, if same { &fixture.name } else { &other })];
        let result = fixture.count(&clients, LONG);
        result.report(&format!("{clients:?}"));
        result.assert_not_excluded();
    }
    let fixture = Fixture::with(Members::One);
    let parties = vec![fixture.party(0, ClientKind::Fencepost, &fixture.name), Party::unlocked()];
    let result = mixed::count(fixture.store.dir.path(), LONG, parties);
    result.report("a client without a lock");
    result.assert_not_excluded();
}

/// The facts behind the choice of a style. Fencepost waits for all clients. Whether they wait for fencepost depends on
/// the names of its nodes. Default kazoo and Curator do not wait for each other.
#[test]
fn clients_wait_for_each_other_as_documented() {
    use ClientKind::{Curator, Fencepost, FencepostAsKazoo, Kazoo, WideKazoo};
    let waits = |contender: ClientKind, holder: ClientKind| match contender {
        Fencepost | FencepostAsKazoo | WideKazoo => true,
        Kazoo => holder == FencepostAsKazoo || holder == WideKazoo,
        Curator => holder == Fencepost,
    };
    let fixture = Fixture::with(Members::One);
    let session = Duration::from_secs(10);
    let mut others = [Kazoo, WideKazoo, Curator]
        .map(|kind| (kind, fixture.worker(kind, &fixture.name, session)));
    let assert_waits = |contender: ClientKind, holder: ClientKind, granted: bool| {
        println!("{contender:?} waits for {holder:?}: {}", !granted);
        assert_eq!(
            waits(contender, holder),
            !granted,
            "{contender:?} and {holder:?}: update the docs"
        );
    };
    let ours_is_granted = |kind: ClientKind| {
        let line = ["run", "--no-wait", &fixture.name, "--", "true"];
        let (code, _, err) = fixture.site(kind).run(&line);
        assert!(matches!(code, Some(0 | 75)), "{err}");
        code == Some(0)
    };
    let is_granted = |worker: &mut Worker| {
        let answer = worker.ask("try");
        let granted = answer.starts_with("granted ");
        assert!(granted || answer == "refused", "{answer}");
        if granted {
            assert_eq!(worker.ask("release"), "released");
        }
        granted
    };
    for holder in [Fencepost, FencepostAsKazoo] {
        let mut held = fixture.contend(holder, 30);
        held.granted();
        for (contender, worker) in &mut others {
            assert_waits(*contender, holder, is_granted(worker));
        }
        for contender in [Fencepost, FencepostAsKazoo] {
            assert_waits(contender, holder, ours_is_granted(contender));
        }
        held.release();
    }
    for holding in 0..others.len() {
        let holder = others[holding].0;
        assert!(others[holding].1.ask("acquire").starts_with("granted "));
        for (contender, worker) in &mut others {
            if *contender != holder {
                assert_waits(*contender, holder, is_granted(worker));
            }
        }
        for contender in [Fencepost, FencepostAsKazoo] {
            assert_waits(contender, holder, ours_is_granted(contender));
        }
        assert_eq!(others[holding].1.ask("release"), "released");
    }
}

/// First come, first served, for both kinds of client. The tokens of both rise together.
#[test]
fn both_clients_share_one_queue() {
    with_each(|fixture, ours, theirs| {
        let kinds = [theirs, ours, theirs, ours, ours, theirs];
        fixture.assert_granted_in_order(&kinds, |kind| fixture.contend(kind, 10));
    });
}

#[test]
fn lock_of_a_killed_third_party_holder_is_granted_when_its_session_ends() {
    with_each(|fixture, ours, theirs| {
        let mut holder = fixture.contend(theirs, 2);
        let token = holder.granted();
        let mut next = fixture.contend(ours, 10);
        fixture.wait_for_waiters(1);
        assert!(next.token().is_none());
        let before = now();
        holder.kill();
        assert!(next.granted() > token);
        println!("{theirs:?} was killed, {ours:?} was granted after {:.2?}", now().since(before));
        next.release();
    });
}

/// The watchdog kills the command before the third-party client is granted the lock.
#[test]
fn lock_of_a_killed_run_is_granted_after_its_command_is_dead() {
    with_each(|fixture, ours, theirs| {
        let (holder, group, token) = fixture.site(ours).start_group();
        let mut next = fixture.contend(theirs, 10);
        fixture.wait_for_waiters(1);
        assert!(next.token().is_none());
        let before = now();
        holder.signal(Signal::KILL);
        assert!(next.granted() > token);
        assert!(running_in_group(group).is_empty());
        println!("{ours:?} was killed, {theirs:?} was granted after {:.2?}", now().since(before));
        next.release();
    });
}

/// A dead waiter blocks the others only until its session ends.
#[test]
fn killed_third_party_waiter_leaves_the_queue_when_its_session_ends() {
    with_each(|fixture, ours, theirs| {
        let mut holder = fixture.contend(ours, 10);
        let token = holder.granted();
        let waiter = fixture.contend(theirs, 2);
        fixture.wait_for_waiters(1);
        let mut next = fixture.contend(ours, 10);
        fixture.wait_for_waiters(2);
        waiter.kill();
        holder.release();
        assert!(next.granted() > token);
        next.release();
    });
}

#[test]
fn third_party_holder_is_named_and_exit_code_is_75() {
    with_each(|fixture, ours, theirs| {
        let site = fixture.site(ours);
        let mut holder = fixture.contend(theirs, 10);
        let token = holder.granted();
        let label = match theirs {
            ClientKind::Curator => "another client (127.0.0.1)",
            _ => "another client (a kazoo)",
        };
        site.assert_held_by(label, token);
        holder.release();
        assert!(site.show()["holder"].is_null());
    });
}

/// The third-party client is not notified, because it does not read its node again. It cannot end the next grant.
#[test]
fn break_ends_a_third_party_grant() {
    with_each(|fixture, ours, theirs| {
        let mut broken = fixture.contend(theirs, 10);
        let token = broken.granted();
        let mut next = fixture.contend(ours, 10);
        fixture.wait_for_waiters(1);
        fixture.break_it();
        assert!(next.granted() > token);
        assert!(!broken.has_ended(), "it was notified after all");
        broken.release();
        assert!(fixture.show()["holder"].is_object());
        next.release();
    });
}

/// The grant of a script whose session has ended. The third-party client holds the lock by then.
#[test]
fn release_and_renew_by_a_stale_owner_leave_a_third_party_lock_alone() {
    with_each(|fixture, ours, theirs| {
        let site = fixture.site(ours);
        let grant = site.acquire(&["--ttl", "1s", &fixture.name]);
        let mut holder = fixture.contend(theirs, 10);
        let token = holder.granted();
        assert!(token > grant.token);
        site.assert_anothers(&fixture.name, &grant.owner);
        assert_eq!(site.show()["token"], token);
        holder.release();
    });
}

/// `a/b` is in the directory of `a`, but no client takes it for a contender there.
#[test]
fn nested_name_blocks_no_client() {
    with_each(|fixture, ours, theirs| {
        let nested = format!("{}/b", fixture.name);
        for (inside, outside) in [(ours, theirs), (theirs, ours), (ours, ours)] {
            let mut inner = fixture.contend_for(inside, &nested, 10);
            inner.granted();
            let mut outer = fixture.contend(outside, 10);
            outer.granted();
            let mut again = fixture.contend_for(outside, &nested, 10);
            wait_for("a waiter", LIMIT, || fixture.show_of(&nested)["waiting"] == 1);
            assert!(again.token().is_none(), "{outside:?} was granted beside {inside:?}");
            inner.release();
            again.granted();
            again.release();
            outer.release();
        }
    });
}

/// Except Curator, if the nested name sorts before the digits of its node: Curator takes every child for a contender, and
/// waits for as long as that directory exists, held or not. Fencepost waits behind it in the queue.
#[test]
fn nested_name_that_sorts_low_blocks_only_curator() {
    let fixture = Fixture::with(Members::One);
    let mut inner = fixture.contend_for(ClientKind::Fencepost, &format!("{}/0", fixture.name), 10);
    inner.granted();
    inner.release();
    let mut ours = fixture.contend(ClientKind::Fencepost, 10);
    ours.granted();
    ours.release();
    let mut curator = fixture.worker(ClientKind::Curator, &fixture.name, Duration::from_secs(10));
    assert_eq!(curator.ask("try"), "refused", "Curator has changed: update the docs");
    curator.send("acquire");
    wait_for("its position", LIMIT, || fixture.show()["holder"].is_object());
    let mut behind = fixture.contend(ClientKind::Fencepost, 10);
    fixture.wait_for_waiters(1);
    assert!(behind.token().is_none());
    fixture.member().delete(&format!("/{}/0", fixture.name)).unwrap();
    assert!(curator.answer().starts_with("granted "));
    assert_eq!(curator.ask("release"), "released");
    behind.granted();
    behind.release();
}
