//! Real PostgreSQL servers: crash, freeze, standby and restart.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use fencepost_testkit::{Database, PgBouncer, Postgres, wait};

#[test]
fn server_keeps_its_data_through_crashes() {
    let postgres = Postgres::builder().start().unwrap();
    assert_eq!(
        postgres.url(),
        format!("postgres://postgres@127.0.0.1:{}/postgres", postgres.port())
    );
    assert_eq!(postgres.psql("show fsync").unwrap(), "on\n");
    postgres.psql("create table t (v text); insert into t values ('kept')").unwrap();
    let pid = postgres.pid();
    assert!(postgres.start_again().unwrap_err().to_string().contains("still runs"));
    postgres.kill().unwrap();
    let error = postgres.psql("select v from t").unwrap_err();
    assert!(error.to_string().contains("refused"), "{error}");
    postgres.start_again().unwrap();
    assert_eq!(postgres.psql("select v from t").unwrap(), "kept\n");
    assert_ne!(postgres.pid(), pid);
    postgres.shut_down().unwrap();
    postgres.start_again().unwrap();
    assert_eq!(postgres.psql("select v from t").unwrap(), "kept\n");
    let address = postgres.address();
    postgres.stop().unwrap();
    drop(postgres);
    TcpListener::bind(address).expect("a frozen server is gone when it is dropped");
}

#[test]
fn frozen_server_serves_no_existing_connection() {
    let postgres = Arc::new(Postgres::builder().setting("fsync", "off").start().unwrap());
    let (sender, rows) = channel();
    let asking = postgres.clone();
    let busy = std::thread::spawn(move || {
        sender.send(asking.psql("select pg_sleep(3); select 'done'")).unwrap();
    });
    wait::until(Duration::from_secs(20), "it has begun", || {
        let begun = "select count(*) from pg_stat_activity where wait_event = 'PgSleep'";
        Ok(postgres.psql(begun)? == "1\n")
    })
    .unwrap();
    postgres.stop().unwrap();
    postgres.stop().unwrap();
    // Longer than a running server would take.
    rows.recv_timeout(Duration::from_secs(4)).expect_err("it is frozen");
    postgres.resume().unwrap();
    assert_eq!(rows.recv().unwrap().unwrap(), "\ndone\n");
    busy.join().unwrap();
    postgres.stop().unwrap();
    postgres.restart().unwrap();
    assert_eq!(postgres.psql("show fsync").unwrap(), "off\n");
}

#[test]
fn standby_follows_serves_reads_and_can_be_promoted() {
    let primary = Postgres::builder().start().unwrap();
    primary.psql("create table t (v int)").unwrap();
    let standby = primary.standby("second").unwrap();
    primary.psql("insert into t values (1)").unwrap();
    primary.wait_in_step().unwrap();
    assert_eq!(standby.psql("select v from t").unwrap(), "1\n");
    let error = standby.psql("insert into t values (2)").unwrap_err();
    assert!(error.to_string().contains("read-only"), "{error}");
    let seen = primary.psql("select application_name, sync_state from pg_stat_replication");
    assert_eq!(seen.unwrap(), "second|async\n");
    primary.kill().unwrap();
    standby.promote().unwrap();
    standby.psql("insert into t values (2)").unwrap();
}

#[test]
fn databases_are_separate() {
    let (one, other) = (Database::fresh().unwrap(), Database::fresh().unwrap());
    assert_ne!(one.url(), other.url());
    one.psql("create table t ()").unwrap();
    other.psql("create table t ()").unwrap();
    assert_eq!(one.psql("select current_database()").unwrap().trim(), one.name());
    one.server().psql("create role reader_of_testkit login").unwrap();
    assert_eq!(one.psql_as("reader_of_testkit", "select 1").unwrap(), "1\n");
    let error = one.psql_as("reader_of_testkit", "select * from t").unwrap_err();
    assert!(error.to_string().contains("permission denied"), "{error}");
}

#[test]
fn bouncer_reuses_a_connection_for_the_next_transaction() {
    let database = Database::fresh().unwrap();
    let bouncer = PgBouncer::start(database.server(), &[], 1).unwrap();
    let url = bouncer.url_of(database.name());
    let server = database.server();
    // Two clients, one after the other, are served by one connection of the server.
    let pid = server.psql_at(&url, "select pg_backend_pid()").unwrap();
    assert_eq!(server.psql_at(&url, "select pg_backend_pid()").unwrap(), pid);
}

#[test]
fn tls_is_offered_when_asked_for() {
    let postgres = Postgres::builder().tls().start().unwrap();
    let ca = postgres.ca_path().unwrap();
    assert!(ca.exists());
    let url = format!("{}?sslmode=require", postgres.url());
    let ask = "select ssl from pg_stat_ssl where pid = pg_backend_pid()";
    assert_eq!(postgres.psql_at(&url, ask).unwrap(), "t\n");
    Database::fresh().unwrap().server().ca_path().unwrap_err();
}

#[test]
fn server_that_does_not_start_says_why() {
    let error = Postgres::builder().setting("fsync", "perhaps").start().unwrap_err();
    assert!(error.to_string().contains("fsync"), "{error}");
    let postgres = Postgres::builder().start().unwrap();
    postgres.kill().unwrap();
    let _thief = TcpListener::bind(postgres.address()).unwrap();
    let error = postgres.start_again().unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::AddrInUse, "{error}");
}
