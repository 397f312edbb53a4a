//! A break notifies the holder, which confirms it. The notifications contain tokens and no secrets.

use std::future::poll_fn;
use std::sync::{Arc, Mutex};

use fencepost::LossCause;
use fencepost_testkit::{Database, LONG, SOON, connect, ms, two, until, within};
use tokio_postgres::{AsyncMessage, NoTls};

use crate::common::{ask, session};

/// How many clients listen.
const LISTENING: &str = "select count(*) from pg_stat_activity \
                         where datname = current_database() and query like 'LISTEN %' and state = 'idle'";

#[tokio::test]
async fn holder_listens_soon_and_again_after_its_session_ended() {
    let database = Database::fresh().unwrap();
    let (ours, theirs) = two(&database.url()).await;
    let admin = session(&database.url()).await;
    for round in 0..2 {
        let guard = ours.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
        until("the holder listens", async || ask::<i64>(&admin, LISTENING).await >= 1).await;
        let mut confirmed = false;
        let mut guard = Some(guard);
        // It is listed as a listener slightly before it is ready; a slow machine gets more rounds.
        for _ in 0..10 {
            let held = match guard.take() {
                Some(held) => held,
                None => ours.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap(),
            };
            let broken = theirs.break_lock("x").await.unwrap().unwrap();
            if broken.confirmed {
                let cause = within(SOON, "the holder learns of it", held.lost()).await;
                assert_eq!(cause, LossCause::Broken);
                confirmed = true;
                break;
            }
        }
        assert!(confirmed, "round {round}");
        let end = "select count(pg_terminate_backend(pid)) from pg_stat_activity \
                   where datname = current_database() and query like 'LISTEN %'";
        assert!(ask::<i64>(&admin, end).await >= 1);
    }
}

/// A brief grant costs no connection.
#[tokio::test]
async fn brief_grants_do_not_subscribe() {
    let database = Database::fresh().unwrap();
    let admin = session(&database.url()).await;
    for _ in 0..10 {
        let client = connect(&database.url()).await;
        client.lock("x").acquire().await.unwrap().release().await.unwrap();
        // Longer than a holder waits before it listens. On a busy machine a grant may not be brief, so another one is
        // made.
        fencepost_testkit::pass(ms(300)).await;
        if ask::<i64>(&admin, LISTENING).await == 0 {
            return;
        }
    }
    panic!("every client listens");
}

#[tokio::test]
async fn notifications_contain_tokens_and_no_owners() {
    let database = Database::fresh().unwrap();
    let (ours, theirs) = two(&database.url()).await;
    let (listener, mut connection) = tokio_postgres::connect(&database.url(), NoTls).await.unwrap();
    let received = Arc::new(Mutex::new(Vec::new()));
    let log = Arc::clone(&received);
    tokio::spawn(async move {
        while let Some(Ok(message)) = poll_fn(|context| connection.poll_message(context)).await {
            if let AsyncMessage::Notification(notification) = message {
                log.lock()
                    .unwrap()
                    .push((notification.channel().to_owned(), notification.payload().to_owned()));
            }
        }
    });
    listener.batch_execute("LISTEN fencepost_broken; LISTEN fencepost_confirmed").await.unwrap();
    let guard = ours.lock("secret name").ttl(LONG).acquire().await.unwrap();
    let token = guard.token().to_string();
    theirs.break_lock("secret name").await.unwrap().unwrap();
    // Notified or not, the holder confirms when it learns of the break.
    ours.renew("secret name", guard.owner(), None).await.unwrap_err();
    ours.release("secret name", guard.owner()).await.unwrap_err();
    let wanted = ["fencepost_broken", "fencepost_confirmed"]
        .map(|channel| (channel.to_owned(), token.clone()));
    until("both were notified", async || *received.lock().unwrap() == wanted).await;
}

/// Anybody may send a notification: that costs a renewal, and no lock.
#[tokio::test]
async fn forged_notification_ends_nothing() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let admin = session(&database.url()).await;
    let guard = client.lock("x").ttl(LONG).acquire().await.unwrap();
    let forge = format!("select pg_notify('fencepost_broken', '{}')", guard.token());
    let before = guard.deadline();
    until("it is renewed long before it is due", async || {
        for words in ["nonsense", "-1", "0", "99999999999999999999", ""] {
            let sql = format!("select pg_notify('fencepost_broken', '{words}')");
            admin.batch_execute(&sql).await.unwrap();
        }
        admin.batch_execute(&forge).await.unwrap();
        guard.check().unwrap();
        guard.deadline() > before
    })
    .await;
    guard.release().await.unwrap();
}
