//! Tokens rise in the order of grants. (pglock draws its token before it has the row, and its tokens fall.)

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost_testkit::{Database, LONG, connect, within};

use crate::common::{ask, session, until_blocked};

/// 32 clients, each with its own session, acquire one lock by waiting and by trying.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tokens_rise_in_the_order_of_grants_with_32_sessions() {
    let database = Database::fresh().unwrap();
    let url = format!("{}?pool=1", database.url());
    let last = Arc::new(AtomicU64::new(0));
    let tasks: Vec<_> = (0..32)
        .map(|number| {
            let (url, last) = (url.clone(), Arc::clone(&last));
            tokio::spawn(async move {
                let client = connect(&url).await;
                let mut granted = 0;
                while granted < 10 {
                    let guard = if number % 2 == 0 {
                        client.lock("x").ttl(LONG).acquire().await.unwrap()
                    } else {
                        let Some(guard) = client.lock("x").ttl(LONG).try_acquire().await.unwrap()
                        else {
                            fencepost_testkit::pass(fencepost_testkit::ms(3)).await;
                            if last.load(Ordering::SeqCst) >= 300 {
                                return granted;
                            }
                            continue;
                        };
                        guard
                    };
                    let token = guard.token().get();
                    let before = last.swap(token, Ordering::SeqCst);
                    assert!(before < token, "token {token} was granted after {before}");
                    granted += 1;
                    guard.release().await.unwrap();
                }
                granted
            })
        })
        .collect();
    let mut granted = 0;
    for task in tasks {
        granted += within(LONG, "all tasks end", task).await.unwrap();
    }
    assert!(granted >= 160, "{granted}");
}

/// A client that waits for the row has already drawn a token. Meanwhile another is granted and releases. The first
/// must then get a higher token.
async fn overtaken(
    acquire: impl Fn(&str) -> String,
    release: impl Fn(&str) -> String,
) -> (i64, i64) {
    let database = Database::fresh().unwrap();
    connect(&database.url()).await;
    let (first, second) = (session(&database.url()).await, session(&database.url()).await);
    second
        .batch_execute(
            "create table naive (name text primary key, owner uuid, token bigint); \
             create sequence naive_tokens; insert into naive values ('x'); \
             insert into fencepost.locks (name) values ('x')",
        )
        .await
        .unwrap();
    second
        .batch_execute(
            "begin; select from fencepost.locks where name = 'x' for update; \
             select from naive where name = 'x' for update",
        )
        .await
        .unwrap();
    let [a, b] = ["a", "b"].map(|digit| format!("00000000-0000-0000-0000-00000000000{digit}"));
    let late = acquire(&a);
    let late = tokio::spawn(async move { ask::<i64>(&first, &late).await });
    until_blocked(&database, 1).await;
    let between = ask::<i64>(&second, &acquire(&b)).await;
    second.batch_execute(&release(&b)).await.unwrap();
    second.batch_execute("commit").await.unwrap();
    (between, late.await.unwrap())
}

#[tokio::test]
async fn acquire_that_waited_for_the_row_draws_its_token_again() {
    let (between, late) = overtaken(
        |owner| format!("select r_token from fencepost.acquire('x', '{owner}', 60000, 'x', null)"),
        |owner| format!("select fencepost.release('x', '{owner}', 60000, false)"),
    )
    .await;
    assert!(late > between, "token {late} was granted after {between}");
}

/// Control: a token drawn in the VALUES of an INSERT is lower than that of an earlier grant.
#[tokio::test]
async fn control_token_drawn_before_the_row_lock_falls() {
    let (between, late) = overtaken(
        |owner| {
            format!(
                "insert into naive values ('x', '{owner}', nextval('naive_tokens')) on conflict (name) \
                 do update set owner = excluded.owner, token = excluded.token where naive.owner is null \
                 returning token"
            )
        },
        |owner| format!("update naive set owner = null where owner = '{owner}'"),
    )
    .await;
    assert!(
        late < between,
        "if this does not fall, the test above proves nothing: {late} after {between}"
    );
}
