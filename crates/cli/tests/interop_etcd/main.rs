//! Other makes of client on the same etcd: `etcdctl lock`, `etcdctl elect` and etcd's own lock service, in
//! processes of their own, on one server and on a cluster of three. Go's `concurrency.Mutex` is what all of
//! these are made of.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod elections;
mod etcd;

use etcd::{Make, Scene};
use fencepost_testkit::command::{LIMIT, now, running_in_group, wait_for};
use fencepost_testkit::interop::mixed::{self, LONG, Party, SHORT};
use fencepost_testkit::interop::servers::Members;
use fencepost_testkit::interop::worker::Worker;

const OTHERS: [Make; 3] = [Make::Lock, Make::Elect, Make::Service];

/// Runs the test with each of these makes, on one server and on three.
fn with_each(makes: &[Make], test: impl Fn(&Scene, Make) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for members in [Members::One, Members::Three] {
            for make in makes {
                scope.spawn(move || {
                    let scene = Scene::with(members);
                    println!("{make:?}, {members:?}: {}", scene.name);
                    test(&scene, *make);
                });
            }
        }
    });
}

fn mixed_processes(members: Members) {
    let crew = [
        Make::Fencepost,
        Make::Fencepost,
        Make::Lock,
        Make::Lock,
        Make::Elect,
        Make::Service,
        Make::Service,
    ];
    let scene = Scene::with(members);
    let tally = scene.count(&crew.map(|make| (make, &*scene.name)), SHORT);
    tally.report(&format!("{members:?}"));
    tally.assert_excluded();
}

#[test]
fn mixed_processes_lose_no_update() {
    mixed_processes(Members::One);
}

#[test]
fn mixed_processes_lose_no_update_on_three_members() {
    mixed_processes(Members::Three);
}

/// The checks above can fail: if one make uses another name, they do; if somebody uses no lock, too.
#[test]
fn who_does_not_take_part_costs_updates() {
    for outsider in [Make::Fencepost, Make::Lock, Make::Elect, Make::Service] {
        let scene = Scene::with(Members::One);
        let insider = if outsider == Make::Service { Make::Lock } else { Make::Service };
        let (inside, outside) = (&*scene.name, &*format!("{}-other", scene.name));
        let crew = [(Make::Fencepost, inside), (insider, inside), (outsider, outside)];
        let tally = scene.count(&crew, LONG);
        tally.report(&format!("{outsider:?} on another name"));
        tally.assert_not_excluded();
    }
    let scene = Scene::with(Members::One);
    let parties = vec![scene.party(0, Make::Fencepost, &scene.name), Party::unlocked()];
    let tally = mixed::count(scene.store.dir.path(), LONG, parties);
    tally.report("somebody without a lock");
    tally.assert_not_excluded();
}

/// First come, first served, whoever it is. The tokens of all rise together.
#[test]
fn all_makes_stand_in_one_line() {
    use Make::{Elect, Fencepost, Lock, Service};
    for members in [Members::One, Members::Three] {
        let scene = Scene::with(members);
        let makes =
            [Lock, Fencepost, Service, Fencepost, Elect, Fencepost, Lock, Elect, Service, Lock];
        scene.assert_served_in_line(&makes, |make| scene.contend(make, 30));
    }
}

/// Not after an election: its lease is of 60 s, whatever one asks for.
#[test]
fn a_killed_holder_of_another_make_is_taken_over_when_its_lease_ends() {
    with_each(&[Make::Lock, Make::Service], |scene, make| {
        let mut holder = scene.contend(make, 2);
        let token = holder.granted();
        let mut next = scene.contend(Make::Fencepost, 30);
        scene.wait_for_waiters(1);
        assert!(next.token().is_none());
        let before = now();
        holder.kill();
        assert!(next.granted() > token);
        println!("{make:?} was killed, ours followed after {:.2?}", now().since(before));
        next.release();
    });
}

/// Nothing of ours works on when the other make has the lock: the watchdog saw to it.
#[test]
fn a_killed_holder_of_ours_is_taken_over_and_nothing_of_it_runs() {
    with_each(&OTHERS, |scene, make| {
        let (holder, group, token) = scene.start_group();
        let mut next = scene.contend(make, 30);
        scene.wait_for_waiters(1);
        assert!(next.token().is_none());
        let before = now();
        holder.signal(rustix::process::Signal::KILL);
        assert!(next.granted() > token);
        assert!(running_in_group(group).is_empty());
        println!("ours was killed, {make:?} followed after {:.2?}", now().since(before));
        next.release();
    });
}

/// One that died in line holds up the others until its lease ends, and not longer.
#[test]
fn a_killed_waiter_of_another_make_is_passed_when_its_lease_ends() {
    with_each(&[Make::Lock, Make::Service], |scene, make| {
        let mut holder = scene.contend(Make::Fencepost, 30);
        let token = holder.granted();
        let waiter = scene.contend(make, 2);
        scene.wait_for_waiters(1);
        let mut next = scene.contend(Make::Fencepost, 30);
        scene.wait_for_waiters(2);
        waiter.kill();
        holder.release();
        assert!(next.granted() > token);
        next.release();
    });
}

#[test]
fn a_holder_of_another_make_is_named_and_gives_75() {
    with_each(&OTHERS, |scene, make| {
        let mut holder = scene.contend(make, 30);
        let token = holder.granted();
        let label = if make == Make::Elect { "another client (node-3)" } else { "another client" };
        let seen = scene.assert_held_by(label, token);
        let left = seen["holder"]["left_ms"].as_u64().unwrap();
        assert!((1..=60_000).contains(&left), "{seen}");
        holder.release();
        assert!(scene.show()["holder"].is_null());
    });
}

/// The other make is not told: none of them looks at its key again. It can not undo our grant either.
#[test]
fn a_holder_of_another_make_can_be_broken() {
    with_each(&OTHERS, |scene, make| {
        let mut broken = scene.contend(make, 30);
        let token = broken.granted();
        let mut next = scene.contend(Make::Fencepost, 30);
        scene.wait_for_waiters(1);
        scene.break_it();
        assert!(next.granted() > token);
        assert!(!broken.has_ended(), "it was told after all");
        broken.release();
        assert!(scene.show()["holder"].is_object());
        next.release();
    });
}

/// A leader that was killed has its lease for up to 60 s: an operator need not wait for that.
#[test]
fn a_dead_leader_can_be_broken() {
    let scene = Scene::with(Members::One);
    let mut leader = scene.contend(Make::Elect, 60);
    let token = leader.granted();
    leader.kill();
    wait_for("its end", LIMIT, || leader.has_ended());
    scene.break_it();
    let mut next = scene.contend(Make::Fencepost, 30);
    assert!(next.granted() > token);
    next.release();
}

#[test]
fn our_release_and_renewal_leave_a_lock_of_another_make_alone() {
    with_each(&OTHERS, |scene, make| {
        let ours = scene.acquire(&["--ttl", "1s", &scene.name]);
        // It waits for the end of our lease.
        let mut holder = scene.contend(make, 30);
        let token = holder.granted();
        assert!(token > ours.token);
        scene.assert_anothers(&scene.name, &ours.owner);
        assert_eq!(scene.show()["token"], token);
        holder.release();
    });
}

/// Has all other makes stand in line for the lock and finds that none gets it, though to us nothing is in
/// their way. Since we stand in line behind them, we wait as well then. Clears the way with `clear`.
fn assert_stuck(scene: &Scene, clear: impl FnOnce()) {
    let mut ours = scene.contend(Make::Fencepost, 30);
    ours.granted();
    ours.release();
    let stuck = OTHERS.map(|make| scene.contend(make, 30));
    let waiting = OTHERS.len() as u64 - 1;
    wait_for("all in line", LIMIT, || {
        let seen = scene.show();
        seen["holder"].is_object() && seen["waiting"] == waiting
    });
    let behind = scene.contend(Make::Fencepost, 30);
    scene.wait_for_waiters(waiting + 1);
    assert!(stuck.iter().all(|one| one.token().is_none()), "the trap is gone: tell the docs");
    assert!(behind.token().is_none());
    clear();
    wait_for("the first in line", LIMIT, || stuck.iter().any(|one| one.token().is_some()));
}

/// To us `a/b` is no part of `a`, whoever has it. To the others it is: while somebody has `a/b`, they wait for
/// `a`.
#[test]
fn a_nested_name_blocks_the_other_makes_and_not_us() {
    for make in [Make::Fencepost, Make::Lock] {
        let scene = Scene::with(Members::One);
        let mut inner = scene.contend_for(make, &format!("{}/b", scene.name), 30);
        inner.granted();
        assert_stuck(&scene, || inner.release());
    }
}

/// Nor is a key that somebody keeps data in, which to the others is one who holds the lock.
#[test]
fn a_plain_key_below_the_name_blocks_the_other_makes_and_not_us() {
    let scene = Scene::with(Members::One);
    let key = format!("{}/42", scene.name);
    scene.member().etcdctl(&["put", &key, "data"]).unwrap();
    assert_stuck(&scene, || {
        scene.member().etcdctl(&["del", &key]).unwrap();
    });
}

/// The other way round nobody is blocked.
#[test]
fn an_outer_name_blocks_nobody() {
    let scene = Scene::with(Members::One);
    let mut outer = scene.contend(Make::Fencepost, 30);
    outer.granted();
    for make in [Make::Fencepost, Make::Lock, Make::Elect, Make::Service] {
        let mut inner = scene.contend_for(make, &format!("{}/b", scene.name), 30);
        inner.granted();
        inner.release();
    }
    outer.release();
}

/// `etcdctl lock` hands its command `ETCD_LOCK_REV`. If it had to wait, that is not when its key was made but
/// later: a number that does not compare with the tokens of others. What does is its key's
/// `create_revision`.
#[test]
fn what_etcdctl_hands_its_command_is_no_token() {
    let scene = Scene::with(Members::One);
    let mut ours = scene.contend(Make::Fencepost, 30);
    ours.granted();
    let member = scene.member();
    let script =
        "etcdctl --endpoints=$member get -w fields $ETCD_LOCK_KEY; echo given $ETCD_LOCK_REV";
    let mut command = member.etcdctl_command();
    command.args(["lock", &scene.name, "--", "sh", "-c", script]);
    command.env("member", member.address().to_string());
    let mut waiter = Worker::spawn(command, scene.store.dir.path());
    scene.wait_for_waiters(1);
    let mut behind = scene.contend(Make::Fencepost, 30);
    scene.wait_for_waiters(2);
    ours.release();
    let mut heard = |before: &str| -> u64 {
        let number = |line: &String| line.strip_prefix(before)?.parse().ok();
        waiter.wait_for_line(|lines| lines.iter().find_map(number))
    };
    let (revision, token) = (heard("given "), heard("\"CreateRevision\" : "));
    let next = behind.granted();
    println!("ETCD_LOCK_REV {revision}, create_revision {token}, the next token {next}");
    assert!(token < next && next < revision, "the trap is gone: tell the docs");
    behind.release();
}
