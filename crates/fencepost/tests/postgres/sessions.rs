//! An administrator ends our sessions, as a failover of a pooler does, too.

use fencepost_testkit::{
    Database, LONG, SOON, connect, ms, nothing_is_left, two, until, until_waiting, within,
};

use crate::common::{ask, session};

const END_ALL: &str = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                       where datname = current_database() and application_name = 'fencepost'";

#[tokio::test]
async fn every_session_is_ended_under_a_holder_and_a_waiter() {
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
    within(SOON, "the waiter's turn comes", waiting)
        .await
        .unwrap()
        .unwrap()
        .release()
        .await
        .unwrap();
    nothing_is_left(&ours, "x").await;
}

/// Sessions are ended all the time. Acquires and releases are sent again, and none is lost or done twice.
#[tokio::test]
async fn sessions_that_are_ended_all_the_time_leave_nothing_behind() {
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
        // To be cut off each time is an outage; what counts is what is left.
        let Ok(guard) = client.lock("x").ttl(LONG).acquire_within(SOON).await else { continue };
        assert!(guard.token().get() > last);
        last = guard.token().get();
        let _ = guard.release().await;
    }
    ending.abort();
    assert!(last > 0, "it was granted at least once");
    nothing_is_left(&client, "x").await;
}

/// A client that waits listens, with what it needs for its grants as well.
#[tokio::test]
async fn a_client_listens_when_it_first_waits() {
    let database = Database::fresh().unwrap();
    let (ours, theirs) = two(&database.url()).await;
    let admin = session(&database.url()).await;
    let sql = "select count(*) from pg_stat_activity where datname = current_database() and query like 'LISTEN %'";
    let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
    let lock = theirs.lock("x");
    let waiting = tokio::spawn(async move { lock.acquire().await });
    until("both listen", async || ask::<i64>(&admin, sql).await == 2).await;
    guard.release().await.unwrap();
    let guard = within(SOON, "the waiter's turn comes", waiting).await.unwrap().unwrap();
    guard.release().await.unwrap();
    assert_eq!(ask::<i64>(&admin, sql).await, 2, "one connection for all of it");
}

/// Connections may be driven by the caller's runtime. One that is blocked drives nothing: the client's own does
/// it then.
#[tokio::test(flavor = "multi_thread", worker_threads = 1)]
async fn a_blocking_call_on_the_only_worker_of_a_runtime_comes_to_its_end() {
    let database = Database::fresh().unwrap();
    let url = database.url();
    let worker = tokio::spawn(async move {
        let blocked = fencepost::blocking::Fencepost::connect(&url).unwrap();
        blocked.lock("x").acquire().unwrap().release().unwrap();
    });
    worker.await.unwrap();
    nothing_is_left(&connect(&database.url()).await, "x").await;
}

/// However many runtimes ask: the server never has more connections of a client than it was promised.
#[tokio::test]
async fn a_client_that_is_used_from_several_runtimes_keeps_to_its_pool() {
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
        // They stay, and their connections with them.
        runtimes.push(elsewhere.join().unwrap());
        // Two, two more for each kind that must not be kept out, and one for notifications.
        let connections: i64 = ask(&admin, count).await;
        assert!(connections <= 7, "{connections}");
    }
    runtimes.into_iter().for_each(tokio::runtime::Runtime::shutdown_background);
    nothing_is_left(&client, "x0").await;
}
