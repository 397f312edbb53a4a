//! Released locks leave nothing on the server after the retention.

use fencepost_testkit::{LONG, Redis, connect, ms, now, two, until};

/// How many names are locked, unless `FENCEPOST_NAMES` is set.
const NAMES: usize = 100_000;
const TASKS: usize = 64;

fn keys(server: &Redis) -> i64 {
    server.command(&["DBSIZE"]).unwrap().int().unwrap()
}

/// redisson#6510: 25 of 75 million keys were fence counters that never expired.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn released_names_leave_no_key() {
    let names = std::env::var("FENCEPOST_NAMES").map_or(NAMES, |count| count.parse().unwrap());
    let server = Redis::builder().start().unwrap();
    let client = connect(&format!("{}?retention=2s", server.url())).await;
    let started = now();
    let tasks: Vec<_> = (0..TASKS)
        .map(|task| {
            let client = client.clone();
            tokio::spawn(async move {
                for number in (task..names).step_by(TASKS) {
                    let lock = client.lock(format!("n/{number}")).ttl(LONG);
                    lock.acquire().await.unwrap().release().await.unwrap();
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    let locked = now();
    until("no key is left", async || {
        fencepost_testkit::pass(ms(50)).await;
        keys(&server) == 0
    })
    .await;
    let (work, rest) = (locked.since(started), now().since(locked));
    println!("{names} names locked and released in {work:?}; no key was left {rest:?} later");
}

/// The keys of waiters, cancelled waiters and broken locks also expire.
#[tokio::test]
async fn cancelled_waiters_leave_no_key() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&format!("{}?retention=2s", server.url())).await;
    let long = ours.lock("long").ttl(LONG).acquire().await.unwrap();
    for number in 0..20 {
        let name = format!("n/{number}");
        let guard = ours.lock(&name).ttl(ms(2000)).acquire().await.unwrap();
        let gave_up = theirs.lock(&name).wait_timeout(ms(10)).acquire().await;
        assert!(gave_up.is_err(), "it is held");
        drop(theirs.lock(&name).try_acquire());
        tokio::select! {
            _ = theirs.lock(&name).acquire() => panic!("it is held"),
            () = fencepost_testkit::pass(ms(3)) => {}
        }
        if number % 2 == 0 {
            guard.release().await.unwrap();
        } else {
            ours.break_lock(&name).await.unwrap().unwrap();
            assert!(guard.release().await.is_err());
        }
    }
    // A lease longer than the retention keeps its state while it is held, and no longer.
    assert_eq!(long.token(), ours.inspect("long").await.unwrap().holder.unwrap().token.unwrap());
    long.release().await.unwrap();
    theirs.close().await;
    until("no key is left", async || keys(&server) == 0).await;
}

/// A lease longer than the retention keeps its state until it ends. After that, a release by another owner must not
/// extend the state.
#[tokio::test]
async fn release_that_finds_nothing_does_not_extend_the_state() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&format!("{}?retention=1s", server.url())).await;
    client.lock("x").ttl(LONG).acquire().await.unwrap().release().await.unwrap();
    let kept = || server.command(&["PTTL", "fencepost:lock:{x}"]).unwrap().int().unwrap();
    assert!(kept() <= 1000, "{}", kept());
    let nobody = fencepost::OwnerId::from_bits(1);
    assert!(client.release("x", nobody).await.is_err());
    assert!(kept() <= 1000, "{}", kept());
}
