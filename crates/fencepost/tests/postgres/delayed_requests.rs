//! A request that is applied after the one that should undo it, because they used different connections.

use fencepost_testkit::{Database, connect};
use tokio_postgres::Client;

use crate::common::{ask, session};

const OWNER: &str = "00000000-0000-0000-0000-00000000000a";

async fn acquire(session: &Client, channel: &str) -> i32 {
    let sql =
        format!("select status from fencepost.acquire('x', '{OWNER}', 60000, 'late', {channel})");
    ask(session, &sql).await
}

async fn release(session: &Client, late: bool) -> i32 {
    ask(session, &format!("select status from fencepost.release('x', '{OWNER}', 60000, {late})"))
        .await
}

async fn fixture() -> (Database, Client) {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await;
    let session = session(&database.url()).await;
    (database, session)
}

#[tokio::test]
async fn acquire_that_arrives_after_its_release_is_refused() {
    let (_database, session) = fixture().await;
    assert_eq!(release(&session, false).await, 0, "there was nothing yet");
    assert_eq!(acquire(&session, "null").await, 3);
    assert_eq!(
        acquire(&session, "'fencepost_00000000000000000000000000000000'").await,
        3,
        "nor is it queued"
    );
    // Control: without the note the lock is granted to nobody.
    session.batch_execute("delete from fencepost.withdrawn").await.unwrap();
    assert_eq!(acquire(&session, "null").await, 1);
}

/// The first copy was applied and released; the second is still in flight.
#[tokio::test]
async fn second_copy_of_an_acquire_is_refused() {
    let (_database, session) = fixture().await;
    assert_eq!(acquire(&session, "null").await, 1);
    assert_eq!(release(&session, true).await, 1);
    assert_eq!(acquire(&session, "null").await, 3);
    // Control: a release that expects no late copy leaves no note.
    session.batch_execute("delete from fencepost.withdrawn").await.unwrap();
    assert_eq!(acquire(&session, "null").await, 1);
    assert_eq!(release(&session, false).await, 1);
    assert_eq!(acquire(&session, "null").await, 1);
}

/// An acquire is cancelled while its statement waits at the server. It is applied later, and undone.
#[tokio::test]
async fn cancelled_acquire_that_waits_at_the_server_is_undone() {
    let (database, blocker) = fixture().await;
    let client = connect(&database.url()).await;
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    blocker
        .batch_execute("begin; select from fencepost.locks where name = 'x' for update")
        .await
        .unwrap();
    let lock = client.lock("x").ttl(fencepost_testkit::LONG);
    let acquiring = tokio::spawn(async move { lock.acquire().await });
    crate::common::until_blocked(&database, 1).await;
    acquiring.abort();
    blocker.batch_execute("commit").await.unwrap();
    fencepost_testkit::nothing_is_left(&client, "x").await;
}

/// The connection was cut while the acquire waited at the server, and then the server was unreachable. The second
/// failure must not hide that the acquire may have been sent.
#[tokio::test]
async fn acquire_that_was_cut_before_an_outage_counts_as_sent() {
    use fencepost_testkit::{Mode, Proxy};

    let (database, blocker) = fixture().await;
    let proxy = Proxy::to(database.server().address()).unwrap();
    let url = format!("postgres://postgres@{}/{}", proxy.address(), database.name());
    let client = connect(&url).await;
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    blocker
        .batch_execute("begin; select from fencepost.locks where name = 'x' for update")
        .await
        .unwrap();
    let lock = client.lock("x").ttl(fencepost_testkit::LONG);
    let acquiring = tokio::spawn(async move { lock.try_acquire().await });
    crate::common::until_blocked(&database, 1).await;
    proxy.set_mode(Mode::Refuse);
    fencepost_testkit::fails(acquiring.await.unwrap(), fencepost::ErrorKind::Unreachable, &[]);
    // It is applied now, without a reply. Then the network recovers, and it is undone.
    blocker.batch_execute("commit").await.unwrap();
    let held = "select count(*) from fencepost.locks where name = 'x' and owner is not null";
    fencepost_testkit::until("it is carried out", async || ask::<i64>(&blocker, held).await == 1)
        .await;
    proxy.set_mode(Mode::Pass);
    let noted = "select count(*) from fencepost.withdrawn where name = 'x'";
    fencepost_testkit::until("a note is left", async || ask::<i64>(&blocker, noted).await == 1)
        .await;
    fencepost_testkit::nothing_is_left(&client, "x").await;
}

/// The reply is that another client holds the lock. But an earlier copy of the acquire may still arrive, and the
/// release that would refuse it fails: the caller learns that, and the release is retried.
#[tokio::test]
async fn held_is_not_reported_while_an_earlier_acquire_cannot_be_withdrawn() {
    let (database, blocker) = fixture().await;
    let client = connect(&database.url()).await;
    client.lock("x").acquire().await.unwrap().release().await.unwrap();
    blocker
        .batch_execute("begin; select from fencepost.locks where name = 'x' for update")
        .await
        .unwrap();
    let lock = client.lock("x").ttl(fencepost_testkit::LONG);
    let acquiring = tokio::spawn(async move { lock.try_acquire().await });
    database.psql("alter function fencepost.release rename to release_away").unwrap();
    let admin = session(&database.url()).await;
    let cut = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
               where datname = current_database() and wait_event_type = 'Lock'";
    fencepost_testkit::until("the acquire is cut", async || ask::<i64>(&admin, cut).await == 1)
        .await;
    let take = format!(
        "update fencepost.locks set owner = '{OWNER}', token = nextval('fencepost.tokens'), label = 'thief',
           ttl_ms = 60000, granted = clock_timestamp(), expires = clock_timestamp() + interval '1 min'
          where name = 'x';
         commit"
    );
    blocker.batch_execute(&take).await.unwrap();
    let words = ["\"x\"", "withdraw"];
    fencepost_testkit::fails(acquiring.await.unwrap(), fencepost::ErrorKind::Unreachable, &words);
    database.psql("alter function fencepost.release_away rename to release").unwrap();
    let noted =
        format!("select count(*) from fencepost.withdrawn where name = 'x' and owner <> '{OWNER}'");
    fencepost_testkit::until("a note is left", async || ask::<i64>(&blocker, &noted).await == 1)
        .await;
}
