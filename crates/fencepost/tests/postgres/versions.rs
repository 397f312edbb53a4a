//! A schema of the version before: it is brought up to date by whoever may, and nothing that was in it is lost.

use fencepost::{ErrorKind, Value};
use fencepost_testbed::Database;

use crate::common::{LONG, ask, connect, fails, session, try_connect};
use crate::records::runs;

const LOCKS_1: &str = include_str!("../../src/backends/postgres/locks_1.sql");
/// What version 1 told to grant.
const GRANTS_1: &str = "fencepost.acquire, fencepost.renew, fencepost.release, fencepost.break_lock, \
                        fencepost.inspect, fencepost.list, fencepost.tidy";

#[tokio::test]
async fn version_1_is_brought_up_to_date_under_its_clients() {
    let database = Database::fresh().unwrap();
    let app = format!("app_{}", database.name());
    let session = session(&database.url()).await;
    let make = format!(
        "create schema fencepost;
         create table fencepost.components (component text primary key, version int not null);
         grant select on fencepost.components to public;
         {LOCKS_1};
         insert into fencepost.components values ('locks', 1);
         create role {app} login;
         grant usage on schema fencepost to {app};
         grant execute on function {GRANTS_1} to {app}"
    );
    session.batch_execute(&make).await.unwrap();
    // A client of that version has a lock, on a session that goes on.
    let acquire = |name: &str| {
        format!(
            "select r_token from fencepost.acquire('{name}', gen_random_uuid(), 600000, 'old', null)"
        )
    };
    let token: i64 = ask(&session, &acquire("held")).await;

    let words = ["version 1", "version 2", "fencepost backend install", "postgres"];
    fails(try_connect(&database.url_as(&app)).await, &ErrorKind::Refused, &words);
    let client = connect(&database.url()).await;
    let holder = client.inspect("held").await.unwrap().holder.unwrap();
    assert_eq!((holder.token.unwrap().get().cast_signed(), holder.value), (token, None));
    let next: i64 = ask(&session, &acquire("other")).await;
    assert!(next > token, "a client of the version before goes on");

    // What the role could do it still can, and lead; records it has to be given.
    let app = connect(&database.url_as(&app)).await;
    let leadership = app.election("e").ttl(LONG).campaign("me").await.unwrap();
    leadership.proclaim("still me").await.unwrap();
    let leader = app.election("e").leader().await.unwrap().unwrap();
    assert_eq!(leader.value, Some(Value::found(b"still me")));
    assert!(leadership.term().get().cast_signed() > next);
    fails(runs(&app, "k", "").await, &ErrorKind::Refused, &["GRANT EXECUTE", "fencepost.claim"]);
    assert!(runs(&client, "k", "").await.unwrap());
}
