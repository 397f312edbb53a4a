//! Other makes of client on the same locks: the real redis-py and npm redlock, in processes of their own, on
//! real servers. They know nothing of us, so all that can hold between us is what stands in the lock's key.
//!
//! `scripts/clients` installs them.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod count;
mod scene;

use std::time::Duration;

use count::count;
use fencepost_testkit::command::{now, running_in_group, wait_for_text};
use rustix::process::Signal;
use scene::{Make, Scene};

/// Runs the test with each make, on one server and, if it can do that, on three.
fn with_each(test: impl Fn(&Scene, Make) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for (make, servers) in [(Make::RedisPy, 1), (Make::NpmRedlock, 1), (Make::NpmRedlock, 3)] {
            scope.spawn(move || {
                println!("{make:?}, {servers} servers");
                test(&Scene::with(servers), make);
            });
        }
    });
}

const MIXED: [Make; 5] =
    [Make::Fencepost, Make::Fencepost, Make::RedisPy, Make::RedisPy, Make::NpmRedlock];

#[test]
fn mixed_processes_lose_no_update() {
    let tally = count(&Scene::with(1), &MIXED, None);
    tally.report("one server");
    tally.assert_excluded();
}

#[test]
fn mixed_processes_lose_no_update_on_three_servers() {
    let crew = [Make::Fencepost, Make::Fencepost, Make::NpmRedlock, Make::NpmRedlock];
    let tally = count(&Scene::with(3), &crew, None);
    tally.report("three servers");
    tally.assert_excluded();
}

/// The checks above can fail: if one make uses another key, they do.
#[test]
fn a_make_with_another_key_costs_updates() {
    for outsider in [Make::Fencepost, Make::RedisPy, Make::NpmRedlock] {
        let tally = count(&Scene::with(1), &MIXED, Some(outsider));
        println!("{outsider:?} on another key: {} of {} lost", tally.lost(), tally.rounds);
        assert!(tally.lost() > 0, "nothing was lost: the check is worth nothing");
    }
}

/// A client with one of three servers does not take part, as declared; one with two of them does.
#[test]
fn on_three_servers_only_a_majority_excludes() {
    for (make, servers, code) in
        [(Make::RedisPy, 1, 0), (Make::NpmRedlock, 1, 0), (Make::NpmRedlock, 2, 75)]
    {
        let scene = Scene::with(3);
        let mut other = scene.worker_on(&scene.servers[..servers], make, "x", 30_000);
        assert_eq!(other.ask("acquire"), "granted");
        let (said, _, err) = scene.say(&["run", "--no-wait", "x", "--", "true"]);
        assert_eq!(said, Some(code), "{make:?} on {servers} of 3: {err}");
        assert_eq!(other.ask("release"), "released", "it had it all the while");
    }
}

#[test]
fn a_killed_holder_of_another_make_is_taken_over_when_its_lease_ends() {
    with_each(|scene, make| {
        let mut holder = scene.worker(make, "x", 2000);
        let before = now();
        assert_eq!(holder.ask("acquire"), "granted");
        let next = scene.start(&["run", "--wait", "30s", "x", "--", "echo", "granted"]);
        scene.wait_for_a_waiter("x");
        holder.kill();
        let (code, out, err) = next.end();
        assert_eq!((code, out.as_str()), (Some(0), "granted\n"), "{err}");
        let took = now().since(before);
        println!("{make:?} acquired for 2s and was killed, ours followed after {took:.2?}");
        assert!(took > Duration::from_millis(1900), "taken over before the lease's end: {took:?}");
    });
}

/// Nothing of ours works on when the other make has the lock: the watchdog saw to it.
#[test]
fn a_killed_holder_of_ours_is_taken_over_and_nothing_of_it_runs() {
    with_each(|scene, make| {
        let work = "echo $$ > group; sleep 1000 & exec sleep 1000";
        let holder = scene.start(&["run", "--ttl", "2s", "x", "--", "sh", "-c", work]);
        let group = wait_for_text(&scene.store.path("group")).parse().unwrap();
        let mut next = scene.worker(make, "x", 30_000);
        assert_eq!(next.ask("try"), "refused");
        next.tell("acquire");
        let before = now();
        holder.signal(Signal::KILL);
        assert_eq!(next.answer(), "granted");
        assert!(running_in_group(group).is_empty());
        println!("ours was killed, {make:?} followed after {:.2?}", now().since(before));
        assert_eq!(next.ask("release"), "released");
    });
}

/// The value is what a holder knows its lock by: whoever changes it takes away its extend and its release.
#[test]
fn a_waiter_of_ours_does_not_touch_the_holders_value() {
    with_each(|scene, make| {
        let mut holder = scene.worker(make, "x", 30_000);
        assert_eq!(holder.ask("acquire"), "granted");
        let held = scene.held("x");
        let waiter = scene.start(&["run", "--wait", "30s", "x", "--", "echo", "granted"]);
        scene.wait_for_a_waiter("x");
        scene.assert_kept("x", &held);
        assert_eq!(holder.ask("extend"), "extended");
        assert_eq!(holder.ask("release"), "released");
        let (code, out, err) = waiter.end();
        assert_eq!((code, out.as_str()), (Some(0), "granted\n"), "{err}");
    });
}

#[test]
fn a_holder_of_another_make_is_seen_and_gives_75() {
    with_each(|scene, make| {
        let mut holder = scene.worker(make, "x", 30_000);
        assert_eq!(holder.ask("acquire"), "granted");
        let held = scene.held("x");
        let seen = scene.show_of("x");
        assert!(seen["holder"].is_object() && seen["token"].is_null(), "{seen}");
        let left = seen["holder"]["left_ms"].as_u64().unwrap();
        assert!((1..=30_000).contains(&left), "{seen}");
        let (code, out, err) = scene.say(&["show", "x"]);
        assert_eq!(code, Some(0), "{err}");
        let token = out.lines().find(|line| line.starts_with("token")).unwrap();
        assert_eq!(token.split_whitespace().last(), Some("-"), "{out}");
        scene.assert_refused("x");
        scene.assert_kept("x", &held);
        assert_eq!(holder.ask("release"), "released");
    });
}

#[test]
fn our_release_and_renewal_leave_a_lock_of_another_make_alone() {
    with_each(|scene, make| {
        let ours = scene.acquire(&["--wait", "30s", "--ttl", "100ms", "x"]);
        scene.wait_until_free("x");
        let mut holder = scene.worker(make, "x", 30_000);
        assert_eq!(holder.ask("acquire"), "granted");
        let held = scene.held("x");
        scene.assert_anothers("x", &ours.owner);
        scene.assert_kept("x", &held);
        assert_eq!(holder.ask("extend"), "extended");
        assert_eq!(holder.ask("release"), "released");
    });
}

#[test]
fn a_make_that_lost_its_lock_to_us_is_told_so_and_takes_nothing() {
    with_each(|scene, make| {
        let mut late = scene.worker(make, "x", 300);
        assert_eq!(late.ask("acquire"), "granted");
        // We wait for the end of its lease.
        let ours = scene.acquire(&["--wait", "30s", "--ttl", "30s", "x"]);
        let held = scene.held("x");
        let error = if make == Make::RedisPy { "LockNotOwnedError" } else { "LockError" };
        assert_eq!(late.ask("extend"), error);
        assert_eq!(late.ask("release"), error);
        scene.assert_kept("x", &held);
        assert_eq!(scene.show_of("x")["token"], ours.token);
        for verb in ["renew", "release"] {
            let (code, _, err) = scene.say(&[verb, "x", "--owner", &ours.owner]);
            assert_eq!(code, Some(0), "{make:?}, {verb}: {err}");
        }
    });
}
