//! Records on the server: one run is recorded, whoever comes at the same time and whatever ends in the middle.

use std::sync::Arc;
use std::time::Duration;

use fencepost::ledger::{Entry, State};
use fencepost::{Begun, ErrorKind, Fencepost, OnFailure, Turn};
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

pub(crate) async fn begin(fp: &Fencepost, key: &str) -> Turn {
    match fp.once(key).ttl(LONG).begin().await.unwrap() {
        Begun::Ours(turn) => turn,
        Begun::Settled(entry) => panic!("settled already: {entry:?}"),
    }
}

/// The steps of the ledger, as SQL.
struct Book(tokio_postgres::Client);

impl Book {
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

async fn book() -> (Database, Book) {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await;
    let session = session(&database.url()).await;
    // The tokens that these tests use were handed out.
    session.batch_execute("select setval('fencepost.tokens', 100)").await.unwrap();
    (database, Book(session))
}

#[tokio::test]
async fn a_record_is_claimed_and_settled_by_its_token() {
    let (_database, book) = book().await;
    assert_eq!(book.look("x").await, None);
    for token in [5, 5, 7] {
        assert_eq!(book.claim("x", token).await.0, 1);
        assert_eq!(book.look("x").await, Some((0, token, String::new())));
    }
    assert_eq!(book.claim("x", 6).await, (0, Some(0), Some(7)), "it is overtaken");
    for token in [5, 6, 8] {
        for state in [0, 1, 2] {
            assert_eq!(book.finish("x", token, state, "theirs", false).await, 0);
        }
    }
    assert_eq!(book.look("x").await, Some((0, 7, String::new())));
    for result in ["first", "a retry changes nothing"] {
        assert_eq!(book.finish("x", 7, 1, result, false).await, 1);
        assert_eq!(book.look("x").await, Some((1, 7, "first".into())));
    }
    assert_eq!(book.claim("x", 9).await, (0, Some(1), Some(7)), "it is done");
    assert_eq!(book.finish("x", 9, 1, "", false).await, 0);
    // Given up, it goes, and is marked by nobody after that.
    book.claim("y", 3).await;
    for _ in 0..2 {
        assert_eq!(book.finish("y", 3, 0, "", false).await, 1);
        assert_eq!(book.look("y").await, None);
    }
    assert_eq!(book.finish("y", 3, 1, "", false).await, 0);
    // A value is replaced by a token that is not lower.
    for (token, written) in [(4, 1), (3, 0), (4, 1), (6, 1)] {
        assert_eq!(book.finish("z", token, 1, &token.to_string(), true).await, written);
    }
    assert_eq!(book.look("z").await, Some((1, 6, "6".into())));
}

/// What no client of ours writes, nobody has to live with.
#[tokio::test]
async fn a_record_that_no_client_makes_is_refused() {
    let (database, _book) = book().await;
    for bad in ["'', 1, 'me', 1000", "'x', 0, 'me', 1000", "'x', 1, 'me', -1", "'x', 1, null, 1"] {
        let error = database.psql(&format!("select fencepost.claim({bad})")).unwrap_err();
        assert!(error.to_string().contains("this is no record"), "{bad}: {error}");
    }
}

/// With a token that is yet to come somebody could keep all others from a key.
#[tokio::test]
async fn a_token_that_was_not_handed_out_is_refused() {
    let (database, book) = book().await;
    assert_eq!(book.claim("x", 100).await.0, 1);
    for call in [
        "claim('x', 101, 'me', 1000)",
        "finish('x', 101, 'me', 1, '', 1000, true)",
        "finish_own('x', 101, 'me', 1, '', 1000, 'any')",
    ] {
        let error = database.psql(&format!("select fencepost.{call}")).unwrap_err();
        assert!(error.to_string().contains("token 101 was not handed out"), "{call}: {error}");
    }
    let fresh = Database::fresh().unwrap();
    connect(&fresh.url()).await;
    assert!(fresh.psql("select fencepost.claim('x', 1, 'me', 1000)").is_err(), "none was");
}

/// Sessions that meet at one row: each claims and settles under a token of its own.
#[tokio::test(flavor = "multi_thread")]
async fn of_sixteen_sessions_at_one_record_one_settles_it() {
    let (database, book) = book().await;
    let start = Arc::new(Barrier::new(16));
    let mut racing = Vec::new();
    for token in 1..=16_i64 {
        let (start, book) = (Arc::clone(&start), Book(session(&database.url()).await));
        racing.push(tokio::spawn(async move {
            let mut settled = Vec::new();
            for round in 0..30 {
                let name = format!("r/{round}");
                start.wait().await;
                // All of them settle, also those that were overtaken or came too late.
                let _ = book.claim(&name, token).await;
                settled.push(book.finish(&name, token, 1, &token.to_string(), false).await);
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
        let found = book.look(&format!("r/{round}")).await;
        assert_eq!(found, Some((1, winner, winner.to_string())));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_sixteen_clients_that_start_together_one_runs() {
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
    let keys: Vec<_> = clients[0].once_entries().await.unwrap();
    let keys: Vec<_> = keys.iter().map(|(key, _)| key.as_str()).collect();
    assert_eq!(keys, ["k/0", "k/1", "k/2"]);
}

/// Whoever runs `key` is overtaken; then it wants to mark it.
async fn overtaken(database: &Database, key: &str) -> (fencepost::Result<()>, Entry) {
    let (ours, theirs) = two(&database.url()).await;
    let paused = begin(&ours, key).await;
    theirs.break_lock(&format!("once/{key}")).await.unwrap();
    let next = begin(&theirs, key).await;
    let marked = paused.done("too late").await;
    let entry = theirs.once(key).entry().await.unwrap().unwrap();
    drop(next);
    (marked, entry)
}

#[tokio::test]
async fn one_that_was_overtaken_can_not_mark_it() {
    let database = Database::fresh().unwrap();
    let (marked, entry) = overtaken(&database, "x").await;
    assert!(matches!(marked.unwrap_err().kind(), ErrorKind::Lost(_)));
    assert_eq!(entry.state, State::Running);
    // The control: without the condition it can, so the test would see it.
    let careless = "do $$ begin execute replace(pg_get_functiondef('fencepost.finish'::regproc),
                    'r.token = p_token', 'true'); end $$";
    session(&database.url()).await.batch_execute(careless).await.unwrap();
    let (marked, entry) = overtaken(&database, "y").await;
    marked.unwrap();
    assert_eq!((entry.state, &*entry.result), (State::Done, &b"too late"[..]));
}

#[tokio::test]
async fn a_record_outlives_a_crash_of_the_server() {
    let server = Postgres::builder().start().unwrap();
    let client = connect(&server.url()).await;
    assert!(runs(&client, "x", "kept").await.unwrap());
    server.restart().unwrap();
    let client = connect(&server.url()).await;
    assert!(!runs(&client, "x", "again").await.unwrap());
    assert_eq!(client.once("x").entry().await.unwrap().unwrap().result, b"kept");
}

#[tokio::test]
async fn a_record_ends_by_itself_and_is_removed() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let short = client.once("short").keep(Duration::from_secs(1));
    short.run(|_| async { Ok::<_, std::io::Error>("") }).await.unwrap();
    assert!(runs(&client, "long", "").await.unwrap());
    until("its second is over", async || short.entry().await.unwrap().is_none()).await;
    assert_eq!(client.once_entries().await.unwrap().len(), 1, "it is not listed");
    assert!(runs(&client, "other", "").await.unwrap());
    let left = database.psql("select name from fencepost.records order by 1").unwrap();
    assert_eq!(left, "once/long\nonce/other\n", "nobody asked for it, and its row is gone");
    assert!(runs(&client, "short", "").await.unwrap(), "it may be done again");
    database.psql("update fencepost.records set ends = now()").unwrap();
    assert_eq!(database.psql("select fencepost.tidy_records(1000)").unwrap(), "3\n");
}

#[tokio::test]
async fn results_may_be_64_kib_of_any_bytes() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let bytes: Vec<u8> = (0..=255).cycle().take(Entry::MAX_RESULT).collect();
    begin(&client, "x").await.done(bytes.clone()).await.unwrap();
    let entry = client.once("x").entry().await.unwrap().unwrap();
    assert_eq!(entry.result, bytes);
    assert!(entry.kept_for <= fencepost::DEFAULT_KEEP);
    assert!(entry.kept_for + LONG > fencepost::DEFAULT_KEEP);
}

#[tokio::test]
async fn failures_are_tried_again_or_recorded_and_forgotten() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let failing = |key, how| {
        let once = client.once(key).ttl(LONG).on_failure(how);
        async move { once.run(|_| async { Err::<&str, _>("broken") }).await }
    };
    fails(failing("x", OnFailure::Retry).await, &ErrorKind::Failed, &["broken"]);
    assert!(runs(&client, "x", "").await.unwrap());
    fails(failing("y", OnFailure::Record).await, &ErrorKind::Failed, &["broken"]);
    fails(runs(&client, "y", "").await, &ErrorKind::Failed, &["broken", "forget"]);
    assert!(client.once("y").forget().await.unwrap());
    assert!(!client.once("y").forget().await.unwrap());
    assert!(runs(&client, "y", "").await.unwrap());
}

/// The connection is cut after the step and before its answer: the step is sent again, and is the same one.
#[tokio::test]
async fn a_step_whose_answer_got_lost_is_no_second_step() {
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
        let entry = client.once(step).entry().await.unwrap().unwrap();
        assert_eq!((entry.state, &*entry.result), (State::Done, step.as_bytes()));
    }
    cut("finish");
    begin(&client, "x").await.give_up().await.unwrap();
    assert_eq!(client.once("x").entry().await.unwrap(), None);
    cut("forget");
    assert!(client.once("claim").forget().await.unwrap());
    cut("list_records");
    assert_eq!(client.once_entries().await.unwrap().len(), 2);
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

    let turn = begin(&client, "t").await;
    let (mut db, connection) = tokio_postgres::connect(&url, tokio_postgres::NoTls).await.unwrap();
    tokio::spawn(connection);
    let mut tx = db.transaction().await.unwrap();
    tx.batch_execute("create table effect as select 1").await.unwrap();
    turn.done_in(&mut tx, "both").await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(turn.committed().await.unwrap().result, b"both");

    let leadership = client.election("e").ttl(LONG).campaign("first").await.unwrap();
    within(SOON, "it is proclaimed", leadership.proclaim("second")).await.unwrap();
    let leader = client.election("e").leader().await.unwrap().unwrap();
    assert_eq!(leader.value.unwrap().text(), "second");
}
