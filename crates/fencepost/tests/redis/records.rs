//! Records of what was done: on the server until their time is over.

use fencepost::ledger::State;
use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::records::{
    begin, keep_runs_out, listed_and_forgotten, overtaken_can_not_finish, records_are_no_locks,
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
    keep_runs_out(&client, async || !fencepost_testkit::has(&server, key)).await;
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

/// A server without memory refuses, and what was recorded stays; the end is recorded when there is memory again.
#[tokio::test]
async fn a_server_without_memory_loses_no_record() {
    let server = synced();
    let client = connect(&server.url()).await;
    let turn = begin(&client, "k").await;
    server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
    let ending = tokio::spawn(turn.done("x"));
    until("it is refused", async || {
        let errors = server.command(&["INFO", "errorstats"]).unwrap().text().unwrap();
        errors.contains("errorstat_OOM")
    })
    .await;
    let entry = client.once("k").entry().await.unwrap().unwrap();
    assert_eq!(entry.state, State::Running);
    assert!(!ending.is_finished(), "it is tried again while the lock is held");
    server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    within(SOON, "it is recorded", ending).await.unwrap().unwrap();
    assert_eq!(client.once("k").entry().await.unwrap().unwrap().result, b"x");
}

/// The answer is lost, and before it is asked again the record goes, or is the next one's.
#[tokio::test]
async fn an_end_whose_answer_was_lost_tells_what_is_known() {
    let server = synced();
    let proxy = Proxy::to(server.address()).unwrap();
    let ours = connect(&format!("redis://{}", proxy.address())).await;
    let theirs = connect(&server.url()).await;
    // From here on the server knows the scripts.
    begin(&ours, "warm").await.done("").await.unwrap();
    for step in ["forgotten", "given up"] {
        let turn = begin(&ours, step).await;
        let (key, fired) = (format!("fencepost:once:once/{step}"), proxy.fired());
        // It is sent again soon: until the line is silent, it is cut again.
        proxy.cut_on(Trigger::after("EVALSHA"));
        for _ in 0..4 {
            proxy.cut_on(Trigger::before("EVALSHA"));
        }
        let ending = tokio::spawn(async move {
            if step == "forgotten" { turn.done("x").await } else { turn.give_up().await }
        });
        until("it is heard", async || proxy.fired() > fired).await;
        proxy.set_mode(Mode::Silent);
        if step == "forgotten" {
            let entry = theirs.once(step).entry().await.unwrap().unwrap();
            assert_eq!(entry.state, State::Done, "it was recorded");
            server.command(&["DEL", &key]).unwrap();
        } else {
            theirs.break_lock("once/given up").await.unwrap().unwrap();
            let next = begin(&theirs, step).await;
            next.done("next").await.unwrap();
        }
        proxy.set_mode(Mode::Pass);
        let outcome = ending.await.unwrap();
        if step == "forgotten" {
            fails(outcome, &ErrorKind::Unreachable, &["nobody knows", "once/forgotten"]);
        } else {
            outcome.unwrap();
        }
    }
}

/// One record that somebody spoilt does not hide the others.
#[tokio::test]
async fn a_record_that_can_not_be_read_is_left_out_of_the_list() {
    let server = synced();
    let client = connect(&server.url()).await;
    for key in ["a", "c"] {
        begin(&client, key).await.done("x").await.unwrap();
    }
    let ours = "fencepost:once:once/";
    server.command(&["SET", &format!("{ours}b"), "scribble"]).unwrap();
    server.command(&["HSET", &format!("{ours}d"), "state", "done", "token", "many"]).unwrap();
    server.command(&["HSET", &format!("{ours}e"), "state", "odd", "token", "7"]).unwrap();
    let entries = client.once_entries().await.unwrap();
    assert_eq!(entries.iter().map(|(key, _)| &**key).collect::<Vec<_>>(), ["a", "c"]);
    for key in ["b", "d", "e"] {
        fails(
            client.once(key).entry().await,
            &ErrorKind::Refused,
            &[&format!("once/{key}"), "damaged"],
        );
    }
}
