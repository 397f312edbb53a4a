//! Other makes of client on the same ZooKeeper: kazoo's `Lock` and Curator's `InterProcessMutex`, in processes
//! of their own. They do not exclude each other, so we are like one of them or like the other: see
//! [`who_waits_for_whom`].
//!
//! `scripts/clients` installs and compiles them.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod elections;
mod zookeeper;

use std::time::Duration;

use fencepost_testkit::command::{LIMIT, now, running_in_group, wait_for};
use fencepost_testkit::interop::mixed::{self, LONG, Party, SHORT};
use fencepost_testkit::interop::servers::Members;
use fencepost_testkit::interop::worker::Worker;
use rustix::process::Signal;
use zookeeper::{Make, Scene};

/// Those of ours that exclude another make, and are excluded by it.
const PAIRS: [(Make, Make); 3] =
    [(Make::Ours, Make::Curator), (Make::Ours, Make::WideKazoo), (Make::OursAsKazoo, Make::Kazoo)];

/// Runs the test with each pair.
fn with_each(test: impl Fn(&Scene, Make, Make) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for (ours, theirs) in PAIRS {
            scope.spawn(move || {
                let scene = Scene::with(Members::One);
                println!("{ours:?} and {theirs:?}: {}", scene.name);
                test(&scene, ours, theirs);
            });
        }
    });
}

fn mixed_processes(members: Members, crew: &[Make]) {
    let scene = Scene::with(members);
    let crew: Vec<_> = crew.iter().map(|make| (*make, &*scene.name)).collect();
    let tally = scene.count(&crew, SHORT);
    tally.report(&format!("{members:?}, {crew:?}"));
    tally.assert_excluded();
}

#[test]
fn mixed_processes_lose_no_update() {
    for (ours, theirs) in PAIRS {
        mixed_processes(Members::One, &[ours, ours, theirs, theirs]);
    }
}

/// We take both kinds of node for what they are, and a kazoo that is told to does as well.
#[test]
fn ours_of_both_styles_and_a_wide_kazoo_lose_no_update() {
    let crew = [Make::Ours, Make::OursAsKazoo, Make::WideKazoo];
    mixed_processes(Members::One, &crew);
}

#[test]
fn mixed_processes_lose_no_update_on_three_members() {
    mixed_processes(Members::Three, &[Make::Ours, Make::Ours, Make::Curator]);
    mixed_processes(Members::Three, &[Make::OursAsKazoo, Make::OursAsKazoo, Make::Kazoo]);
}

/// The checks above can fail: with another name, with the wrong style, and without a lock they do.
#[test]
fn who_does_not_take_part_costs_updates() {
    for (ours, theirs, same) in [
        (Make::Ours, Make::Curator, false),
        (Make::OursAsKazoo, Make::Kazoo, false),
        (Make::Ours, Make::Kazoo, true),
        (Make::OursAsKazoo, Make::Curator, true),
    ] {
        let scene = Scene::with(Members::One);
        let other = format!("{}-other", scene.name);
        let crew = [(ours, &*scene.name), (theirs, if same { &scene.name } else { &other })];
        let tally = scene.count(&crew, LONG);
        tally.report(&format!("{crew:?}"));
        tally.assert_not_excluded();
    }
    let scene = Scene::with(Members::One);
    let parties = vec![scene.party(0, Make::Ours, &scene.name), Party::unlocked()];
    let tally = mixed::count(scene.store.dir.path(), LONG, parties);
    tally.report("somebody without a lock");
    tally.assert_not_excluded();
}

/// The facts that the choice of a style rests on. We wait for everybody; whether they wait for us is a matter
/// of our nodes' names; kazoo and Curator as they are do not wait for each other.
#[test]
fn who_waits_for_whom() {
    use Make::{Curator, Kazoo, Ours, OursAsKazoo, WideKazoo};
    let waits = |contender: Make, holder: Make| match contender {
        Ours | OursAsKazoo | WideKazoo => true,
        Kazoo => holder == OursAsKazoo || holder == WideKazoo,
        Curator => holder == Ours,
    };
    let scene = Scene::with(Members::One);
    let session = Duration::from_secs(10);
    let mut others =
        [Kazoo, WideKazoo, Curator].map(|make| (make, scene.worker(make, &scene.name, session)));
    let assert_waits = |contender: Make, holder: Make, granted: bool| {
        println!("{contender:?} waits for {holder:?}: {}", !granted);
        assert_eq!(
            waits(contender, holder),
            !granted,
            "{contender:?} and {holder:?}: tell the docs"
        );
    };
    let ours_is_granted = |make: Make| {
        let line = ["run", "--no-wait", &scene.name, "--", "true"];
        let (code, _, err) = scene.site(make).say(&line);
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
    for holder in [Ours, OursAsKazoo] {
        let mut held = scene.contend(holder, 30);
        held.granted();
        for (contender, worker) in &mut others {
            assert_waits(*contender, holder, is_granted(worker));
        }
        for contender in [Ours, OursAsKazoo] {
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
        for contender in [Ours, OursAsKazoo] {
            assert_waits(contender, holder, ours_is_granted(contender));
        }
        assert_eq!(others[holding].1.ask("release"), "released");
    }
}

/// First come, first served, whoever it is. The tokens of all rise together.
#[test]
fn both_makes_stand_in_one_line() {
    with_each(|scene, ours, theirs| {
        let makes = [theirs, ours, theirs, ours, ours, theirs];
        scene.assert_served_in_line(&makes, |make| scene.contend(make, 10));
    });
}

#[test]
fn a_killed_holder_of_another_make_is_taken_over_when_its_session_ends() {
    with_each(|scene, ours, theirs| {
        let mut holder = scene.contend(theirs, 2);
        let token = holder.granted();
        let mut next = scene.contend(ours, 10);
        scene.wait_for_waiters(1);
        assert!(next.token().is_none());
        let before = now();
        holder.kill();
        assert!(next.granted() > token);
        println!("{theirs:?} was killed, {ours:?} followed after {:.2?}", now().since(before));
        next.release();
    });
}

/// Nothing of ours works on when the other make has the lock: the watchdog saw to it.
#[test]
fn a_killed_holder_of_ours_is_taken_over_and_nothing_of_it_runs() {
    with_each(|scene, ours, theirs| {
        let (holder, group, token) = scene.site(ours).start_group();
        let mut next = scene.contend(theirs, 10);
        scene.wait_for_waiters(1);
        assert!(next.token().is_none());
        let before = now();
        holder.signal(Signal::KILL);
        assert!(next.granted() > token);
        assert!(running_in_group(group).is_empty());
        println!("{ours:?} was killed, {theirs:?} followed after {:.2?}", now().since(before));
        next.release();
    });
}

/// One that died in line holds up the others until its session ends, and not longer.
#[test]
fn a_killed_waiter_of_another_make_is_passed_when_its_session_ends() {
    with_each(|scene, ours, theirs| {
        let mut holder = scene.contend(ours, 10);
        let token = holder.granted();
        let waiter = scene.contend(theirs, 2);
        scene.wait_for_waiters(1);
        let mut next = scene.contend(ours, 10);
        scene.wait_for_waiters(2);
        waiter.kill();
        holder.release();
        assert!(next.granted() > token);
        next.release();
    });
}

#[test]
fn a_holder_of_another_make_is_named_and_gives_75() {
    with_each(|scene, ours, theirs| {
        let site = scene.site(ours);
        let mut holder = scene.contend(theirs, 10);
        let token = holder.granted();
        let label = match theirs {
            Make::Curator => "another client (127.0.0.1)",
            _ => "another client (a kazoo)",
        };
        site.assert_held_by(label, token);
        holder.release();
        assert!(site.show()["holder"].is_null());
    });
}

/// The other make is not told: neither of them looks at its node again. It can not undo our grant either.
#[test]
fn a_holder_of_another_make_can_be_broken() {
    with_each(|scene, ours, theirs| {
        let mut broken = scene.contend(theirs, 10);
        let token = broken.granted();
        let mut next = scene.contend(ours, 10);
        scene.wait_for_waiters(1);
        scene.break_it();
        assert!(next.granted() > token);
        assert!(!broken.has_ended(), "it was told after all");
        broken.release();
        assert!(scene.show()["holder"].is_object());
        next.release();
    });
}

/// A grant of a script whose session has ended; the other make has the lock by then.
#[test]
fn our_release_and_renewal_leave_a_lock_of_another_make_alone() {
    with_each(|scene, ours, theirs| {
        let site = scene.site(ours);
        let grant = site.acquire(&["--ttl", "1s", &scene.name]);
        let mut holder = scene.contend(theirs, 10);
        let token = holder.granted();
        assert!(token > grant.token);
        site.assert_anothers(&scene.name, &grant.owner);
        assert_eq!(site.show()["token"], token);
        holder.release();
    });
}

/// `a/b` lies in the directory of `a`, and is no contender there: to nobody.
#[test]
fn a_nested_name_blocks_nobody() {
    with_each(|scene, ours, theirs| {
        let nested = format!("{}/b", scene.name);
        for (inside, outside) in [(ours, theirs), (theirs, ours), (ours, ours)] {
            let mut inner = scene.contend_for(inside, &nested, 10);
            inner.granted();
            let mut outer = scene.contend(outside, 10);
            outer.granted();
            let mut again = scene.contend_for(outside, &nested, 10);
            wait_for("one in line", LIMIT, || scene.show_of(&nested)["waiting"] == 1);
            assert!(again.token().is_none(), "{outside:?} came in beside {inside:?}");
            inner.release();
            again.granted();
            again.release();
            outer.release();
        }
    });
}

/// Except to Curator if the nested name comes before the digits of its node: it takes every child for a
/// contender, and then waits as long as that directory is there, held or not. We stand in line behind it.
#[test]
fn a_nested_name_that_sorts_low_blocks_curator_and_not_us() {
    let scene = Scene::with(Members::One);
    let mut inner = scene.contend_for(Make::Ours, &format!("{}/0", scene.name), 10);
    inner.granted();
    inner.release();
    let mut ours = scene.contend(Make::Ours, 10);
    ours.granted();
    ours.release();
    let mut curator = scene.worker(Make::Curator, &scene.name, Duration::from_secs(10));
    assert_eq!(curator.ask("try"), "refused", "the trap is gone: tell the docs");
    curator.tell("acquire");
    wait_for("it in line", LIMIT, || scene.show()["holder"].is_object());
    let mut behind = scene.contend(Make::Ours, 10);
    scene.wait_for_waiters(1);
    assert!(behind.token().is_none());
    scene.member().delete(&format!("/{}/0", scene.name)).unwrap();
    assert!(curator.answer().starts_with("granted "));
    assert_eq!(curator.ask("release"), "released");
    behind.granted();
    behind.release();
}
