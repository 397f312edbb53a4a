//! Records of `once`: in etcd until their lease ends.

use fencepost::ledger::State;
use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::records::{
    begin, listed_and_forgotten, long_result, overtaken_cannot_finish, records_are_no_locks,
    retention_ends, sixteen_run_once,
};
use fencepost_testkit::{Etcd, Mode, Proxy, SECRET, Trigger, connect, fails, until, within};

use crate::common::{LONG, SOON, leases, shared};

/// Two clients of the shared server with a prefix of their own.
async fn pair(prefix: &str) -> [Fencepost; 2] {
    let url = format!("{}?prefix={prefix}/", shared().url());
    [connect(&url).await, connect(&url).await]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn one_of_sixteen_runs() {
    let _server = shared();
    sixteen_run_once(&pair("sixteen").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paused_run_that_was_overtaken_cannot_finish() {
    let _server = shared();
    let [ours, theirs] = pair("overtaken").await;
    overtaken_cannot_finish(&ours, &theirs).await;
}

/// With the record go its lease and the leases of its earlier states.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_ends_with_its_retention() {
    let etcd = Etcd::builder().start().unwrap();
    let client = connect(&etcd.url()).await;
    retention_ends(&client, async || {
        let keys = etcd.etcdctl(&["get", "--prefix", "--keys-only", "fencepost."]).unwrap();
        keys.trim().is_empty() && leases(&etcd).is_empty()
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_listed_and_forgotten() {
    let _server = shared();
    let [ours, _] = pair("listed").await;
    let [other, _] = pair("listed-elsewhere").await;
    begin(&other, "somebody else's").await.done("").await.unwrap();
    listed_and_forgotten(&ours).await;
    assert_eq!(other.once_records().await.unwrap().len(), 1);
}

/// More than one page, each record as large as possible.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_large_records_are_listed() {
    let _server = shared();
    let [client, _] = pair("many").await;
    for number in 0..70 {
        begin(&client, &format!("{number:03}")).await.done(long_result()).await.unwrap();
    }
    let records = client.once_records().await.unwrap();
    let keys: Vec<_> = records.into_iter().map(|(key, _)| key).collect();
    assert_eq!(keys, (0..70).map(|number| format!("{number:03}")).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_is_not_a_lock() {
    let etcd = Etcd::builder().start().unwrap();
    records_are_no_locks(&connect(&etcd.url()).await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_survive_a_crash() {
    let etcd = Etcd::builder().start().unwrap();
    let client = connect(&etcd.url()).await;
    begin(&client, "done").await.done("result").await.unwrap();
    let running = begin(&client, "running").await;
    etcd.restart().unwrap();
    until("it answers again", async || client.inspect("x").await.is_ok()).await;
    let record = client.once("done").record().await.unwrap().unwrap();
    assert_eq!((record.state, &*record.result), (State::Done, &b"result"[..]));
    running.done("late").await.unwrap();
    assert_eq!(client.once("running").record().await.unwrap().unwrap().result, b"late");
}

/// The connection fails before etcd gets a step, or after: the retry gives the same result, and no lease is left
/// behind.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_whose_connection_is_lost_is_applied_once() {
    let etcd = Etcd::builder().start().unwrap();
    let proxy = Proxy::to(etcd.url().strip_prefix("etcd://").unwrap().parse().unwrap()).unwrap();
    let ours = connect(&format!("etcd://{}", proxy.address())).await;
    let direct = connect(&etcd.url()).await;
    let mut fired = 0;
    let cuts: [fn(Vec<u8>) -> Trigger; 2] = [Trigger::before, Trigger::after];
    for (number, cut) in cuts.into_iter().enumerate() {
        for step in ["done", "give up", "forget"] {
            let key = format!("{step} {number}");
            let run_guard = begin(&ours, &key).await;
            let settled = async {
                match step {
                    "done" => {
                        proxy.cut_on(cut(b"fencepost once 1 done".into()));
                        run_guard.done("x").await
                    }
                    "give up" => {
                        proxy.cut_on(cut(deletion_of(&key)));
                        run_guard.give_up().await
                    }
                    _ => {
                        run_guard.done("x").await.unwrap();
                        proxy.cut_on(cut(deletion_of(&key)));
                        assert!(ours.once(&key).forget().await.unwrap());
                        Ok(())
                    }
                }
            };
            within(SOON, "the step ends", settled).await.unwrap();
            fired += 1;
            assert_eq!(proxy.fired(), fired, "{key}");
            let left = direct.once(&key).record().await.unwrap();
            let result = left.map(|record| record.result);
            assert_eq!(result.as_deref(), (step == "done").then_some(&b"x"[..]), "{key}");
        }
    }
    ours.close().await;
    until("only what is done has a lease", async || leases(&etcd).len() == 2).await;
}

/// A request that deletes this record: field 3 of an operation, with the key as its field 1.
fn deletion_of(key: &str) -> Vec<u8> {
    let key = format!("fencepost.once/once/{key}.");
    let length = u8::try_from(key.len()).unwrap();
    [&[0x1a, length + 2, 0x0a, length], key.as_bytes()].concat()
}

/// The runner has read that the record is its own, and freezes before it writes. Meanwhile it is overtaken.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn step_overtaken_between_read_and_write_writes_nothing() {
    let etcd = shared();
    let proxy = Proxy::to(etcd.url().strip_prefix("etcd://").unwrap().parse().unwrap()).unwrap();
    let ours = connect(&format!("etcd://{}?prefix=between/", proxy.address())).await;
    let [theirs, _] = pair("between").await;
    let run_guard = begin(&ours, "k").await;
    // The read is served, and its reply arrives after the next run has claimed the record.
    proxy.set_mode(Mode::DropAnswers);
    let finishing = tokio::spawn(run_guard.done("stale"));
    theirs.break_lock("once/k").await.unwrap().unwrap();
    let next = begin(&theirs, "k").await;
    let token = next.token();
    proxy.set_mode(Mode::Pass);
    let outcome = within(SOON, "the step ends", finishing).await.unwrap();
    assert!(outcome.is_err(), "it was overtaken");
    let record = theirs.once("k").record().await.unwrap().unwrap();
    assert_eq!((record.state, record.token), (State::Running, token), "nothing was changed");
    next.done("fresh").await.unwrap();
}

/// Grants a user the locks of records and read access to our keys; write access too if `all`.
fn permit(etcd: &Etcd, all: bool) {
    let allow = ["role", "grant-permission", "--prefix=true", "doing"];
    etcd.etcdctl(&[&allow[..], &["readwrite", "once/"]].concat()).unwrap();
    let ours = if all { "readwrite" } else { "read" };
    etcd.etcdctl(&[&allow[..], &[ours, "fencepost."]].concat()).unwrap();
}

/// A refused step must leave no lease, which would stay for the whole retention.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_step_leaves_no_lease() {
    let etcd = Etcd::builder().auth("web", SECRET).start().unwrap();
    etcd.etcdctl(&["user", "add", "doer", "--new-user-password=hunter2"]).unwrap();
    etcd.etcdctl(&["role", "add", "doing"]).unwrap();
    etcd.etcdctl(&["user", "grant-role", "doer", "doing"]).unwrap();
    permit(&etcd, true);
    let client = connect(&format!("etcd://doer:hunter2@{}", etcd.address())).await;
    let run_guard = begin(&client, "end").await;
    permit(&etcd, false);
    fails(run_guard.done("x").await, ErrorKind::Refused, &["grant-permission"]);
    let once = client.once("claim").ttl(LONG);
    fails(once.begin().await, ErrorKind::Refused, &["grant-permission"]);
    within(SOON, "it is closed", client.close()).await;
    until("only what was claimed has a lease", async || leases(&etcd).len() == 1).await;
}

/// Whatever the prefix: no user data and no user locks are among the records, and no lock can get there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_are_outside_every_prefix() {
    let etcd = Etcd::builder().start().unwrap();
    let app = connect(&format!("{}?prefix=app/", etcd.url())).await;
    begin(&app, "k").await.done("x").await.unwrap();
    let keys = |prefix: &str| etcd.etcdctl(&["get", "--prefix", "--keys-only", prefix]).unwrap();
    assert_eq!(keys("app/").trim(), "");
    assert_eq!(keys("fencepost.once/").trim(), "fencepost.once/app/once/k.");
    let plain = connect(&etcd.url()).await;
    assert!(
        plain.once_records().await.unwrap().is_empty() && plain.list().await.unwrap().is_empty()
    );
    for name in
        ["fencepost.once", "fencepost.once/app/once", "fencepost.candidate", "fencepost.broken/x"]
    {
        fails(plain.lock(name).try_acquire().await, ErrorKind::Invalid, &[name, "its own"]);
        fails(plain.inspect(name).await, ErrorKind::Invalid, &[name, "its own"]);
        fails(plain.break_lock(name).await, ErrorKind::Invalid, &[name, "its own"]);
    }
    app.lock("fencepost.once").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
}

/// One damaged record does not hide the others.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreadable_record_is_left_out_of_the_list() {
    let etcd = Etcd::builder().start().unwrap();
    let client = connect(&etcd.url()).await;
    begin(&client, "a").await.done("x").await.unwrap();
    begin(&client, "c").await.done("x").await.unwrap();
    etcd.etcdctl(&["put", "fencepost.once/once/b.", "scribble"]).unwrap();
    let records = client.once_records().await.unwrap();
    assert_eq!(records.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), ["a", "c"]);
    fails(client.once("b").begin().await, ErrorKind::Refused, &["once/b", "etcdctl"]);
}
