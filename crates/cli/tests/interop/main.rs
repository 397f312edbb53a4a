//! Third-party clients on the same locks: the real redis-py and npm redlock, in processes of their own, on real servers.
//! They do not know fencepost, so only the lock's key can exclude them.
//!
//! `scripts/clients` installs them.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod count;
mod fixture;

use std::time::Duration;

use count::count;
use fencepost_testkit::command::{now, running_in_group, wait_for_text};
use fixture::{ClientKind, Fixture};
use rustix::process::Signal;

/// Runs the test with each kind of client, on one server and, if the client supports it, on three.
fn with_each(test: impl Fn(&Fixture, ClientKind) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for (kind, servers) in
            [(ClientKind::RedisPy, 1), (ClientKind::NpmRedlock, 1), (ClientKind::NpmRedlock, 3)]
        {
            scope.spawn(move || {
                println!("{kind:?}, {servers} servers");
                test(&Fixture::with(servers), kind);
            });
        }
    });
}

const MIXED: [ClientKind; 5] = [
    ClientKind::Fencepost,
    ClientKind::Fencepost,
    ClientKind::RedisPy,
    ClientKind::RedisPy,
    ClientKind::NpmRedlock,
];

#[test]
fn mixed_processes_lose_no_update() {
    let result = count(&Fixture::with(1), &MIXED, None);
    result.report("one server");
    result.assert_excluded();
}

#[test]
fn mixed_processes_lose_no_update_on_three_servers() {
    let clients = [
        ClientKind::Fencepost,
        ClientKind::Fencepost,
        ClientKind::NpmRedlock,
        ClientKind::NpmRedlock,
    ];
    let result = count(&Fixture::with(3), &clients, None);
    result.report("three servers");
    result.assert_excluded();
}

/// Control: the checks above fail if one client uses another key.
#[test]
fn control_client_with_another_key_loses_updates() {
    for outsider in [ClientKind::Fencepost, ClientKind::RedisPy, ClientKind::NpmRedlock] {
        let result = count(&Fixture::with(1), &MIXED, Some(outsider));
        println!("{outsider:?} on another key: {} of {} lost", result.lost(), result.rounds);
        assert!(result.lost() > 0, "nothing was lost: the check proves nothing");
    }
}

/// A client on one of three servers excludes nobody, as documented; a client on two of them does.
#[test]
fn control_client_without_a_majority_loses_updates() {
    for (kind, servers, code) in [
        (ClientKind::RedisPy, 1, 0),
        (ClientKind::NpmRedlock, 1, 0),
        (ClientKind::NpmRedlock, 2, 75),
    ] {
        let fixture = Fixture::with(3);
        let mut other = fixture.worker_on(&fixture.servers[..servers], kind, "x", 30_000);
        assert_eq!(other.ask("acquire"), "granted");
        let (actual, _, err) = fixture.run(&["run", "--no-wait", "x", "--", "true"]);
        assert_eq!(actual, Some(code), "{kind:?} on {servers} of 3: {err}");
        assert_eq!(other.ask("release"), "released", "it held the lock until now");
    }
}

#[test]
fn lock_of_a_killed_third_party_holder_is_granted_when_its_lease_ends() {
    with_each(|fixture, kind| {
        let mut holder = fixture.worker(kind, "x", 2000);
        let before = now();
        assert_eq!(holder.ask("acquire"), "granted");
        let next = fixture.start(&["run", "--wait", "30s", "x", "--", "echo", "granted"]);
        fixture.wait_for_a_waiter("x");
        holder.kill();
        let (code, out, err) = next.end();
        assert_eq!((code, out.as_str()), (Some(0), "granted\n"), "{err}");
        let took = now().since(before);
        println!("{kind:?} acquired for 2s and was killed, fencepost was granted after {took:.2?}");
        assert!(
            took > Duration::from_millis(1900),
            "granted before the end of the lease: {took:?}"
        );
    });
}

/// The watchdog kills the command before the third-party client is granted the lock.
#[test]
fn lock_of_a_killed_run_is_granted_after_its_command_is_dead() {
    with_each(|fixture, kind| {
        let work = "echo $$ > group; sleep 1000 & exec sleep 1000";
        let holder = fixture.start(&["run", "--ttl", "2s", "x", "--", "sh", "-c", work]);
        let group = wait_for_text(&fixture.store.path("group")).parse().unwrap();
        let mut next = fixture.worker(kind, "x", 30_000);
        assert_eq!(next.ask("try"), "refused");
        next.send("acquire");
        let before = now();
        holder.signal(Signal::KILL);
        assert_eq!(next.answer(), "granted");
        assert!(running_in_group(group).is_empty());
        println!("fencepost was killed, {kind:?} was granted after {:.2?}", now().since(before));
        assert_eq!(next.ask("release"), "released");
    });
}

/// A holder identifies its lock by the value: if that changes, it can neither extend nor release.
#[test]
fn waiter_does_not_change_the_third_party_holders_value() {
    with_each(|fixture, kind| {
        let mut holder = fixture.worker(kind, "x", 30_000);
        assert_eq!(holder.ask("acquire"), "granted");
        let held = fixture.held("x");
        let waiter = fixture.start(&["run", "--wait", "30s", "x", "--", "echo", "granted"]);
        fixture.wait_for_a_waiter("x");
        fixture.assert_kept("x", &held);
        assert_eq!(holder.ask("extend"), "extended");
        assert_eq!(holder.ask("release"), "released");
        let (code, out, err) = waiter.end();
        assert_eq!((code, out.as_str()), (Some(0), "granted\n"), "{err}");
    });
}

#[test]
fn third_party_holder_is_shown_and_exit_code_is_75() {
    with_each(|fixture, kind| {
        let mut holder = fixture.worker(kind, "x", 30_000);
        assert_eq!(holder.ask("acquire"), "granted");
        let held = fixture.held("x");
        let seen = fixture.show_of("x");
        assert!(seen["holder"].is_object() && seen["token"].is_null(), "{seen}");
        let left = seen["holder"]["left_ms"].as_u64().unwrap();
        assert!((1..=30_000).contains(&left), "{seen}");
        let (code, out, err) = fixture.run(&["show", "x"]);
        assert_eq!(code, Some(0), "{err}");
        let token = out.lines().find(|line| line.starts_with("token")).unwrap();
        assert_eq!(token.split_whitespace().last(), Some("-"), "{out}");
        fixture.assert_refused("x");
        fixture.assert_kept("x", &held);
        assert_eq!(holder.ask("release"), "released");
    });
}

#[test]
fn release_and_renew_by_a_stale_owner_leave_a_third_party_lock_alone() {
    with_each(|fixture, kind| {
        let ours = fixture.acquire(&["--wait", "30s", "--ttl", "100ms", "x"]);
        fixture.wait_until_free("x");
        let mut holder = fixture.worker(kind, "x", 30_000);
        assert_eq!(holder.ask("acquire"), "granted");
        let held = fixture.held("x");
        fixture.assert_anothers("x", &ours.owner);
        fixture.assert_kept("x", &held);
        assert_eq!(holder.ask("extend"), "extended");
        assert_eq!(holder.ask("release"), "released");
    });
}

#[test]
fn third_party_client_that_lost_its_lock_gets_an_error() {
    with_each(|fixture, kind| {
        let mut late = fixture.worker(kind, "x", 300);
        assert_eq!(late.ask("acquire"), "granted");
        // This waits for the end of its lease.
        let ours = fixture.acquire(&["--wait", "30s", "--ttl", "30s", "x"]);
        let held = fixture.held("x");
        let error = if kind == ClientKind::RedisPy { "LockNotOwnedError" } else { "LockError" };
        assert_eq!(late.ask("extend"), error);
        assert_eq!(late.ask("release"), error);
        fixture.assert_kept("x", &held);
        assert_eq!(fixture.show_of("x")["token"], ours.token);
        for verb in ["renew", "release"] {
            let (code, _, err) = fixture.run(&[verb, "x", "--owner", &ours.owner]);
            assert_eq!(code, Some(0), "{kind:?}, {verb}: {err}");
        }
    });
}
