//! Nested names, keys that are no locks, and leftovers.

use fencepost::Fencepost;
use fencepost_testkit::{Etcd, connect, granted, ms, pass, until, until_waiting, waits, within};

use crate::common::{LONG, SOON, leases, shared};

/// Acquires the lock at once, and checks that it is held.
async fn assert_free(client: &Fencepost, name: &str) {
    let guard = client.lock(name).ttl(LONG).try_acquire().await.unwrap();
    let guard = guard.unwrap_or_else(|| panic!("{name} is free"));
    assert!(client.lock(name).try_acquire().await.unwrap().is_none(), "{name} is held now");
    guard.release().await.unwrap();
}

/// Locks of Consul and etcd are prefixes: if all keys below a name counted as contenders, `a` would wait for `a/b`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lock_nested_in_another_name_is_another_lock() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let (outer, inner) = ("names/a", "names/a/b");
    let guard = theirs.lock(inner).ttl(LONG).acquire().await.unwrap();
    assert_free(&ours, outer).await;
    assert!(ours.inspect(outer).await.unwrap().holder.is_none());
    assert!(
        ours.break_lock(outer).await.unwrap().is_none(),
        "it is not broken by its name's start"
    );
    guard.check().unwrap();
    guard.release().await.unwrap();
    let guard = theirs.lock(outer).ttl(LONG).acquire().await.unwrap();
    assert_free(&ours, inner).await;
    assert_free(&ours, "names").await;
    guard.release().await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_that_are_no_contenders_do_not_block() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let name = "names/data";
    // Data without a lease, and data under a lease that the key does not name.
    etcd.etcdctl(&["put", &format!("{name}/1234abcd"), "theirs"]).unwrap();
    let output = etcd.etcdctl(&["lease", "grant", "60"]).unwrap();
    // The id is printed with leading zeros; a key has none.
    let lease = output.split(' ').nth(1).unwrap().trim_start_matches('0');
    etcd.etcdctl(&["put", &format!("{name}/5678"), "theirs", &format!("--lease={lease}")]).unwrap();
    assert_free(&client, name).await;
    // Control: a key that names its lease is a position.
    let place = format!("{name}/{lease}");
    etcd.etcdctl(&["put", &place, "", &format!("--lease={lease}")]).unwrap();
    assert!(client.lock(name).try_acquire().await.unwrap().is_none());
    etcd.etcdctl(&["lease", "revoke", lease]).unwrap();
    assert_free(&client, name).await;
    let data = etcd.etcdctl(&["get", &format!("{name}/1234abcd")]).unwrap();
    assert!(data.contains("theirs"), "it was left alone: {data}");
}

/// Nested locks, older and younger, are listed among the contenders and change all the time.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nested_locks_do_not_queue_for_the_outer_lock() {
    let etcd = shared();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let name = "names/many";
    let mut inner = Vec::new();
    let mut more = async |count: usize| {
        for _ in 0..count {
            let within = format!("{name}/{}", inner.len());
            inner.push(theirs.lock(within).ttl(LONG).acquire().await.unwrap());
        }
    };
    more(20).await;
    assert_free(&ours, name).await;
    let holder = theirs.lock(name).ttl(LONG).acquire().await.unwrap();
    more(20).await;
    let waiter = waits(&ours, name, LONG);
    until_waiting(&theirs, name, 1).await;
    more(20).await;
    let second = waits(&theirs, name, LONG);
    until_waiting(&theirs, name, 2).await;
    assert!(!waiter.is_finished() && !second.is_finished(), "it is held");
    let token = holder.token();
    holder.release().await.unwrap();
    let next = granted(waiter).await;
    assert!(next.token() > token && !second.is_finished());
    let token = next.token();
    next.release().await.unwrap();
    let last = granted(second).await;
    assert!(last.token() > token);
    assert!(inner.iter().all(|guard| guard.check().is_ok()));
}

/// redis-py#3847, sqlx#4198, CURATOR-498: a dropped or cancelled acquire stayed on the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_client_leaves_no_lease() {
    let etcd = Etcd::builder().start().unwrap();
    let (ours, theirs) = (connect(&etcd.url()).await, connect(&etcd.url()).await);
    let holder = theirs.lock("held").ttl(LONG).acquire().await.unwrap();
    assert_eq!(leases(&etcd).len(), 1, "one lease for one grant");
    let mut guards = Vec::new();
    for number in 0..5 {
        guards.push(ours.lock(format!("dropped/{number}")).ttl(LONG).acquire().await.unwrap());
    }
    assert_eq!(leases(&etcd).len(), 6, "the control: guards have leases");
    // Cancelled at many moments, in the first step and in the queue.
    for number in 0..30 {
        let name = if number % 2 == 0 { "held".to_owned() } else { format!("free/{number}") };
        let acquire = waits(&ours, &name, LONG);
        pass(ms(1) / 4 * number).await;
        acquire.abort();
        drop(acquire.await);
    }
    drop(guards);
    within(SOON, "the client drains", ours.close()).await;
    assert_eq!(leases(&etcd).len(), 1, "only theirs is left");
    holder.release().await.unwrap();
    assert!(leases(&etcd).is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_client_leaves_no_lease() {
    let etcd = Etcd::builder().start().unwrap();
    let ours = connect(&etcd.url()).await;
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let waiter = waits(&ours, "x", LONG);
    until_waiting(&ours, "x", 1).await;
    assert_eq!(leases(&etcd).len(), 2);
    drop(ours);
    waiter.abort();
    drop(guard);
    until("nothing is left", async || leases(&etcd).is_empty()).await;
}

/// Third-party clients accept any bytes as a name. An operator must see such a lock, without its control characters.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn third_party_lock_with_an_invalid_name_is_listed_escaped() {
    let etcd = shared();
    let client = connect(&etcd.url()).await;
    let output = etcd.etcdctl(&["lease", "grant", "60"]).unwrap();
    let lease = output.split(' ').nth(1).unwrap().trim_start_matches('0');
    let key = format!("names/odd\n\u{1b}[2J/{lease}");
    etcd.etcdctl(&["put", &key, "", &format!("--lease={lease}")]).unwrap();
    let list = client.list().await.unwrap();
    let shown = list.iter().find(|info| info.name.as_str().starts_with("names/odd"));
    let shown = shown.expect("it is listed");
    assert_eq!(shown.name.as_str(), r"names/odd\n\u{1b}[2J");
    assert!(shown.holder.is_some());
    etcd.etcdctl(&["lease", "revoke", lease]).unwrap();
}
