//! Records: one run is recorded, whoever comes at the same time and whatever fails.

use std::sync::Arc;
use std::time::Duration;

use fencepost::ledger::{RecordInfo, State};
use fencepost::{ErrorKind, Fencepost, OnFailure, RunGuard, Start};
use fencepost_testkit::{
    Database, LONG, PgBouncer, Postgres, Proxy, SOON, Trigger, connect, fails, two, until, within,
};
use tokio::sync::Barrier;

use crate::common::{ask, session};

pub(crate) async fn runs(fp: &Fencepost, key: &str, result: &str) -> fencepost::Result<bool> {
    let once = fp.once(key).ttl(LONG);
    let recorded = once.run(|_| async { Ok::<_, std::io::Error>(result) }).await?;
    Ok(recorded.ran)
}

pub(crate) async fn begin(fp: &Fencepost, key: &str) -> RunGuard {
    match fp.once(key).ttl(LONG).begin().await.unwrap() {
        Start::Claimed(run_guard) => run_guard,
        Start::Finished(record) => panic!("finished already: {record:?}"),
    }
}

/// The ledger's steps as SQL.
struct SqlLedger(tokio_postgres::Client);

impl SqlLedger {
    async fn claim(&self, name: &str, token: i64) -> (i32, Option<i32>, Option<i64>) {
        let sql = format!("select * from fencepost.claim('{name}', {token}, 'test', 3600000)");
        let row = self.0.query_one(&sql, &[]).await.unwrap();
        (row.get("status"), row.get("r_state"), row.get("r_token"))
    }

    async fn finish(&self, name: &str, token: i64, state: i32, result: &str, older: bool) -> i32 {
        let sql = format!(
            "select fencepost.finish('{name}', {token}, 'test', {state}, '{result}', 3600000, {older})"
        );
        ask(&self.0, &sql).await
    }

    /// State, token and result.
    async fn look(&self, name: &str) -> Option<(i32, i64, String)> {
        let sql = format!("select * from fencepost.look_up('{name}')");
        let row = self.0.query_opt(&sql, &[]).await.unwrap()?;
        let result: Vec<u8> = row.get("r_result");
        Some((row.get("r_state"), row.get("r_token"), String::from_utf8(result).unwrap()))
    }
}

async fn ledger() -> (Database, SqlLedger) {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await;
    let session = session(&database.url()).await;
    // These tests use tokens up to 100.
    session.batch_execute("select setval('fencepost.tokens', 100)").await.unwrap();
    (database, SqlLedger(session))
}

#[tokio::test]
async fn record_is_claimed_and_finished_by_its_token() {
    let (_database, ledger) = ledger().await;
    assert_eq!(ledger.look("x").await, None);
    for token in [5, 5, 7] {
        assert_eq!(ledger.claim("x", token).await.0, 1);
        assert_eq!(ledger.look("x").await, Some((0, token, String::new())));
    }
    assert_eq!(ledger.claim("x", 6).await, (0, Some(0), Some(7)), "it is overtaken");
    for token in [5, 6, 8] {
        for state in [0, 1, 2] {
            assert_eq!(ledger.finish("x", token, state, "theirs", false).await, 0);
        }
    }
    assert_eq!(ledger.look("x").await, Some((0, 7, String::new())));
    for result in ["first", "a retry changes nothing"] {
        assert_eq!(ledger.finish("x", 7, 1, result, false).await, 1);
        assert_eq!(ledger.look("x").await, Some((1, 7, "first".into())));
    }
    assert_eq!(ledger.claim("x", 9).await, (0, Some(1), Some(7)), "it is done");
    assert_eq!(ledger.finish("x", 9, 1, "", false).await, 0);
    // An abandoned record is removed, and nobody can finish it later.
    ledger.claim("y", 3).await;
    for _ in 0..2 {
        assert_eq!(ledger.finish("y", 3, 0, "", false).await, 1);
        assert_eq!(ledger.look("y").await, None);
    }
    assert_eq!(ledger.finish("y", 3, 1, "", false).await, 0);
    // A value is replaced by a token that is not lower.
    for (token, written) in [(4, 1), (3, 0), (4, 1), (6, 1)] {
        assert_eq!(ledger.finish("z", token, 1, &token.to_string(), true).await, written);
    }
    assert_eq!(ledger.look("z").await, Some((1, 6, "6".into())));
}

/// The functions refuse what no client of ours sends.
#[tokio::test]
async fn invalid_record_is_refused() {
    let (database, _book) = ledger().await;
    for bad in ["'', 1, 'me', 1000", "'x', 0, 'me', 1000", "'x', 1, 'me', -1", "'x', 1, null, 1"] {
        let error = database.psql(&format!("select fencepost.claim({bad})")).unwrap_err();
        assert!(error.to_string().contains("not a valid record"), "{bad}: {error}");
    }
}

/// With a future token somebody could block a key for all others.
#[tokio::test]
async fn token_that_was_not_granted_is_refused() {
    let (database, ledger) = ledger().await;
    assert_eq!(ledger.claim("x", 100).await.0, 1);
    for call in [
        "claim('x', 101, 'me', 1000)",
        "finish('x', 101, 'me', 1, '', 1000, true)",
        "finish_own('x', 101, 'me', 1, '', 1000, 'any')",
    ] {
        let error = database.psql(&format!("select fencepost.{call}")).unwrap_err();
        assert!(error.to_string().contains("token 101 was not issued"), "{call}: {error}");
    }
    let fresh = Database::fresh().unwrap();
    connect(&fresh.url()).await;
    assert!(fresh.psql("select fencepost.claim('x', 1, 'me', 1000)").is_err(), "none was");
}

/// Sessions that compete for one row: each claims and finishes under its own token.
#[tokio::test(flavor = "multi_thread")]
async fn one_of_sixteen_sessions_finishes_a_record() {
    let (database, ledger) = ledger().await;
    let start = Arc::new(Barrier::new(16));
    let mut racing = Vec::new();
    for token in 1..=16_i64 {
        let (start, ledger) = (Arc::clone(&start), SqlLedger(session(&database.url()).await));
        racing.push(tokio::spawn(async move {
            let mut settled = Vec::new();
            for round in 0..30 {
                let name = format!("r/{round}");
                start.wait().await;
                // All of them finish, even if they were overtaken or late.
                let _ = ledger.claim(&name, token).await;
                settled.push(ledger.finish(&name, token, 1, &token.to_string(), false).await);
            }
            settled
        }));
    }
    let mut settled = Vec::new();
    for one in racing {
        settled.push(one.await.unwrap());
    }
    for round in 0..30 {
        let won: Vec<_> = (1..=16_i64).zip(&settled).filter(|(_, all)| all[round] == 1).collect();
        assert_eq!(won.len(), 1, "round {round}");
        let winner = won[0].0;
        let found = ledger.look(&format!("r/{round}")).await;
        assert_eq!(found, Some((1, winner, winner.to_string())));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn one_of_sixteen_clients_runs() {
    let database = Database::fresh().unwrap();
    let mut clients = Vec::new();
    for _ in 0..16 {
        clients.push(connect(&database.url()).await);
    }
    for key in 0..3 {
        let racing: Vec<_> = clients
            .iter()
            .enumerate()
            .map(|(index, fp)| {
                let once = fp.once(format!("k/{key}")).ttl(LONG);
                tokio::spawn(async move {
                    once.run(|_| async move { Ok::<_, std::io::Error>(index.to_string()) }).await
                })
            })
            .collect();
        let mut results = Vec::new();
        for one in racing {
            results.push(one.await.unwrap().unwrap());
        }
        assert_eq!(results.iter().filter(|result| result.ran).count(), 1, "{results:?}");
        assert!(results.iter().all(|result| result.result == results[0].result), "{results:?}");
    }
    let keys: Vec<_> = clients[0].once_records().await.unwrap();
    let keys: Vec<_> = keys.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["k/0", "k/1", "k/2"]);
}

/// The run of `key` is overtaken and then finishes.
async fn overtaken(database: &Database, key: &str) -> (fencepost::Result<()>, RecordInfo) {
    let (ours, theirs) = two(&database.url()).await;
    let paused = begin(&ours, key).await;
    theirs.break_lock(&format!("once/{key}")).await.unwrap();
    let next = begin(&theirs, key).await;
    let result = paused.done("too late").await;
    let record = theirs.once(key).record().await.unwrap().unwrap();
    drop(next);
    (result, record)
}

#[tokio::test]
async fn overtaken_run_cannot_finish() {
    let database = Database::fresh().unwrap();
    let (result, record) = overtaken(&database, "x").await;
    assert_eq!(result.unwrap_err().kind(), ErrorKind::Lost);
    assert_eq!(record.state, State::Running);
    // Control: without the condition it succeeds, so the test would notice.
    let careless = "do $$ begin execute replace(pg_get_functiondef('fencepost.finish'::regproc),
                    'r.token = p_token', 'true'); end $$";
    session(&database.url()).await.batch_execute(careless).await.unwrap();
    let (result, record) = overtaken(&database, "y").await;
    result.unwrap();
    assert_eq!((record.state, &*record.result), (State::Done, &b"too late"[..]));
}

#[tokio::test]
async fn record_survives_a_crash() {
    let server = Postgres::builder().start().unwrap();
    let client = connect(&server.url()).await;
    assert!(runs(&client, "x", "kept").await.unwrap());
    server.restart().unwrap();
    let client = connect(&server.url()).await;
    assert!(!runs(&client, "x", "again").await.unwrap());
    assert_eq!(client.once("x").record().await.unwrap().unwrap().result, b"kept");
}

#[tokio::test]
async fn record_expires_and_is_removed() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let short = client.once("short").retain_for(Duration::from_secs(1));
    short.run(|_| async { Ok::<_, std::io::Error>("") }).await.unwrap();
    assert!(runs(&client, "long", "").await.unwrap());
    until("its second is over", async || short.record().await.unwrap().is_none()).await;
    assert_eq!(client.once_records().await.unwrap().len(), 1, "it is not listed");
    assert!(runs(&client, "other", "").await.unwrap());
    let left = database.psql("select name from fencepost.records order by 1").unwrap();
    assert_eq!(left, "once/long\nonce/other\n", "nobody asked for it, and its row is gone");
    assert!(runs(&client, "short", "").await.unwrap(), "it may be done again");
    database.psql("update fencepost.records set expires = now()").unwrap();
    assert_eq!(database.psql("select fencepost.gc_records(1000)").unwrap(), "3\n");
}

#[tokio::test]
async fn results_may_be_64_kib_of_any_bytes() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let bytes: Vec<u8> = (0..=255).cycle().take(RecordInfo::MAX_RESULT).collect();
    begin(&client, "x").await.done(bytes.clone()).await.unwrap();
    let record = client.once("x").record().await.unwrap().unwrap();
    assert_eq!(record.result, bytes);
    assert!(record.kept_for <= fencepost::DEFAULT_RETENTION);
    assert!(record.kept_for + LONG > fencepost::DEFAULT_RETENTION);
}

#[tokio::test]
async fn failures_are_retried_or_recorded_and_forgotten() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let failing = |key, how| {
        let once = client.once(key).ttl(LONG).on_failure(how);
        async move { once.run(|_| async { Err::<&str, _>("broken") }).await }
    };
    fails(failing("x", OnFailure::Retry).await, ErrorKind::Failed, &["broken"]);
    assert!(runs(&client, "x", "").await.unwrap());
    fails(failing("y", OnFailure::Record).await, ErrorKind::Failed, &["broken"]);
    fails(runs(&client, "y", "").await, ErrorKind::Failed, &["broken", "forget"]);
    assert!(client.once("y").forget().await.unwrap());
    assert!(!client.once("y").forget().await.unwrap());
    assert!(runs(&client, "y", "").await.unwrap());
}

/// The connection is cut after the step and before its reply: the retry is the same step.
#[tokio::test]
async fn step_whose_reply_is_lost_is_applied_once() {
    let database = Database::fresh().unwrap();
    let proxy = Proxy::to(database.server().address()).unwrap();
    let url = format!("postgres://postgres@{}/{}", proxy.address(), database.name());
    let client = connect(&url).await;
    let mut cuts = 0;
    let mut cut = |step: &str| {
        assert_eq!(proxy.fired(), cuts, "before {step}");
        cuts += 1;
        proxy.cut_on(Trigger::after(format!("fencepost.{step}(")));
    };
    for step in ["look_up", "claim", "finish"] {
        cut(step);
        assert!(runs(&client, step, step).await.unwrap());
        let record = client.once(step).record().await.unwrap().unwrap();
        assert_eq!((record.state, &*record.result), (State::Done, step.as_bytes()));
    }
    cut("finish");
    begin(&client, "x").await.give_up().await.unwrap();
    assert_eq!(client.once("x").record().await.unwrap(), None);
    cut("forget");
    assert!(client.once("claim").forget().await.unwrap());
    cut("list_records");
    assert_eq!(client.once_records().await.unwrap().len(), 2);
    cut("campaign");
    let leadership = client.election("e").ttl(LONG).campaign("first").await.unwrap();
    cut("proclaim");
    leadership.proclaim("second").await.unwrap();
    let leader = client.election("e").leader().await.unwrap().unwrap();
    assert_eq!(leader.term, Some(leadership.term()));
    assert_eq!(leader.value.unwrap().text(), "second");
    cut("none");
}

/// In transaction mode two statements may reach two sessions.
#[tokio::test(flavor = "multi_thread")]
async fn records_and_elections_work_through_a_pooler() {
    let database = Database::fresh().unwrap();
    let bouncer = PgBouncer::start(database.server(), &[], 4).unwrap();
    let url = bouncer.url_of(database.name());
    let client = connect(&url).await;
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    let racing: Vec<_> = (0..8)
        .map(|_| {
            let client = client.clone();
            tokio::spawn(async move { runs(&client, "k", "once").await })
        })
        .collect();
    let mut ran = 0;
    for one in racing {
        ran += usize::from(one.await.unwrap().unwrap());
    }
    assert_eq!(ran, 1);

    let run_guard = begin(&client, "t").await;
    let (mut db, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut tx = db.transaction().await.unwrap();
    tx.batch_execute("create table effect as select 1").await.unwrap();
    run_guard.done_in(&mut tx, "both").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(run_guard.committed().await.unwrap().result, b"both");

    let leadership = client.election("e").ttl(LONG).campaign("first").await.unwrap();
    within(SOON, "it is proclaimed", leadership.proclaim("second")).await.unwrap();
    let leader = client.election("e").leader().await.unwrap().unwrap();
    assert_eq!(leader.value.unwrap().text(), "second");
}
