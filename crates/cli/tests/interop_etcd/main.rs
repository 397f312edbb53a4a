//! Third-party clients on the same etcd: `etcdctl lock`, `etcdctl elect` and etcd's own lock service, in processes of
//! their own, on one server and on a cluster of three. All of them use Go's `concurrency` package.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod elections;
mod etcd;

use etcd::{ClientKind, Fixture};
use fencepost_testkit::command::{LIMIT, now, running_in_group, wait_for};
use fencepost_testkit::interop::mixed::{self, LONG, Party, SHORT};
use fencepost_testkit::interop::servers::Members;
use fencepost_testkit::interop::worker::Worker;

const OTHERS: [ClientKind; 3] = [ClientKind::Lock, ClientKind::Elect, ClientKind::Service];

/// Runs the test with each of these kinds of client, on one server and on three.
fn with_each(kinds: &[ClientKind], test: impl Fn(&Fixture, ClientKind) + Sync) {
    let test = &test;
    std::thread::scope(|scope| {
        for members in [Members::One, Members::Three] {
            for kind in kinds {
                scope.spawn(move || {
                    let fixture = Fixture::with(members);
                    println!("{kind:?}, {members:?}: {}", fixture.name);
                    test(&fixture, *kind);
                });
            }
        }
    });
}

fn mixed_processes(members: Members) {
    let clients = [
        ClientKind::Fencepost,
        ClientKind::Fencepost,
        ClientKind::Lock,
        ClientKind::Lock,
        ClientKind::Elect,
        ClientKind::Service,
        ClientKind::Service,
    ];
    let fixture = Fixture::with(members);
    let result = fixture.count(&clients.map(|kind| (kind, &*fixture.name)), SHORT);
    result.report(&format!("{members:?}"));
    result.assert_excluded();
}

#[test]
fn mixed_processes_lose_no_update() {
    mixed_processes(Members::One);
}

#[test]
fn mixed_processes_lose_no_update_on_three_members() {
    mixed_processes(Members::Three);
}

/// Control: the checks above fail if one client uses another name, or no lock.
#[test]
fn control_client_without_the_lock_loses_updates() {
    for outsider in
        [ClientKind::Fencepost, ClientKind::Lock, ClientKind::Elect, ClientKind::Service]
    {
        let fixture = Fixture::with(Members::One);
        let insider =
            if outsider == ClientKind::Service { ClientKind::Lock } else { ClientKind::Service };
        let (inside, outside) = (&*fixture.name, &*format!("{}-other", fixture.name));
        let clients = [(ClientKind::Fencepost, inside), (insider, inside), (outsider, outside)];
        let result = fixture.count(&clients, LONG);
        result.report(&format!("{outsider:?} on another name"));
        result.assert_not_excluded();
    }
    let fixture = Fixture::with(Members::One);
    let parties = vec![fixture.party(0, ClientKind::Fencepost, &fixture.name), Party::unlocked()];
    let result = mixed::count(fixture.store.dir.path(), LONG, parties);
    result.report("a client without a lock");
    result.assert_not_excluded();
}

/// First come, first served, for all kinds of client. The tokens of all rise together.
#[test]
fn all_clients_share_one_queue() {
    use ClientKind::{Elect, Fencepost, Lock, Service};
    for members in [Members::One, Members::Three] {
        let fixture = Fixture::with(members);
        let kinds =
            [Lock, Fencepost, Service, Fencepost, Elect, Fencepost, Lock, Elect, Service, Lock];
        fixture.assert_granted_in_order(&kinds, |kind| fixture.contend(kind, 30));
    }
}

/// Not with `etcdctl elect`: its lease is always 60 s.
#[test]
fn lock_of_a_killed_third_party_holder_is_granted_when_its_lease_ends() {
    with_each(&[ClientKind::Lock, ClientKind::Service], |fixture, kind| {
        let mut holder = fixture.contend(kind, 2);
        let token = holder.granted();
        let mut next = fixture.contend(ClientKind::Fencepost, 30);
        fixture.wait_for_waiters(1);
        assert!(next.token().is_none());
        let before = now();
        holder.kill();
        assert!(next.granted() > token);
        println!("{kind:?} was killed, fencepost was granted after {:.2?}", now().since(before));
        next.release();
    });
}

/// The watchdog kills the command before the third-party client is granted the lock.
#[test]
fn lock_of_a_killed_run_is_granted_after_its_command_is_dead() {
    with_each(&OTHERS, |fixture, kind| {
        let (holder, group, token) = fixture.start_group();
        let mut next = fixture.contend(kind, 30);
        fixture.wait_for_waiters(1);
        assert!(next.token().is_none());
        let before = now();
        holder.signal(rustix::process::Signal::KILL);
        assert!(next.granted() > token);
        assert!(running_in_group(group).is_empty());
        println!("fencepost was killed, {kind:?} was granted after {:.2?}", now().since(before));
        next.release();
    });
}

/// A dead waiter blocks the others only until its lease ends.
#[test]
fn killed_third_party_waiter_leaves_the_queue_when_its_lease_ends() {
    with_each(&[ClientKind::Lock, ClientKind::Service], |fixture, kind| {
        let mut holder = fixture.contend(ClientKind::Fencepost, 30);
        let token = holder.granted();
        let waiter = fixture.contend(kind, 2);
        fixture.wait_for_waiters(1);
        let mut next = fixture.contend(ClientKind::Fencepost, 30);
        fixture.wait_for_waiters(2);
        waiter.kill();
        holder.release();
        assert!(next.granted() > token);
        next.release();
    });
}

#[test]
fn third_party_holder_is_named_and_exit_code_is_75() {
    with_each(&OTHERS, |fixture, kind| {
        let mut holder = fixture.contend(kind, 30);
        let token = holder.granted();
        let label =
            if kind == ClientKind::Elect { "another client (node-3)" } else { "another client" };
        let seen = fixture.assert_held_by(label, token);
        let left = seen["holder"]["left_ms"].as_u64().unwrap();
        assert!((1..=60_000).contains(&left), "{seen}");
        holder.release();
        assert!(fixture.show()["holder"].is_null());
    });
}

/// The third-party client is not notified, because it does not read its key again. It cannot end the next grant.
#[test]
fn break_ends_a_third_party_grant() {
    with_each(&OTHERS, |fixture, kind| {
        let mut broken = fixture.contend(kind, 30);
        let token = broken.granted();
        let mut next = fixture.contend(ClientKind::Fencepost, 30);
        fixture.wait_for_waiters(1);
        fixture.break_it();
        assert!(next.granted() > token);
        assert!(!broken.has_ended(), "it was notified after all");
        broken.release();
        assert!(fixture.show()["holder"].is_object());
        next.release();
    });
}

/// The lease of a killed leader runs for up to 60 s. An operator need not wait for that.
#[test]
fn break_ends_the_grant_of_a_dead_leader() {
    let fixture = Fixture::with(Members::One);
    let mut leader = fixture.contend(ClientKind::Elect, 60);
    let token = leader.granted();
    leader.kill();
    wait_for("its end", LIMIT, || leader.has_ended());
    fixture.break_it();
    let mut next = fixture.contend(ClientKind::Fencepost, 30);
    assert!(next.granted() > token);
    next.release();
}

#[test]
fn release_and_renew_by_a_stale_owner_leave_a_third_party_lock_alone() {
    with_each(&OTHERS, |fixture, kind| {
        let ours = fixture.acquire(&["--ttl", "1s", &fixture.name]);
        // This waits for the end of the lease above.
        let mut holder = fixture.contend(kind, 30);
        let token = holder.granted();
        assert!(token > ours.token);
        fixture.assert_anothers(&fixture.name, &ours.owner);
        assert_eq!(fixture.show()["token"], token);
        holder.release();
    });
}

/// Lets all third-party clients wait for the lock, and checks that none is granted it, although fencepost sees it as
/// free for them. A fencepost client behind them waits as well. `clear` removes the obstacle.
fn assert_stuck(fixture: &Fixture, clear: impl FnOnce()) {
    let mut ours = fixture.contend(ClientKind::Fencepost, 30);
    ours.granted();
    ours.release();
    let stuck = OTHERS.map(|kind| fixture.contend(kind, 30));
    let waiting = OTHERS.len() as u64 - 1;
    wait_for("all in the queue", LIMIT, || {
        let seen = fixture.show();
        seen["holder"].is_object() && seen["waiting"] == waiting
    });
    let behind = fixture.contend(ClientKind::Fencepost, 30);
    fixture.wait_for_waiters(waiting + 1);
    assert!(stuck.iter().all(|one| one.token().is_none()), "the obstacle is gone: update the docs");
    assert!(behind.token().is_none());
    clear();
    wait_for("the first grant", LIMIT, || stuck.iter().any(|one| one.token().is_some()));
}

/// For fencepost `a/b` is not part of `a`. For third-party clients it is: while `a/b` is held, they wait for `a`.
#[test]
fn nested_name_blocks_third_party_clients_only() {
    for kind in [ClientKind::Fencepost, ClientKind::Lock] {
        let fixture = Fixture::with(Members::One);
        let mut inner = fixture.contend_for(kind, &format!("{}/b", fixture.name), 30);
        inner.granted();
        assert_stuck(&fixture, || inner.release());
    }
}

/// The same with a key that holds data: third-party clients take it for a holder.
#[test]
fn plain_key_below_the_name_blocks_third_party_clients_only() {
    let fixture = Fixture::with(Members::One);
    let key = format!("{}/42", fixture.name);
    fixture.member().etcdctl(&["put", &key, "data"]).unwrap();
    assert_stuck(&fixture, || {
        fixture.member().etcdctl(&["del", &key]).unwrap();
    });
}

/// The other way round no client is blocked.
#[test]
fn outer_name_blocks_no_client() {
    let fixture = Fixture::with(Members::One);
    let mut outer = fixture.contend(ClientKind::Fencepost, 30);
    outer.granted();
    for kind in [ClientKind::Fencepost, ClientKind::Lock, ClientKind::Elect, ClientKind::Service] {
        let mut inner = fixture.contend_for(kind, &format!("{}/b", fixture.name), 30);
        inner.granted();
        inner.release();
    }
    outer.release();
}

/// `etcdctl lock` gives its command `ETCD_LOCK_REV`. After a wait, that is a later revision than the one that created its
/// key, so it cannot be compared with the tokens of other clients. The key's `create_revision` can.
#[test]
fn revision_from_etcdctl_is_not_a_token() {
    let fixture = Fixture::with(Members::One);
    let mut ours = fixture.contend(ClientKind::Fencepost, 30);
    ours.granted();
    let member = fixture.member();
    let script =
        "etcdctl --endpoints=$member get -w fields $ETCD_LOCK_KEY; echo given $ETCD_LOCK_REV";
    let mut command = member.etcdctl_command();
    command.args(["lock", &fixture.name, "--", "sh", "-c", script]);
    command.env("member", member.address().to_string());
    let mut waiter = Worker::spawn(command, fixture.store.dir.path());
    fixture.wait_for_waiters(1);
    let mut behind = fixture.contend(ClientKind::Fencepost, 30);
    fixture.wait_for_waiters(2);
    ours.release();
    let mut printed = |before: &str| -> u64 {
        let number = |line: &String| line.strip_prefix(before)?.parse().ok();
        waiter.wait_for_line(|lines| lines.iter().find_map(number))
    };
    let (revision, token) = (printed("given "), printed("\"CreateRevision\" : "));
    let next = behind.granted();
    println!("ETCD_LOCK_REV {revision}, create_revision {token}, the next token {next}");
    assert!(token < next && next < revision, "etcdctl has changed: update the docs");
    behind.release();
}
