//! The file matches `docs/layouts/sqlite.md`, and an older layout is refused.

use std::fmt::Write as _;
use std::time::Duration;

use fencepost::ErrorKind;
use rusqlite::Connection;

use super::records::{LONG, runs};
use super::{connect, edit, refuses, store_file};

/// Layout 1, as an earlier fencepost wrote it, with a grant, a record and the last token 41.
const LAYOUT_1: &str = "
    CREATE TABLE store (
        id INTEGER PRIMARY KEY CHECK (id = 1),
        machine TEXT NOT NULL,
        boot TEXT NOT NULL,
        time_namespace TEXT NOT NULL,
        epoch INTEGER NOT NULL,
        last_token INTEGER NOT NULL
    ) STRICT;
    CREATE TABLE locks (
        name TEXT PRIMARY KEY,
        owner BLOB NOT NULL,
        token INTEGER NOT NULL,
        ttl_ms INTEGER NOT NULL,
        label TEXT NOT NULL,
        granted INTEGER NOT NULL,
        deadline INTEGER NOT NULL,
        pid INTEGER,
        presence TEXT
    ) STRICT, WITHOUT ROWID;
    CREATE TABLE waiters (
        ticket INTEGER PRIMARY KEY AUTOINCREMENT,
        name TEXT NOT NULL,
        owner BLOB NOT NULL UNIQUE,
        label TEXT NOT NULL,
        since INTEGER NOT NULL,
        deadline INTEGER NOT NULL,
        offered INTEGER,
        socket TEXT NOT NULL,
        bell INTEGER NOT NULL,
        presence TEXT NOT NULL
    ) STRICT;
    CREATE INDEX waiters_by_name ON waiters (name, ticket);
    CREATE TABLE broken (owner BLOB PRIMARY KEY, until INTEGER NOT NULL) STRICT, WITHOUT ROWID;
    CREATE TABLE fencepost_values (
        name TEXT PRIMARY KEY,
        token INTEGER NOT NULL,
        value BLOB NOT NULL
    ) STRICT;
    CREATE TABLE fencepost_records (
        name TEXT PRIMARY KEY,
        state INTEGER NOT NULL CHECK (state IN (0, 1, 2)),
        token INTEGER NOT NULL,
        label TEXT NOT NULL,
        since INTEGER NOT NULL,
        ends INTEGER NOT NULL,
        result BLOB NOT NULL
    ) STRICT;
    CREATE INDEX fencepost_records_by_end ON fencepost_records (ends);
    INSERT INTO store VALUES (1, 'machine', 'boot', 'time:[1]', 0, 41);
    INSERT INTO locks VALUES ('x', zeroblob(16), 41, 60000, 'old', 0, 9000000000000000000, NULL, NULL);
    INSERT INTO fencepost_records VALUES ('once/k', 1, 40, 'old', 0, 9000000000000, x'');
    PRAGMA application_id = 0x46505354;
    PRAGMA user_version = 1;
";

fn ask<T: rusqlite::types::FromSql>(db: &Connection, sql: &str) -> T {
    db.query_row(sql, [], |row| row.get(0)).unwrap()
}

/// If it counted as empty, its tokens would restart, and resources would refuse the new holders.
#[tokio::test]
async fn older_layout_is_refused_and_unchanged() {
    let store_file = store_file();
    std::fs::create_dir_all(store_file.path.parent().unwrap()).unwrap();
    edit(&store_file.path, LAYOUT_1);
    let before = std::fs::read(&store_file.path).unwrap();
    for _ in 0..2 {
        let said = ["layout 1", "layout 2", "another file", "max(last_token, 41)", "run again"];
        refuses(connect(&store_file.path).await, ErrorKind::Refused, &said);
    }
    assert!(std::fs::read(&store_file.path).unwrap() == before, "nothing was written to it");
}

/// The remedy of the message: tokens of the new file are above those of the old one.
#[tokio::test]
async fn tokens_of_a_new_file_start_above_the_given_one() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    // Repeated, or late, it does not lower them.
    for token in [42, 43] {
        edit(&store_file.path, "UPDATE fencepost_store SET last_token = max(last_token, 41)");
        let guard = fp.lock("x").acquire().await.unwrap();
        assert_eq!(guard.token().get(), token);
        guard.release().await.unwrap();
    }
}

/// An operator deletes a leader's grant: the published value ends with the grant.
#[tokio::test]
async fn value_ends_with_a_grant_that_an_operator_deletes() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let _leadership = fp.election("e").ttl(LONG).campaign("me").await.unwrap();
    let keeps = fp.election("other").ttl(LONG).campaign("kept").await.unwrap();
    let db = Connection::open(&store_file.path).unwrap();
    db.execute("DELETE FROM fencepost_locks WHERE name = 'e'", []).unwrap();
    let draw = "UPDATE fencepost_store SET last_token = last_token + 1 RETURNING last_token";
    let token: i64 = ask(&db, draw);
    let grant = "INSERT INTO fencepost_locks VALUES (?, randomblob(16), ?, 60000, 'by hand', 0, \
                 (SELECT max(expires) FROM fencepost_locks), NULL, NULL)";
    db.execute(grant, ("e", token)).unwrap();
    let leader = fp.election("e").leader().await.unwrap().unwrap();
    assert_eq!((leader.term.unwrap().get().cast_signed(), leader.value), (token, None));
    // Opening the file removes its row, but not the row of a current leader.
    let _other = connect(&store_file.path).await.unwrap();
    let rows = "SELECT group_concat(name || token) FROM fencepost_candidate_values";
    assert_eq!(ask::<String>(&db, rows), format!("other{}", keeps.term()));
}

/// The page, the code and a real file agree.
#[tokio::test]
async fn file_matches_the_page() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let db = Connection::open(&store_file.path).unwrap();
    let mut schema = String::new();
    let mut tables = db
        .prepare("SELECT sql FROM sqlite_schema WHERE name LIKE 'fencepost%' ORDER BY rowid")
        .unwrap();
    for sql in tables.query_map([], |row| row.get::<_, String>(0)).unwrap() {
        writeln!(schema, "{};", sql.unwrap().replace("\n    ", "\n")).unwrap();
    }
    let page = include_str!("../../../../docs/layouts/sqlite.md");
    assert!(page.contains(&schema), "docs/layouts/sqlite.md does not have:\n{schema}");
    assert_eq!(ask::<i32>(&db, "PRAGMA application_id"), 0x4650_5354);
    assert_eq!(ask::<i32>(&db, "PRAGMA user_version"), 2);

    let lock = fp.lock("orders/7").ttl(Duration::from_secs(30)).label("web-1").lease_only();
    let owner = lock.acquire().await.unwrap().detach();
    assert!(runs(&fp, "k", "").await.unwrap());
    let _leadership = fp.election("e").ttl(LONG).campaign("10.0.0.7").await.unwrap();
    let grant = "SELECT name || '|' || lower(hex(owner)) || '|' || token || '|' || ttl_ms || '|' || label \
                 || '|' || (expires - granted) || '|' || ifnull(pid, 'NULL') || '|' || ifnull(presence, 'NULL') \
                 FROM fencepost_locks WHERE name = 'orders/7'";
    let expected = format!("orders/7|{}|1|30000|web-1|30000000000|NULL|NULL", owner.reveal());
    assert_eq!(ask::<String>(&db, grant), expected);
    let record = "SELECT name || '|' || state FROM fencepost_records";
    assert_eq!(ask::<String>(&db, record), "once/k|1");
    let value = "SELECT CAST(value AS TEXT) FROM fencepost_candidate_values WHERE name = 'e'";
    assert_eq!(ask::<String>(&db, value), "10.0.0.7");
    assert_eq!(ask::<i64>(&db, "SELECT last_token FROM fencepost_store"), 3);
}
