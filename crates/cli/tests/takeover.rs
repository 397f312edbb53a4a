//! The holder is killed or frozen: no work of its group goes on once the next one has the lock.
//!
//! The story is consul#1843: the child of `consul lock` ran on for half a minute after the lock had moved.
//! Here the holder's command and a child of it append to a log as fast as they can; the next
//! holder appends one line of its own first thing. Any line of the old group after that one is work
//! without the lock.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

use std::time::Duration;

use fencepost_testkit::command::{
    LIMIT, Running, Store, now, running_in_group, wait_for, wait_for_text,
};
use rustix::process::Signal;

/// Two processes that work as hard as they can, in the command's group.
const WORK: &str = "w='while :; do echo work >> log; done'; echo $$ > group; \
                    sh -c \"$w\" & sh -c \"$w\"; true";

/// Takes the lock next, says so in the log and on stdout, and keeps it until it is told to end.
const NEXT: &str = "echo NEXT >> log; echo granted; exec sleep 1000";

struct Scene {
    store: Store,
    holder: Running,
    next: Running,
    group: i32,
}

impl Scene {
    /// A holder at work and one who waits.
    fn set(ttl: &str, work: &str) -> Self {
        let store = Store::new();
        let holder = store.start(&["run", "--ttl", ttl, "x", "--", "sh", "-c", work]);
        let group = wait_for_text(&store.path("group")).parse().unwrap();
        let next = store.start(&["run", "--label", "next", "x", "--", "sh", "-c", NEXT]);
        wait_for("a waiter", LIMIT, || {
            store.say(&["show", "--json", "x"]).1.contains(r#""waiting":1"#)
        });
        Self { store, holder, next, group }
    }

    /// Sends `signal` to the holder; how long it took until the next one's command ran.
    fn strike(&mut self, signal: Signal) -> Duration {
        let before = now();
        self.holder.signal(signal);
        assert_eq!(self.next.lines().next().unwrap().unwrap(), "granted");
        now().since(before)
    }

    /// Whether the old group wrote anything after the next holder did.
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
fn a_killed_holder_is_taken_over_at_once_and_nothing_of_it_runs() {
    let mut took: Vec<Duration> = Vec::new();
    for _ in 0..7 {
        let mut scene = Scene::set("30s", WORK);
        took.push(scene.strike(Signal::KILL));
        assert_eq!(running_in_group(scene.group), Vec::<i32>::new());
        assert!(!scene.worked_without_the_lock());
        scene.end();
    }
    took.sort();
    let (p50, max) = (took[took.len() / 2], took[took.len() - 1]);
    println!("kill -9 to the next command running: p50 {p50:.1?}, max {max:.1?}");
    assert!(max < Duration::from_secs(10), "that was the lease's end, not the process's: {max:?}");
}

#[test]
fn a_frozen_holder_is_ended_before_its_lease_and_learns_it_on_waking() {
    let mut scene = Scene::set("1s", WORK);
    let took = scene.strike(Signal::STOP);
    println!("SIGSTOP to the next command running, TTL 1s: {took:.1?}");
    assert_eq!(running_in_group(scene.group), Vec::<i32>::new());
    assert!(!scene.worked_without_the_lock());
    let Scene { store, holder, next, group } = scene;
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

/// What ignores TERM, and what is stopped itself, is killed in time too.
#[test]
fn a_stubborn_group_is_ended_in_time() {
    let stubborn = "trap '' TERM; w='while :; do echo work >> log; done'; echo $$ > group; \
                    sh -c \"trap '' TERM; $w\" & kill -STOP $$; true";
    let mut scene = Scene::set("1s", stubborn);
    scene.strike(Signal::STOP);
    assert_eq!(running_in_group(scene.group), Vec::<i32>::new());
    assert!(!scene.worked_without_the_lock());
    scene.end();
}

/// The check above can fail: a process that leaves the group is beyond us, and only a fence stops it. It
/// is still seen as the holder's until the lease ends.
#[test]
fn a_process_that_leaves_the_group_is_beyond_reach_and_delays_the_takeover() {
    let leaves = "echo $$ > group; \
                  setsid sh -c 'echo $$ > left; while [ ! -e stop ]; do echo work >> log; done' & \
                  sleep 1000";
    let mut scene = Scene::set("2s", leaves);
    wait_for_text(&scene.store.path("left"));
    let took = scene.strike(Signal::KILL);
    assert!(took > Duration::from_millis(500), "taken over before the lease's end: {took:?}");
    assert_eq!(running_in_group(scene.group), Vec::<i32>::new());
    wait_for("work without the lock", LIMIT, || scene.worked_without_the_lock());
    std::fs::write(scene.store.path("stop"), "").unwrap();
    scene.end();
}

/// Whoever comes after the crash, and after somebody has looked around, need not wait for the lease either.
#[test]
fn one_who_comes_after_the_crash_does_not_wait_for_the_lease() {
    let store = Store::new();
    let holder = store.start(&["run", "--ttl", "1h", "x", "--", "sh", "-c", WORK]);
    let group = wait_for_text(&store.path("group")).parse().unwrap();
    holder.signal(Signal::KILL);
    wait_for("the group's end", LIMIT, || running_in_group(group).is_empty());
    store.say(&["ls"]);
    // The watchdog ends last, a moment after the group.
    wait_for("a grant", LIMIT, || store.say(&["run", "--no-wait", "x", "--", "true"]).0 == Some(0));
}
