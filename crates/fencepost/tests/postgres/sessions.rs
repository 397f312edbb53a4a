//! An administrator terminates our sessions, as the failover of a pooler does.

use fencepost_testkit::{
    Database, LONG, SOON, connect, ms, nothing_is_left, two, until, until_waiting, within,
};

use crate::common::{ask, session};

const END_ALL: &str = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                       where datname = current_database() and application_name = 'fencepost'";

#[tokio::test]
async fn terminated_sessions_lose_neither_guard_nor_waiter() {
    let database = Database::fresh().unwrap();
    let (ours, theirs) = two(&database.url()).await;
    let admin = session(&database.url()).await;
    let guard = ours.lock("x").ttl(ms(3000)).acquire().await.unwrap();
    let lock = theirs.lock("x").ttl(LONG);
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until_waiting(&ours, "x", 1).await;
    for _ in 0..3 {
        assert!(ask::<i64>(&admin, END_ALL).await > 0);
        let before = guard.deadline();
        until("the guard is renewed", async || guard.deadline() > before).await;
        guard.check().expect("nothing was lost");
        until_waiting(&ours, "x", 1).await;
        assert!(!waiting.is_finished());
    }
    guard.release().await.unwrap();
    within(SOON, "the waiter is granted", waiting).await.unwrap().unwrap().release().await.unwrap();
    nothing_is_left(&ours, "x").await;
}

/// Sessions are terminated all the time. Acquires and releases are retried, and none is lost or applied twice.
#[tokio::test]
async fn repeatedly_terminated_sessions_leave_nothing() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let admin = session(&database.url()).await;
    let ending = tokio::spawn(async move {
        loop {
            ask::<i64>(&admin, END_ALL).await;
            fencepost_testkit::pass(ms(15)).await;
        }
    });
    let mut last = 0;
    for _ in 0..40 {
        // An acquire that is cut each time fails; what counts is what is left.
        let Ok(guard) = client.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await else {
            continue;
        };
        assert!(guard.token().get() > last);
        last = guard.token().get();
        let _ = guard.release().await;
    }
    ending.abort();
    assert!(last > 0, "it was granted at least once");
    nothing_is_left(&client, "x").await;
}

/// A waiting client listens, also for what its grants need.
#[tokio::test]
async fn client_listens_when_it_first_waits() {
    let database = Database::fresh().unwrap();
    let (ours, theirs) = two(&database.url()).await;
    let admin = session(&database.url()).await;
    let sql = "select count(*) from pg_stat_activity where datname = current_database() and query like 'LISTEN %'";
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let lock = theirs.lock("x");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("both listen", async || ask::<i64>(&admin, sql).await == 2).await;
    guard.release().await.unwrap();
    let guard = within(SOON, "the waiter is granted", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert_eq!(ask::<i64>(&admin, sql).await, 2, "one connection for all of it");
}

/// Connections may be driven by the caller's runtime. If that is blocked, the client's own runtime drives them.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn blocking_call_on_the_only_worker_of_a_runtime_completes() {
    let database = Database::fresh().unwrap();
    let url = database.url();
    let worker = tokio::spawn(async move {
        let blocked = fencepost::blocking::Fencepost::connect(&url).unwrap();
        blocked.lock("x").acquire().unwrap().release().unwrap();
    });
    worker.await.unwrap();
    nothing_is_left(&connect(&database.url()).await, "x").await;
}

/// However many runtimes use a client: the server never has more of its connections than promised.
#[tokio::test]
async fn client_used_from_several_runtimes_keeps_to_its_pool() {
    let database = Database::fresh().unwrap();
    let url = format!("{}?pool=2", database.url());
    let client = connect(&url).await;
    let count = "select count(*) from pg_stat_activity \
                 where datname = current_database() and application_name = 'fencepost'";
    let admin = session(&database.url()).await;
    let mut runtimes = Vec::new();
    for _ in 0..4 {
        let client = client.clone();
        let elsewhere = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let tasks: Vec<_> = (0..8)
                    .map(|task| {
                        let client = client.clone();
                        tokio::spawn(async move {
                            let name = format!("x{task}");
                            client.lock(&name).acquire().await.unwrap().release().await.unwrap();
                        })
                    })
                    .collect();
                for task in tasks {
                    task.await.unwrap();
                }
            });
            runtime
        });
        // The runtimes stay, and their connections with them.
        runtimes.push(elsewhere.join().unwrap());
        // The pool of two, two more for each kind that must not be blocked, and one for notifications.
        let connections: i64 = ask(&admin, count).await;
        assert!(connections <= 7, "{connections}");
    }
    runtimes.into_iter().for_each(tokio::runtime::Runtime::shutdown_background);
    nothing_is_left(&client, "x0").await;
}
