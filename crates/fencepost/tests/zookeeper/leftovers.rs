//! A client leaves nothing behind.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost_testkit::{
    LONG, SOON, ZooKeeper, connect, fails, ms, pass, until, until_waiting, waits, within,
};

use super::common::Site;

/// A server of its own: all sessions there belong to the test.
fn own_server() -> Site {
    let builder = ZooKeeper::builder().tick_time(200).max_session_timeout(200_000);
    Site { server: builder.start().unwrap().into(), chroot: "/own".into() }
}

/// kazoo#282, curator#600: contenders and sessions without an owner. A client that drops guards, cancels waits and
/// closes leaves neither; and sessions do not accumulate while it works.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn closed_client_leaves_no_node_and_no_session() {
    let site = own_server();
    let client = site.client().await;
    let ttls = [LONG, LONG / 2];
    for number in 0..200_usize {
        let lock = client.lock(format!("many/{}", number % 7)).ttl(LONG);
        let guard = lock.wait_timeout(SOON).acquire().await.unwrap();
        if number % 2 == 0 {
            guard.release().await.unwrap();
        }
        assert!(site.sessions() <= 2, "{} sessions after {number}", site.sessions());
    }
    // Held, dropped, waiting and cancelled, all at the time of the close.
    let held: Vec<_> = {
        let mut held = Vec::new();
        for number in 0..6 {
            let lock = client.lock(format!("held/{number}")).ttl(ttls[number % 2]);
            held.push(lock.acquire().await.unwrap());
        }
        held
    };
    let waiters: Vec<_> = (0..6).map(|at| waits(&client, &format!("held/{at}"), LONG)).collect();
    for number in 0..6 {
        until_waiting(&client, &format!("held/{number}"), 1).await;
    }
    let acquires: Vec<_> = (0..6).map(|at| waits(&client, &format!("new/{at}"), LONG)).collect();
    for task in acquires.iter().chain(&waiters[..3]) {
        task.abort();
    }
    drop(held);
    for waiter in waiters {
        drop(waiter.await.ok());
    }
    within(SOON, "it is closed", client.close()).await;
    let dump = site.server.four_letter("dump").unwrap();
    assert!(!dump.contains("-lock-"), "{dump}");
    drop(client);
    until("no session is left", async || site.sessions() == 0).await;
    // Only the connection of this query is left.
    until("no connection is left", async || {
        site.server.four_letter("cons").unwrap().lines().filter(|it| it.contains("sid=")).count()
            == 0
    })
    .await;
}

/// The client is dropped without a close, at different moments.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dropped_client_leaves_no_session() {
    let site = own_server();
    for wait in [ms(0), ms(1), ms(20)] {
        let client = site.client().await;
        let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
        let waiter = waits(&client, "x", LONG);
        pass(wait).await;
        waiter.abort();
        let _ = waiter.await;
        drop((guard, client));
        until("nothing is left", async || site.children("/x").is_empty() && site.sessions() == 0)
            .await;
    }
}

/// The session of a TTL that was used once is closed with the client.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_ttls_leave_no_sessions() {
    let site = own_server();
    let client = site.client().await;
    for number in 0..10 {
        let lock = client.lock("x").ttl(Duration::from_secs(30 + number));
        lock.wait_timeout(SOON).acquire().await.unwrap().release().await.unwrap();
    }
    assert!(site.sessions() <= 10);
    within(SOON, "it is closed", client.close()).await;
    until("none is left", async || site.sessions() == 0).await;
}

/// ZooKeeper accepts any user and password, and then denies all access. The error names the remedy, and not the
/// password.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_credentials_are_refused_and_not_shown() {
    let site = Site::shared();
    let url = |user: &str| format!("zookeeper://{user}@{}{}", site.server.address(), site.chroot);
    let owner = connect(&format!("{}?acl=creator", url("app:right"))).await;
    let guard = owner.lock("x").ttl(LONG).acquire().await.unwrap();
    let wrong = connect(&format!("{}?acl=creator", url("app:hunter2"))).await;
    let refused = |outcome| fails(outcome, ErrorKind::Refused, &["USER:PASSWORD@"]);
    for error in [
        refused(wrong.lock("x").ttl(LONG).try_acquire().await.map(|_| ())),
        refused(wrong.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.map(|_| ())),
        refused(wrong.lock("new").ttl(LONG).acquire().await.map(|_| ())),
        refused(wrong.inspect("x").await.map(|_| ())),
        refused(wrong.break_lock("x").await.map(|_| ())),
    ] {
        assert!(!format!("{error:?}").contains("hunter2"), "{error:?}");
    }
    assert!(!format!("{wrong:?}").contains("hunter2"));
    within(SOON, "it is closed", wrong.close()).await;
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// Only one side uses TLS: nothing hangs, and the error names the server.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_on_one_side_only_is_reported() {
    let server = ZooKeeper::builder().tls().start().unwrap();
    let (plain, secure) = (server.address(), server.tls_address().unwrap());
    let ca = server.ca_path().unwrap();
    let try_it = async |url: String| {
        within(SOON, "an answer", fencepost::Fencepost::connect(&url)).await.map(|_| ())
    };
    let (one, two, three) = tokio::join!(
        try_it(format!("zookeeper://{secure}")),
        try_it(format!("zookeeper://{plain}?tls=true&ca={}", ca.display())),
        try_it(format!("zookeeper://{secure}?tls=true")),
    );
    fails(one, ErrorKind::Unreachable, &[&secure.to_string()]);
    fails(two, ErrorKind::Unreachable, &[&plain.to_string()]);
    fails(three, ErrorKind::Unreachable, &[&secure.to_string(), "certificate"]);
    let client = connect(&format!("zookeeper://{secure}/t?tls=true&ca={}", ca.display())).await;
    let guard = client.lock("x").ttl(Duration::from_secs(2)).acquire().await.unwrap();
    fencepost_testkit::until_renewed(&guard, 2).await;
    guard.release().await.unwrap();
}
