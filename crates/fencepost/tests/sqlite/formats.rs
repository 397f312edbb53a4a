//! A file from before elections and records: it opens, and a process of that time goes on beside ours.

use fencepost::Value;
use rusqlite::Connection;

use super::records::{LONG, runs};
use super::{connect, edit, place, used};

/// What was added.
const BEFORE: &str = "DROP TABLE fencepost_values; DROP TABLE fencepost_records;";
/// What a process of that time does to be granted a lock.
const DRAW: &str = "UPDATE store SET last_token = last_token + 1 RETURNING last_token";
const GRANT: &str = "INSERT INTO locks VALUES (?, randomblob(16), ?, 60000, 'old', 0, \
                     (SELECT max(deadline) FROM locks), NULL, NULL)";

fn ask<T: rusqlite::types::FromSql>(db: &Connection, sql: &str) -> T {
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn an_earlier_file_goes_on_and_so_does_an_earlier_process() {
    let place = place();
    let token = used(&place.path, true).await;
    edit(&place.path, BEFORE);
    let shape = "SELECT group_concat(sql) FROM sqlite_schema WHERE tbl_name NOT LIKE 'fencepost%'";
    // It has the file open, and knows what was in it.
    let old = Connection::open(&place.path).unwrap();
    let before: String = ask(&old, shape);
    drop(old.prepare_cached(GRANT).unwrap());
    // Several at once: one of them adds what is missing.
    let opening: Vec<_> = (0..6)
        .map(|_| {
            let path = place.path.clone();
            tokio::spawn(async move { connect(&path).await })
        })
        .collect();
    for opened in opening {
        let fp = opened.await.unwrap().unwrap();
        assert!(fp.lock("x").try_acquire().await.unwrap().is_none(), "the lease runs on");
    }
    let fp = connect(&place.path).await.unwrap();
    let holder = fp.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!((holder.token.unwrap().get(), holder.value), (token, None));
    let leadership = fp.election("e").ttl(LONG).campaign("me").await.unwrap();
    assert!(leadership.term().get() > token);
    let leader = fp.election("e").leader().await.unwrap().unwrap();
    assert_eq!(leader.value, Some(Value::found(b"me")));
    assert!(runs(&fp, "k", "").await.unwrap());
    assert!(!runs(&fp, "k", "").await.unwrap());

    let theirs: i64 = ask(&old, DRAW);
    old.prepare_cached(GRANT).unwrap().execute(("theirs", theirs)).unwrap();
    let holder = fp.inspect("theirs").await.unwrap().holder.unwrap();
    assert_eq!((holder.label.as_str(), holder.value), ("old", None));
    assert_eq!(ask::<i64>(&old, "PRAGMA user_version"), 1, "one that opens it now takes it too");
    assert_eq!(ask::<String>(&old, shape), before, "nothing that it knows has changed");
}

/// A process of that time ends a leader's grant and takes the lock: what the leader said goes with the grant.
#[tokio::test]
async fn a_value_goes_with_the_grant_whoever_ends_it() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let _leadership = fp.election("e").ttl(LONG).campaign("me").await.unwrap();
    let keeps = fp.election("other").ttl(LONG).campaign("kept").await.unwrap();
    let old = Connection::open(&place.path).unwrap();
    old.execute("DELETE FROM locks WHERE name = 'e'", []).unwrap();
    let theirs: i64 = ask(&old, DRAW);
    old.execute(GRANT, ("e", theirs)).unwrap();
    let leader = fp.election("e").leader().await.unwrap().unwrap();
    assert_eq!((leader.term.unwrap().get().cast_signed(), leader.value), (theirs, None));
    // Its row is removed by whoever opens the file; that of one who leads is not.
    let _other = connect(&place.path).await.unwrap();
    let rows = "SELECT group_concat(name || token) FROM fencepost_values";
    assert_eq!(ask::<String>(&old, rows), format!("other{}", keeps.term()));
}
