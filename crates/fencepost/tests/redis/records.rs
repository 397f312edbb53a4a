//! Records of what was done: on the server until their time is over.

use fencepost::ledger::State;
use fencepost::{ErrorKind, Fencepost};
use fencepost_testbed::{Persistence, Proxy, Redis, Trigger};

use crate::common::{connect, fails, two, until};
use crate::once::{
    begin, keep_runs_out, listed_and_forgotten, overtaken_can_not_finish, records_are_no_locks,
    sixteen_run_once,
};

fn synced() -> Redis {
    Redis::builder().persist(Persistence::Always).start().unwrap()
}

async fn pair(server: &Redis) -> [Fencepost; 2] {
    let (ours, theirs) = two(&server.url()).await;
    [ours, theirs]
}

#[tokio::test]
async fn of_sixteen_who_come_together_one_runs() {
    sixteen_run_once(&pair(&synced()).await).await;
}

#[tokio::test]
async fn one_that_was_paused_and_overtaken_can_not_finish() {
    let server = synced();
    let [ours, theirs] = pair(&server).await;
    overtaken_can_not_finish(&ours, &theirs).await;
}

#[tokio::test]
async fn a_record_ends_with_its_time() {
    let server = synced();
    let key = "fencepost:once:once/short";
    let client = connect(&server.url()).await;
    keep_runs_out(&client, async || !crate::common::has(&server, key)).await;
}

/// Also under a prefix that is a pattern, beside records of another one.
#[tokio::test]
async fn records_are_listed_and_forgotten() {
    let server = synced();
    let other = connect(&server.url()).await;
    begin(&other, "somebody else's").await.done("").await.unwrap();
    let ours = connect(&format!("{}?prefix=app%5B1%5D*:", server.url())).await;
    listed_and_forgotten(&ours).await;
    assert_eq!(other.once_entries().await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_record_is_no_lock() {
    records_are_no_locks(&connect(&synced().url()).await).await;
}

#[tokio::test]
async fn records_outlive_a_crash_of_a_server_that_syncs_every_write() {
    let server = synced();
    let [ours, theirs] = pair(&server).await;
    begin(&ours, "done").await.done("result").await.unwrap();
    let running = begin(&ours, "running").await;
    server.restart().unwrap();
    until("they are connected again", async || {
        theirs.inspect("x").await.is_ok() && ours.inspect("x").await.is_ok()
    })
    .await;
    let entry = theirs.once("done").entry().await.unwrap().unwrap();
    assert_eq!(entry.result, b"result");
    running.done("late").await.unwrap();
    assert_eq!(theirs.once("running").entry().await.unwrap().unwrap().result, b"late");
}

/// A server that may forget is refused, unless the work may be repeated.
#[tokio::test]
async fn a_server_that_may_forget_is_refused() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    fails(client.once("k").begin().await, &ErrorKind::Refused, &["redis", "record", "appendonly"]);
    let once = client.once("k").may_repeat();
    assert!(once.run(async |_| Ok::<_, std::io::Error>("")).await.unwrap().ran);
}

/// The connection breaks before the server has heard a step, or after: sent again, it says the same.
#[tokio::test]
async fn a_step_that_is_cut_off_is_made_once() {
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
            let turn = begin(&ours, &key).await;
            proxy.cut_on(cut.clone());
            match step {
                "done" => turn.done("x").await.unwrap(),
                _ => turn.give_up().await.unwrap(),
            }
            fired += 1;
            assert_eq!(proxy.fired(), fired);
            let left = direct.once(&key).entry().await.unwrap();
            assert_eq!(
                left.map(|entry| entry.result).as_deref(),
                (step == "done").then_some(&b"x"[..])
            );
        }
    }
    until("nothing is held", async || direct.list().await.unwrap().is_empty()).await;
}

/// A server without memory refuses, and what was recorded stays.
#[tokio::test]
async fn a_server_without_memory_loses_no_record() {
    let server = synced();
    let client = connect(&server.url()).await;
    let turn = begin(&client, "k").await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let outcome = turn.done("x").await;
    assert!(outcome.is_err(), "there is no memory for it");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    let entry = client.once("k").entry().await.unwrap().unwrap();
    assert_eq!(entry.state, State::Running);
}
