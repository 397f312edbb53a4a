//! The server's settings are read, and `for_correctness` depends on them.

use fencepost::ErrorKind;
use fencepost::guarantees::{Correctness, Fault, Holds};
use fencepost_testkit::{Database, LONG, Postgres, connect, fails, try_connect, until};

fn why_unfit(client: &fencepost::Fencepost) -> String {
    match client.guarantees().correctness {
        Correctness::Fit => String::new(),
        Correctness::Unfit { why, remedy } => format!("{why}; {remedy}"),
    }
}

fn declared(client: &fencepost::Fencepost, fault: Fault) -> (Holds, Holds) {
    let guarantees = client.guarantees();
    let (_, kept) = guarantees.rows().find(|(under, _)| *under == fault).unwrap();
    (kept.exclusion, kept.tokens)
}

#[tokio::test]
async fn default_server_is_fit_and_an_unsynced_one_is_not() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    assert_eq!(why_unfit(&client), "");
    client.lock("x").for_correctness().acquire().await.unwrap().release().await.unwrap();
    assert_eq!(declared(&client, Fault::StoreCrash), (Holds::Yes, Holds::Yes));

    let lazy = "synchronous_commit = off";
    database.psql(&format!("alter database {} set {lazy}", database.name())).unwrap();
    let client = connect(&database.url()).await;
    let refused = client.lock("x").for_correctness().acquire().await;
    fails(refused, ErrorKind::Refused, &["synchronous_commit is off", "synchronous_commit = on"]);
    assert_eq!(declared(&client, Fault::StoreCrash), (Holds::No, Holds::No));
    let lock = client.lock("x").acquire().await.expect("for efficiency it does");
    lock.release().await.unwrap();

    // A crash empties an unlogged table.
    let database = Database::fresh().unwrap();
    connect(&database.url()).await;
    database.psql("alter table fencepost.locks set unlogged").unwrap();
    let client = connect(&database.url()).await;
    let refused = client.lock("x").for_correctness().acquire().await;
    fails(refused, ErrorKind::Refused, &["unlogged", "SET LOGGED"]);
    assert_eq!(declared(&client, Fault::StoreCrash), (Holds::No, Holds::No));

    // A torn page loses data too.
    let torn = Postgres::builder().setting("full_page_writes", "off").start().unwrap();
    let client = connect(&torn.url()).await;
    assert_eq!(declared(&client, Fault::StoreCrash), (Holds::No, Holds::No));

    let unsynced = Postgres::builder().setting("fsync", "off").start().unwrap();
    let client = connect(&unsynced.url()).await;
    let refused = client.lock("x").for_correctness().acquire().await;
    fails(refused, ErrorKind::Refused, &["fsync is off", "fsync = on"]);
}

#[tokio::test]
async fn standby_grants_nothing_and_makes_its_primary_unfit_unless_in_step() {
    let primary = Postgres::builder().start().unwrap();
    let client = connect(&primary.url()).await;
    assert_eq!(declared(&client, Fault::Failover), (Holds::NotApplicable, Holds::NotApplicable));
    let standby = primary.standby("second").unwrap();
    primary.wait_in_step().unwrap();
    let refused = try_connect(&standby.url()).await;
    let words = [
        &standby.address().to_string(),
        "read-only standby",
        &format!("127.0.0.1:{}", primary.port()),
    ];
    fails(refused, ErrorKind::Refused, &words);

    until("the standby is noticed", async || why_unfit(&client).contains("promoted")).await;
    let refused = client.lock("x").for_correctness().acquire().await;
    fails(refused, ErrorKind::Refused, &["standby", "synchronous_standby_names"]);
    assert_eq!(declared(&client, Fault::Failover), (Holds::No, Holds::No));
    // A role that cannot see the standby's progress cannot be told that it is in step.
    primary.psql("create role app login; grant usage on schema fencepost to app").unwrap();
    let blind = connect(&primary.url().replace("postgres@", "app@")).await;
    assert!(why_unfit(&blind).contains("pg_read_all_stats"), "{}", why_unfit(&blind));

    primary.psql("alter system set synchronous_standby_names = 'second'").unwrap();
    primary.psql("select pg_reload_conf()").unwrap();
    until("the standby is synchronous", async || why_unfit(&client).is_empty()).await;
    let guard = client.lock("x").ttl(LONG).for_correctness().acquire().await.unwrap();
    assert_eq!(declared(&client, Fault::Failover), (Holds::Yes, Holds::Yes));

    // The declaration holds: the promoted standby has the lock, and grants higher tokens.
    primary.kill().unwrap();
    standby.promote().unwrap();
    let client = connect(&standby.url()).await;
    assert_eq!(client.inspect("x").await.unwrap().holder.unwrap().token, Some(guard.token()));
    assert!(client.lock("y").acquire().await.unwrap().token() > guard.token());
}
