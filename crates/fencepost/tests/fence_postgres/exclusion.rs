//! Which transaction waits for which, and what each read and lock of the functions is for: each scenario runs on the functions as they are,
//! and as a control on a copy with one step taken out, where a stale write passes.

use fencepost::clock::{BootClock, Clock as _};
use fencepost::fences::postgres;
use fencepost::fences::postgres::tokio_postgres::Client;
use fencepost_testkit::{Database, LONG, Postgres};
use tokio::task::JoinHandle;

use crate::common::{ask, attempt, connect, fenced, fencing, name, plant, token};
use crate::enter::until_waiting;

/// A change of one function: its name, the text that goes, and what replaces it.
type Planted<'a> = Option<(&'a str, &'a str, &'a str)>;

/// A database with the mark 1 for "a", a table with the value 0, and two connections.
async fn fixture(planted: Planted<'_>) -> (Database, Client, Client) {
    let (database, client) = fenced().await;
    client.batch_execute("CREATE TABLE t (v int); INSERT INTO t VALUES (0)").await.unwrap();
    client.batch_execute("SELECT fencepost.enter('a', 1)").await.unwrap();
    if let Some((function, from, to)) = planted {
        plant(&client, function, from, to).await;
    }
    let other = connect(&database.url()).await;
    (database, client, other)
}

/// Runs these statements in the background: the SQLSTATE of a refusal, and the connection.
fn start(client: Client, sql: &str) -> JoinHandle<(Result<(), String>, Client)> {
    let sql = sql.to_owned();
    tokio::spawn(async move { (attempt(&client, &sql).await, client) })
}

/// Waits until the task waits for a lock, as one of `waiting`, or has ended.
async fn until_stuck<T>(watcher: &Client, task: &JoinHandle<T>, waiting: usize) {
    let sql = "SELECT count(*) FROM pg_stat_activity
               WHERE datname = current_database() AND wait_event_type = 'Lock'";
    let end = BootClock.now() + LONG;
    while !task.is_finished() && ask(watcher, sql).await != waiting.to_string() {
        assert!(BootClock.now() < end, "it neither waits nor ends");
        tokio::task::yield_now().await;
    }
}

const SHARED: &str =
    "pg_catalog.pg_try_advisory_xact_lock_shared(fencepost.lock_key(enter.name, enter.token))";
const SECOND_LOOK: &str = "    IF locked THEN
      -- Again, with a snapshot that is newer than the lock.
      SELECT m.secret INTO secret FROM fencepost.marks m
       WHERE m.name OPERATOR(pg_catalog.=) enter.name COLLATE pg_catalog.\"C\"
         AND m.token OPERATOR(pg_catalog.=) enter.token;
    END IF;";
const EXCLUSIVE: &str =
    "PERFORM pg_advisory_xact_lock(fencepost.lock_key(set_mark.name, old.token));";
const CHANGERS: &str = "PERFORM pg_advisory_xact_lock(fencepost.lock_key(admit.name, 0));";

/// A holder is open, the next one enters and reads, and the first one writes. What the next one has read.
async fn next_holder_reads(planted: Planted<'_>, enter: &str) -> String {
    let (database, first, second) = fixture(planted).await;
    let watcher = connect(&database.url()).await;
    first.batch_execute(&format!("BEGIN; {enter}")).await.unwrap();
    let next = start(second, "BEGIN; SELECT fencepost.enter('a', 2)");
    until_stuck(&watcher, &next, 1).await;
    let waits = !next.is_finished();
    if waits {
        first.batch_execute("UPDATE t SET v = 1; COMMIT").await.unwrap();
    }
    let (entered, second) = next.await.unwrap();
    entered.unwrap();
    let read = ask(&second, "SELECT v FROM t").await;
    if !waits {
        first.batch_execute("UPDATE t SET v = 1; COMMIT").await.unwrap();
    }
    second.batch_execute("COMMIT").await.unwrap();
    read
}

#[tokio::test]
async fn next_holder_waits_for_an_open_transaction_and_reads_its_write() {
    let equal = "SELECT fencepost.enter('a', 1)";
    assert_eq!(next_holder_reads(None, equal).await, "1");
    // One that is only in a savepoint counts, too.
    let inner = "SAVEPOINT s; SELECT fencepost.enter('a', 1); RELEASE s";
    assert_eq!(next_holder_reads(None, inner).await, "1");
    let again = "SELECT fencepost.enter('a', 1); SAVEPOINT s; SELECT fencepost.enter('a', 1); ROLLBACK TO s";
    assert_eq!(next_holder_reads(None, again).await, "1");
    // A collation in which other texts are equal must not give another lock.
    let folded = "CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
                  SELECT fencepost.enter('a' COLLATE folded, 1)";
    assert_eq!(next_holder_reads(None, folded).await, "1");
}

/// Without a lock on either side, both transactions work at once, and the write of the first is stale.
#[tokio::test]
async fn control_without_a_lock_a_stale_write_passes() {
    let equal = "SELECT fencepost.enter('a', 1)";
    assert_eq!(next_holder_reads(Some(("enter", SHARED, "true")), equal).await, "0");
    assert_eq!(next_holder_reads(Some(("set_mark", EXCLUSIVE, "")), equal).await, "0");
    let folded = "CREATE COLLATION folded (provider = icu, locale = 'und-u-ks-level2', deterministic = false);
                  SELECT fencepost.enter('a' COLLATE folded, 1)";
    let planted = Some(("lock_key", " COLLATE pg_catalog.\"C\"", ""));
    assert_eq!(next_holder_reads(planted, folded).await, "0");
}

/// The mark is raised between the first look of a holder and its lock. How its write ends.
async fn write_after_a_raise_in_between(second_look: &str) -> Result<(), String> {
    let (database, first, second) = fixture(None).await;
    let watcher = connect(&database.url()).await;
    // The look finds the mark, and waits there until the test lets it ask for the lock.
    let stop = "CREATE FUNCTION fencepost.stop() RETURNS boolean LANGUAGE sql
                AS 'SELECT pg_advisory_xact_lock_shared(4711) IS NOT NULL';
                SELECT pg_advisory_lock(4711)";
    watcher.batch_execute(stop).await.unwrap();
    let look = "AND m.token OPERATOR(pg_catalog.=) enter.token;\n    IF locked";
    let stopped = "AND CASE WHEN m.token OPERATOR(pg_catalog.=) enter.token THEN fencepost.stop() END;\n    IF locked";
    plant(&watcher, "enter", look, stopped).await;
    plant(&watcher, "enter", SECOND_LOOK, second_look).await;
    let late =
        start(first, "BEGIN; SELECT fencepost.enter('a', 1); UPDATE t SET v = v + 1; COMMIT");
    until_waiting(&watcher, 1).await;
    second.batch_execute("SELECT fencepost.enter('a', 2)").await.unwrap();
    watcher.batch_execute("SELECT pg_advisory_unlock(4711)").await.unwrap();
    late.await.unwrap().0
}

#[tokio::test]
async fn raise_between_the_look_and_the_lock_is_seen() {
    assert_eq!(write_after_a_raise_in_between(SECOND_LOOK).await, Err("FP001".into()));
    let believes = "IF locked THEN secret := 'any'; END IF;";
    assert_eq!(write_after_a_raise_in_between(believes).await, Ok(()), "control");
}

/// A holder waits at its lock while the mark is raised. How it ends.
async fn enter_that_waited_for_a_raise(planted: Planted<'_>) -> Result<(), String> {
    let (database, first, second) = fixture(planted).await;
    let watcher = connect(&database.url()).await;
    second.batch_execute("BEGIN; SELECT fencepost.enter('a', 2)").await.unwrap();
    let late = start(first, "SELECT fencepost.enter('a', 1)");
    until_waiting(&watcher, 1).await;
    second.batch_execute("COMMIT").await.unwrap();
    late.await.unwrap().0
}

#[tokio::test]
async fn enter_that_waited_for_a_raise_is_stale() {
    assert_eq!(enter_that_waited_for_a_raise(None).await, Err("FP001".into()));
    let look = "WHERE m.name = admit.name AND m.token = admit.token;";
    let planted = Some(("admit", look, "WHERE m.name = admit.name;"));
    assert_eq!(enter_that_waited_for_a_raise(planted).await, Ok(()), "control");
}

/// Both locks and a new mark go with the savepoint.
#[tokio::test]
async fn rolled_back_savepoint_lets_the_next_holder_in() {
    let (_database, first, second) = fixture(None).await;
    let undone = "BEGIN; SAVEPOINT s; SELECT fencepost.enter('a', 1), fencepost.enter('b', 9); ROLLBACK TO s";
    first.batch_execute(undone).await.unwrap();
    let enter = "SET lock_timeout = '1ms'; SELECT fencepost.enter('a', 2), fencepost.enter('b', 1)";
    attempt(&second, enter).await.unwrap();
    assert_eq!(attempt(&first, "SELECT fencepost.enter('a', 1)").await, Err("FP001".into()));
}

/// Two higher tokens wait for an open transaction; the higher one gets in first. How the other one ends.
async fn lower_of_two_that_wait(planted: Planted<'_>) -> Result<(), String> {
    let (database, first, second) = fixture(planted).await;
    let (third, watcher) = (connect(&database.url()).await, connect(&database.url()).await);
    first.batch_execute("BEGIN; SELECT fencepost.enter('a', 1)").await.unwrap();
    let higher = start(second, "SELECT fencepost.enter('a', 3)");
    until_waiting(&watcher, 1).await;
    let lower = start(third, "SELECT fencepost.enter('a', 2)");
    until_waiting(&watcher, 2).await;
    first.batch_execute("COMMIT").await.unwrap();
    higher.await.unwrap().0.unwrap();
    lower.await.unwrap().0
}

#[tokio::test]
async fn two_that_raise_at_once_do_not_lower_the_mark() {
    assert_eq!(lower_of_two_that_wait(None).await, Err("FP001".into()));
    let planted = Some(("admit", CHANGERS, ""));
    assert_eq!(lower_of_two_that_wait(planted).await, Ok(()), "control");
}

/// One holder may work in parallel: none of its transactions waits for another.
#[tokio::test]
async fn parallel_transactions_of_one_holder_do_not_wait() {
    let (database, first, second) = fixture(None).await;
    let (third, watcher) = (connect(&database.url()).await, connect(&database.url()).await);
    let enter = "BEGIN; SET LOCAL lock_timeout = '1ms'; SELECT fencepost.enter('a', 1)";
    for client in [&first, &second] {
        client.batch_execute(enter).await.unwrap();
    }
    first.batch_execute("INSERT INTO t VALUES (1)").await.unwrap();
    second.batch_execute("INSERT INTO t VALUES (2)").await.unwrap();
    // The next holder waits for both.
    let next = start(third, "BEGIN; SELECT fencepost.enter('a', 2)");
    until_waiting(&watcher, 1).await;
    first.batch_execute("COMMIT").await.unwrap();
    until_waiting(&watcher, 1).await;
    assert!(!next.is_finished());
    second.batch_execute("COMMIT").await.unwrap();
    let (entered, third) = next.await.unwrap();
    entered.unwrap();
    assert_eq!(ask(&third, "SELECT sum(v) FROM t").await, "3");
}

/// Transactions of the old holder follow each other without a gap, so that at no moment none is open.
#[tokio::test]
async fn busy_holder_does_not_keep_the_next_one_out() {
    let (database, client, next) = fixture(None).await;
    let mut busy = Vec::new();
    for _ in 0..16 {
        let client = connect(&database.url()).await;
        let turn = "BEGIN; SELECT fencepost.enter('a', 1); INSERT INTO t VALUES (1); COMMIT";
        busy.push(tokio::spawn(async move {
            loop {
                if let Err(code) = attempt(&client, turn).await {
                    return code;
                }
            }
        }));
    }
    let end = BootClock.now() + LONG;
    while ask(&client, "SELECT count(*) < 100 FROM t").await == "t" {
        assert!(BootClock.now() < end, "they are not busy");
    }
    attempt(&next, "BEGIN; SET LOCAL lock_timeout = '20s'; SELECT fencepost.enter('a', 2)")
        .await
        .expect("it gets in while they are busy");
    let seen = ask(&next, "SELECT count(*) FROM t").await;
    next.batch_execute("COMMIT").await.unwrap();
    for task in busy {
        assert_eq!(task.await.unwrap(), "FP001");
    }
    assert_eq!(ask(&client, "SELECT count(*) FROM t").await, seen, "written after it had entered");
}

/// A holder's first transaction is open, a higher token waits, and then a second transaction of that holder comes. How the
/// last two end.
async fn higher_token_between_two_of_one_holder(planted: Planted<'_>) -> [Result<(), String>; 2] {
    let (database, first, second) = fixture(planted).await;
    let (third, watcher) = (connect(&database.url()).await, connect(&database.url()).await);
    first.batch_execute("BEGIN; SELECT fencepost.enter('a', 2)").await.unwrap();
    let higher = start(second, "SELECT fencepost.enter('a', 3)");
    until_waiting(&watcher, 1).await;
    let same = start(third, "SELECT fencepost.enter('a', 2)");
    until_waiting(&watcher, 2).await;
    first.batch_execute("COMMIT").await.unwrap();
    [higher.await.unwrap().0, same.await.unwrap().0]
}

#[tokio::test]
async fn transactions_that_enter_one_name_do_not_deadlock() {
    let ended = higher_token_between_two_of_one_holder(None).await;
    assert_eq!(ended, [Ok(()), Err("FP001".into())]);
    let look = "WHERE m.name OPERATOR(pg_catalog.=) enter.name COLLATE pg_catalog.\"C\"
       AND m.token OPERATOR(pg_catalog.=) enter.token;
    IF locked";
    let planted = Some(("enter", look, "LIMIT 1;\n    IF locked"));
    let ended = higher_token_between_two_of_one_holder(planted).await;
    assert!(ended.contains(&Err("40P01".into())), "control: {ended:?}");
}

/// The next holder's own transactions start together, and another holder takes over at the same moment.
#[tokio::test]
async fn holders_that_start_together_do_not_deadlock() {
    let (database, client, _) = fixture(None).await;
    for round in 1..=20 {
        let mut tasks = Vec::new();
        for task in 0..8 {
            let client = connect(&database.url()).await;
            let number = round * 2 + i64::from(task == 5);
            let turn = format!(
                "BEGIN; SELECT fencepost.enter('a', {number}); INSERT INTO t VALUES (1); COMMIT"
            );
            tasks.push((number, tokio::spawn(async move { attempt(&client, &turn).await })));
        }
        for (number, task) in tasks {
            if let Err(code) = task.await.unwrap() {
                assert_eq!((code.as_str(), number % 2), ("FP001", 0), "round {round}");
            }
        }
    }
    assert_eq!(ask(&client, "SELECT token FROM fencepost.marks").await, "41");
}

#[tokio::test]
async fn reset_waits_for_those_who_have_entered_and_ends_their_token() {
    let (database, first, second) = fixture(None).await;
    let watcher = connect(&database.url()).await;
    first.batch_execute("BEGIN; SELECT fencepost.enter('a', 1)").await.unwrap();
    second.batch_execute("BEGIN; SELECT fencepost.enter('a', 1)").await.unwrap();
    let operator = connect(&database.url()).await;
    let reset = tokio::spawn(async move {
        postgres::reset(&operator, &name("a"), Some(token(7)), "ann", "store restored").await
    });
    until_waiting(&watcher, 1).await;
    // Another name is not kept waiting.
    attempt(&watcher, "SET lock_timeout = '1ms'; SELECT fencepost.enter('b', 1)").await.unwrap();
    first.batch_execute("UPDATE t SET v = 1; COMMIT").await.unwrap();
    until_waiting(&watcher, 1).await;
    second.batch_execute("COMMIT").await.unwrap();
    assert_eq!(reset.await.unwrap().unwrap().unwrap().token, token(1));
    assert_eq!(attempt(&first, "SELECT fencepost.enter('a', 1)").await, Err("FP001".into()));
    attempt(&first, "SELECT fencepost.enter('a', 7)").await.unwrap();
}

/// A prepared transaction belongs to no session, and survives a crash. So do its locks.
#[tokio::test]
async fn prepared_transaction_keeps_the_next_holder_out() {
    let server = Postgres::builder().setting("max_prepared_transactions", "4").start().unwrap();
    let server = std::sync::Arc::new(server);
    let database = server.database().unwrap();
    let client = connect(&database.url()).await;
    postgres::install(&client).await.unwrap();
    client
        .batch_execute(
            "CREATE TABLE t (lock text, v int); SELECT fencepost.protect('t', 'lock', NULL);
             SELECT fencepost.enter('equal', 1)",
        )
        .await
        .unwrap();
    client
        .batch_execute(
            "BEGIN; SELECT fencepost.enter('equal', 1), fencepost.enter('raised', 1);
             INSERT INTO t VALUES ('equal', 1), ('raised', 2); PREPARE TRANSACTION 'p'",
        )
        .await
        .unwrap();
    drop(client);
    server.restart().unwrap();
    let client = connect(&database.url()).await;
    for name in ["equal", "raised"] {
        let enter = format!("SET lock_timeout = '100ms'; SELECT fencepost.enter('{name}', 2)");
        assert_eq!(attempt(&client, &enter).await, Err("55P03".into()), "{name}");
    }
    client.batch_execute("COMMIT PREPARED 'p'").await.unwrap();
    client.batch_execute("BEGIN; SELECT fencepost.enter('equal', 2)").await.unwrap();
    assert_eq!(ask(&client, "SELECT sum(v) FROM t").await, "3");
}

/// Other software may take the same advisory lock: that costs waiting, and cannot end a lock of ours.
#[tokio::test]
async fn advisory_locks_of_others_do_not_let_a_stale_token_in() {
    let (database, first, second) = fixture(None).await;
    let watcher = connect(&database.url()).await;
    let key = "fencepost.lock_key('a', 1)";
    first
        .batch_execute(&format!(
            "SELECT pg_advisory_lock_shared({key}); BEGIN; SELECT fencepost.enter('a', 1);
             SELECT pg_advisory_unlock_shared({key}), pg_advisory_unlock_shared({key}), pg_advisory_unlock({key});
             SELECT pg_advisory_unlock_all()"
        ))
        .await
        .unwrap();
    let next = start(second, "SELECT fencepost.enter('a', 2)");
    until_waiting(&watcher, 1).await;
    first.batch_execute("COMMIT").await.unwrap();
    let (entered, second) = next.await.unwrap();
    entered.unwrap();
    // Somebody keeps the lock of the mark: nobody enters, and the reason is a lock.
    let key = "fencepost.lock_key('a', 2)";
    first.batch_execute(&format!("SELECT pg_advisory_lock({key})")).await.unwrap();
    for number in [2, 3] {
        let enter = format!("SET lock_timeout = '100ms'; SELECT fencepost.enter('a', {number})");
        assert_eq!(attempt(&second, &enter).await, Err("55P03".into()), "{number}");
    }
    first.batch_execute("SELECT pg_advisory_unlock_all()").await.unwrap();
    attempt(&second, "SELECT fencepost.enter('a', 3)").await.unwrap();
}

/// A transaction has a lock for each name that it has entered.
#[tokio::test]
async fn ten_thousand_names_fit_or_the_lock_table_is_named() {
    let (_database, mut client) = fenced().await;
    let many = "SELECT count(fencepost.enter('n' || n, 1)) FROM generate_series(1, 10000) AS n";
    client.batch_execute(many).await.unwrap();
    client.batch_execute(many).await.unwrap();
    assert_eq!(ask(&client, "SELECT count(*) FROM fencepost.marks").await, "10000");
    postgres::begin(&mut client, &fencing("n1", 2)).await.unwrap().commit().await.unwrap();

    let small = Postgres::builder()
        .setting("max_connections", "10")
        .setting("max_locks_per_transaction", "10")
        .start()
        .unwrap();
    let mut client = connect(&small.url()).await;
    postgres::install(&client).await.unwrap();
    let error = postgres::explain(&client.batch_execute(many).await.unwrap_err());
    assert!(error.one_line().contains("raise max_locks_per_transaction"), "{error}");
    // It goes on, and nobody has entered.
    postgres::begin(&mut client, &fencing("n1", 1)).await.unwrap().commit().await.unwrap();
    assert_eq!(ask(&client, "SELECT count(*) FROM fencepost.marks").await, "1");
}
