//! Records of `once`: on the server until their retention ends.

use fencepost::ledger::State;
use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::records::{
    begin, listed_and_forgotten, overtaken_cannot_finish, records_are_no_locks, retention_ends,
    sixteen_run_once,
};
use fencepost_testkit::{
    Mode, Persistence, Proxy, Redis, SOON, Trigger, connect, fails, two, until, within,
};

fn synced() -> Redis {
    Redis::builder().persist(Persistence::Always).start().unwrap()
}

async fn pair(server: &Redis) -> [Fencepost; 2] {
    let (ours, theirs) = two(&server.url()).await;
    [ours, theirs]
}

#[tokio::test]
async fn one_of_sixteen_runs() {
    sixteen_run_once(&pair(&synced()).await).await;
}

#[tokio::test]
async fn paused_run_that_was_overtaken_cannot_finish() {
    let server = synced();
    let [ours, theirs] = pair(&server).await;
    overtaken_cannot_finish(&ours, &theirs).await;
}

#[tokio::test]
async fn record_ends_with_its_retention() {
    let server = synced();
    let key = "fencepost:record:{once/short}";
    let client = connect(&server.url()).await;
    retention_ends(&client, async || !fencepost_testkit::has(&server, key)).await;
}

/// With a prefix that contains pattern characters, beside records of another prefix.
#[tokio::test]
async fn records_are_listed_and_forgotten() {
    let server = synced();
    let other = connect(&server.url()).await;
    begin(&other, "somebody else's").await.done("").await.unwrap();
    let ours = connect(&format!("{}?prefix=app%5B1%5D*:", server.url())).await;
    listed_and_forgotten(&ours).await;
    assert_eq!(other.once_records().await.unwrap().len(), 1);
}

#[tokio::test]
async fn record_is_not_a_lock() {
    records_are_no_locks(&connect(&synced().url()).await).await;
}

#[tokio::test]
async fn records_survive_a_crash_of_a_server_that_syncs_every_write() {
    let server = synced();
    let [ours, theirs] = pair(&server).await;
    begin(&ours, "done").await.done("result").await.unwrap();
    let running = begin(&ours, "running").await;
    server.restart().unwrap();
    until("they are connected again", async || {
        theirs.inspect("x").await.is_ok() && ours.inspect("x").await.is_ok()
    })
    .await;
    let record = theirs.once("done").record().await.unwrap().unwrap();
    assert_eq!(record.result, b"result");
    running.done("late").await.unwrap();
    assert_eq!(theirs.once("running").record().await.unwrap().unwrap().result, b"late");
}

/// A server that can lose records is refused, unless the work may be repeated.
#[tokio::test]
async fn server_that_can_lose_records_is_refused() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    fails(client.once("k").begin().await, ErrorKind::Refused, &["redis", "record", "appendonly"]);
    let once = client.once("k").may_repeat();
    assert!(once.run(async |_| Ok::<_, std::io::Error>("")).await.unwrap().ran);
}

/// The connection fails before the server gets a step, or after: the retry gives the same result.
#[tokio::test]
async fn step_whose_connection_is_lost_is_applied_once() {
    let server = synced();
    let proxy = Proxy::to(server.address()).unwrap();
    let ours = connect(&format!("redis://{}", proxy.address())).await;
    let direct = connect(&server.url()).await;
    // From here on the server knows the scripts.
    begin(&ours, "warm").await.done("").await.unwrap();
    assert!(ours.once("warm").forget().await.unwrap());
    begin(&ours, "warm").await.give_up().await.unwrap();
    let mut fired = 0;
    for (number, cut) in [Trigger::before("EVALSHA"), Trigger::after("EVALSHA")].iter().enumerate()
    {
        for step in ["done", "give up"] {
            let key = format!("{step} {number}");
            let run_guard = begin(&ours, &key).await;
            proxy.cut_on(cut.clone());
            match step {
                "done" => run_guard.done("x").await.unwrap(),
                _ => run_guard.give_up().await.unwrap(),
            }
            fired += 1;
            assert_eq!(proxy.fired(), fired);
            let left = direct.once(&key).record().await.unwrap();
            assert_eq!(
                left.map(|record| record.result).as_deref(),
                (step == "done").then_some(&b"x"[..])
            );
        }
    }
    until("nothing is held", async || direct.list().await.unwrap().is_empty()).await;
}

/// A server without memory refuses, and keeps existing records. The finish is recorded when there is memory again.
#[tokio::test]
async fn server_without_memory_loses_no_record() {
    let server = synced();
    let client = connect(&server.url()).await;
    let run_guard = begin(&client, "k").await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let ending = tokio::spawn(run_guard.done("x"));
    until("it is refused", async || {
        let errors = server.command(&["INFO", "errorstats"]).unwrap().text().unwrap();
        errors.contains("errorstat_OOM")
    })
    .await;
    let record = client.once("k").record().await.unwrap().unwrap();
    assert_eq!(record.state, State::Running);
    assert!(!ending.is_finished(), "it is tried again while the lock is held");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    within(SOON, "it is recorded", ending).await.unwrap().unwrap();
    assert_eq!(client.once("k").record().await.unwrap().unwrap().result, b"x");
}

/// The reply is lost. Before the retry the record is deleted, or another run finishes it.
#[tokio::test]
async fn finish_whose_reply_is_lost_reports_what_is_known() {
    let server = synced();
    let proxy = Proxy::to(server.address()).unwrap();
    let ours = connect(&format!("redis://{}", proxy.address())).await;
    let theirs = connect(&server.url()).await;
    // From here on the server knows the scripts.
    begin(&ours, "warm").await.done("").await.unwrap();
    for step in ["forgotten", "given up"] {
        let run_guard = begin(&ours, step).await;
        let (key, fired) = (format!("fencepost:record:{{once/{step}}}"), proxy.fired());
        // The client retries soon: cut again until the proxy is silent.
        proxy.cut_on(Trigger::after("EVALSHA"));
        for _ in 0..4 {
            proxy.cut_on(Trigger::before("EVALSHA"));
        }
        let ending = tokio::spawn(async move {
            if step == "forgotten" { run_guard.done("x").await } else { run_guard.give_up().await }
        });
        until("the finish is applied", async || proxy.fired() > fired).await;
        proxy.set_mode(Mode::Silent);
        if step == "forgotten" {
            let record = theirs.once(step).record().await.unwrap().unwrap();
            assert_eq!(record.state, State::Done, "it was recorded");
            server.command(&["DEL", &key]).unwrap();
        } else {
            theirs.break_lock("once/given up").await.unwrap().unwrap();
            let next = begin(&theirs, step).await;
            next.done("next").await.unwrap();
        }
        proxy.set_mode(Mode::Pass);
        let outcome = ending.await.unwrap();
        if step == "forgotten" {
            fails(outcome, ErrorKind::Unreachable, &["is unknown", "once/forgotten"]);
        } else {
            outcome.unwrap();
        }
    }
}

/// One damaged record does not hide the others.
#[tokio::test]
async fn unreadable_record_is_left_out_of_the_list() {
    let server = synced();
    let client = connect(&server.url()).await;
    for key in ["a", "c"] {
        begin(&client, key).await.done("x").await.unwrap();
    }
    let ours = |key: &str| format!("fencepost:record:{{once/{key}}}");
    server.command(&["SET", &ours("b"), "scribble"]).unwrap();
    server.command(&["HSET", &ours("d"), "layout", "2", "state", "done", "token", "many"]).unwrap();
    server.command(&["HSET", &ours("e"), "layout", "2", "state", "odd", "token", "7"]).unwrap();
    let records = client.once_records().await.unwrap();
    assert_eq!(records.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), ["a", "c"]);
    for key in ["b", "d", "e"] {
        fails(
            client.once(key).record().await,
            ErrorKind::Refused,
            &[&format!("once/{key}"), "damaged"],
        );
    }
}
