//! The holder is killed or frozen: no process of its group works after the next grant.
//!
//! The story of consul#1843: the child of `consul lock` ran for half a minute after the next grant. Here the holder's
//! command and a child append to a log as fast as they can. The next holder first appends one line of its own. Any line
//! of the old group after that one is work without the lock.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::time::Duration;

use fencepost_testkit::command::{
    LIMIT, Running, Store, now, running_in_group, wait_for, wait_for_text,
};
use rustix::process::Signal;

/// Two processes in the command's group that write as fast as they can.
const WORK: &str = "w='while :; do echo work >> log; done'; echo $$ > group; \
                    sh -c \"$w\" & sh -c \"$w\"; true";

/// The command of the next holder: writes to the log and to stdout, and waits to be ended.
const NEXT: &str = "echo NEXT >> log; echo granted; exec sleep 1000";

struct Fixture {
    store: Store,
    holder: Running,
    next: Running,
    group: i32,
}

impl Fixture {
    /// Starts a holder and a waiter.
    fn start(ttl: &str, work: &str) -> Self {
        let store = Store::new();
        let holder = store.start(&["run", "--ttl", ttl, "x", "--", "sh", "-c", work]);
        let group = wait_for_text(&store.path("group")).parse().unwrap();
        let next = store.start(&["run", "--label", "next", "x", "--", "sh", "-c", NEXT]);
        wait_for("a waiter", LIMIT, || {
            store.run(&["show", "--json", "x"]).1.contains(r#""waiting":1"#)
        });
        Self { store, holder, next, group }
    }

    /// Sends `signal` to the holder. Returns the time until the waiter's command ran.
    fn signal_holder(&mut self, signal: Signal) -> Duration {
        let before = now();
        self.holder.signal(signal);
        assert_eq!(self.next.lines().next().unwrap().unwrap(), "granted");
        now().since(before)
    }

    /// Whether the old group wrote to the log after the next holder.
    fn worked_without_the_lock(&self) -> bool {
        let log = std::fs::read_to_string(self.store.path("log")).unwrap();
        let (_, after) = log.split_once("NEXT\n").expect("the next holder wrote its line");
        !after.is_empty()
    }

    fn end(self) {
        self.next.signal(Signal::TERM);
        assert_eq!(self.next.end().0, Some(143));
        self.store.assert_empty();
    }
}

#[test]
fn lock_of_a_killed_run_is_granted_at_once_after_its_command_is_dead() {
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..7 {
        let mut fixture = Fixture::start("30s", WORK);
        took.push(fixture.signal_holder(Signal::KILL));
        assert_eq!(running_in_group(fixture.group), Vec::<i32>::new());
        assert!(!fixture.worked_without_the_lock());
        fixture.end();
    }
    took.sort();
    let (p50, max) = (took[took.len() / 2], took[took.len() - 1]);
    println!("kill -9 to the next command running: p50 {p50:.1?}, max {max:.1?}");
    assert!(
        max < Duration::from_secs(10),
        "it waited for the end of the lease, not of the process: {max:?}"
    );
}

#[test]
fn command_of_a_frozen_run_is_killed_before_the_lease_ends() {
    let mut fixture = Fixture::start("1s", WORK);
    let took = fixture.signal_holder(Signal::STOP);
    println!("SIGSTOP to the next command running, TTL 1s: {took:.1?}");
    assert_eq!(running_in_group(fixture.group), Vec::<i32>::new());
    assert!(!fixture.worked_without_the_lock());
    let Fixture { store, holder, next, group } = fixture;
    holder.signal(Signal::CONT);
    let (code, _, err) = holder.end();
    assert_eq!(code, Some(76), "{err}");
    assert!(err.contains("lost") && err.contains("lease"), "{err}");
    assert_eq!(running_in_group(group), Vec::<i32>::new());
    assert_eq!(store.holder("x").as_deref(), Some("next"), "the new holder is untouched");
    next.signal(Signal::TERM);
    assert_eq!(next.end().0, Some(143));
    store.assert_empty();
}

/// A process that ignores TERM, and one that is stopped, are killed in time too.
#[test]
fn group_that_ignores_term_is_killed_before_the_lease_ends() {
    let stubborn = "trap '' TERM; w='while :; do echo work >> log; done'; echo $$ > group; \
                    sh -c \"trap '' TERM; $w\" & kill -STOP $$; true";
    let mut fixture = Fixture::start("1s", stubborn);
    fixture.signal_holder(Signal::STOP);
    assert_eq!(running_in_group(fixture.group), Vec::<i32>::new());
    assert!(!fixture.worked_without_the_lock());
    fixture.end();
}

/// Control: a process that leaves the group cannot be killed, and only a fence stops it. It keeps the presence file open,
/// so the store waits for the end of the lease.
#[test]
fn process_that_left_the_group_survives_and_delays_the_next_grant() {
    let leaves = "echo $$ > group; \
                  setsid sh -c 'echo $$ > left; while [ ! -e stop ]; do echo work >> log; done' & \
                  sleep 1000";
    let mut fixture = Fixture::start("2s", leaves);
    wait_for_text(&fixture.store.path("left"));
    let took = fixture.signal_holder(Signal::KILL);
    assert!(took > Duration::from_millis(500), "granted before the end of the lease: {took:?}");
    assert_eq!(running_in_group(fixture.group), Vec::<i32>::new());
    wait_for("work without the lock", LIMIT, || fixture.worked_without_the_lock());
    std::fs::write(fixture.store.path("stop"), "").unwrap();
    fixture.end();
}

/// An acquire after the crash does not wait for the lease either, even after a read of the store.
#[test]
fn acquire_after_a_crash_does_not_wait_for_the_lease() {
    let store = Store::new();
    let holder = store.start(&["run", "--ttl", "1h", "x", "--", "sh", "-c", WORK]);
    let group = wait_for_text(&store.path("group")).parse().unwrap();
    holder.signal(Signal::KILL);
    wait_for("the group's end", LIMIT, || running_in_group(group).is_empty());
    store.run(&["ls"]);
    // The watchdog ends last, a moment after the group.
    wait_for("a grant", LIMIT, || store.run(&["run", "--no-wait", "x", "--", "true"]).0 == Some(0));
}
