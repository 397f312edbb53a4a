//! The fence in a SQLite database: what is SQLite's own. What all fences have in common is in `fences/`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use fencepost::fences::cas::{self, Swap};
use fencepost::fences::{Row, column, sqlite};
use fencepost::rusqlite::{Connection, OpenFlags, TransactionBehavior};
use fencepost::{Error, ErrorKind, Label, LockName, Token};

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// A database that two connections can open.
struct Database(tempfile::TempDir);

impl Database {
    fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    fn open(&self) -> Connection {
        let connection = Connection::open(self.0.path().join("shop.db")).unwrap();
        connection.pragma_update(None, "journal_mode", "WAL").unwrap();
        connection.busy_timeout(std::time::Duration::ZERO).unwrap();
        connection
    }
}

fn error_of<T>(result: Result<T, Error>) -> Error {
    match result {
        Ok(_) => panic!("it was accepted"),
        Err(error) => error,
    }
}

#[test]
fn the_message_names_the_mark_and_who_set_it() {
    let mut db = Connection::open_in_memory().unwrap();
    let tx = db.transaction().unwrap();
    let who = Label::new("web-2:77").unwrap();
    sqlite::enter_as(&tx, &name("invoice/42"), token(34), &who).unwrap();
    tx.commit().unwrap();
    let error = error_of(sqlite::begin(&mut db, &name("invoice/42"), token(33)));
    assert_eq!(*error.kind(), ErrorKind::Stale);
    let text = error.to_string();
    let start = "token 33 for \"invoice/42\" is stale: 34 has entered (web-2:77, 2";
    assert!(text.starts_with(start) && text.ends_with("Z)"), "{text}");
}

#[test]
fn who_entered_is_the_host_and_the_process_unless_said() {
    let mut db = Connection::open_in_memory().unwrap();
    sqlite::begin(&mut db, &name("a"), token(1)).unwrap().commit().unwrap();
    let mark = sqlite::show(&db, Some(&name("a"))).unwrap().pop().unwrap();
    assert!(mark.set_by.ends_with(&format!(":{}", std::process::id())), "{}", mark.set_by);
}

/// The mark must hold from `enter` to the commit: nobody can enter between the check and the write.
#[test]
fn nobody_enters_while_one_is_inside_an_equal_token_included() {
    let database = Database::new();
    let (mut first, mut second) = (database.open(), database.open());
    sqlite::begin(&mut first, &name("a"), token(1)).unwrap().commit().unwrap();
    // Deferred, and the token is not new: it is the write of the mark that takes the lock.
    let tx = first.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    sqlite::enter(&tx, &name("a"), token(1)).unwrap();
    let busy = error_of(sqlite::begin(&mut second, &name("a"), token(2)));
    assert_eq!(*busy.kind(), ErrorKind::Unreachable);
    assert!(busy.to_string().contains("busy_timeout"), "{busy}");
    tx.commit().unwrap();
    sqlite::begin(&mut second, &name("a"), token(2)).unwrap().commit().unwrap();
}

#[test]
fn a_transaction_that_read_too_early_is_told_to_enter_first() {
    let database = Database::new();
    let (mut first, mut second) = (database.open(), database.open());
    sqlite::install(&first).unwrap();
    let tx = first.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    assert!(sqlite::show(&tx, None).unwrap().is_empty());
    sqlite::begin(&mut second, &name("other"), token(9)).unwrap().commit().unwrap();
    let error = error_of(sqlite::enter(&tx, &name("a"), token(1)));
    assert_eq!(*error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains("enter first"), "{error}");
}

#[test]
fn a_database_without_the_tables_has_no_marks_and_stays_as_it_is() {
    let db = Connection::open_in_memory().unwrap();
    assert!(sqlite::show(&db, None).unwrap().is_empty());
    assert!(sqlite::audit(&db, None).unwrap().is_empty());
    let tables: i64 =
        db.query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0)).unwrap();
    assert_eq!(tables, 0);
    sqlite::install(&db).unwrap();
    sqlite::install(&db).unwrap();
}

#[test]
fn a_database_that_can_only_be_read_refuses_and_says_why() {
    let database = Database::new();
    sqlite::install(&database.open()).unwrap();
    let path = database.0.path().join("shop.db");
    let mut db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let tx = db.transaction().unwrap();
    let error = error_of(sqlite::enter(&tx, &name("a"), token(1)));
    assert_eq!(*error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("open it for writing"), "{error}");
}

/// Other languages write the tables by hand: the database itself refuses what is no token and no name.
#[test]
fn the_tables_refuse_bad_input_by_themselves() {
    let db = Connection::open_in_memory().unwrap();
    sqlite::install(&db).unwrap();
    let insert = |name: &str, token: &str| {
        let sql = format!("INSERT INTO fencepost_marks VALUES ({name}, {token}, 'me', 'now')");
        db.execute(&sql, [])
    };
    for bad in ["0", "-1", "9007199254740992", "NULL", "'many'", "1.5"] {
        assert!(insert("'a'", bad).is_err(), "token {bad}");
    }
    let long = format!("'{}'", "x".repeat(513));
    for bad in ["''", "NULL", &long, "'a' || char(10)", "'a' || char(0)", "char(127)", "char(133)"]
    {
        assert!(insert(bad, "1").is_err(), "name {bad}");
    }
    assert!(sqlite::show(&db, None).unwrap().is_empty());
    insert(&format!("'{}'", "ü".repeat(256)), "9007199254740991").unwrap();
    insert("'[a-z]*?'", "1").unwrap();
}

fn seats() -> Connection {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch(
        "CREATE TABLE seat (id TEXT PRIMARY KEY, \"taken by\" TEXT, version INTEGER);
         INSERT INTO seat VALUES ('12A', NULL, 7), ('12B', NULL, NULL);",
    )
    .unwrap();
    db
}

const SEAT: Row<'static> = Row { table: "seat", key: "id", guard: "version" };

#[test]
fn a_version_lets_one_writer_through() {
    let db = seats();
    let take = |who: &str| cas::sqlite::swap(&db, &SEAT, &"12A", 7, &[("taken by", &who)]).unwrap();
    assert_eq!(take("ada"), Swap::Written { version: 8 });
    assert_eq!(take("bob"), Swap::Changed { version: 8 });
    let taken: String = db
        .query_row("SELECT \"taken by\" FROM seat WHERE id = '12A'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(taken, "ada");
    assert_eq!(cas::sqlite::swap(&db, &SEAT, &"99Z", 7, &[]).unwrap(), Swap::Gone);
}

#[test]
fn a_wrong_table_or_column_is_named_and_nothing_is_written() {
    let db = seats();
    let written =
        |row: &Row<'_>, column: &str| cas::sqlite::swap(&db, row, &"12A", 7, &[(column, &"eve")]);
    let cases = [
        (Row { table: "saet", ..SEAT }, "taken by", "saet"),
        (Row { key: "di", ..SEAT }, "taken by", "di"),
        (Row { guard: "verison", ..SEAT }, "taken by", "verison"),
        (SEAT, "taken_by", "taken_by"),
        (SEAT, "version", "leave it out"),
        (Row { table: "seat\" SET version = 0 --", ..SEAT }, "taken by", "no such table"),
        (Row { table: "", ..SEAT }, "taken by", "empty"),
        (Row { table: "a.b.c", ..SEAT }, "taken by", "SCHEMA.TABLE"),
    ];
    for (row, column, names) in cases {
        let error = error_of(written(&row, column));
        assert_eq!(*error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.to_string().contains(names), "{error}");
    }
    let null = error_of(cas::sqlite::swap(&db, &SEAT, &"12B", 7, &[]));
    assert!(null.to_string().contains("NOT NULL"), "{null}");
    let left: i64 = db
        .query_row(
            "SELECT version FROM seat WHERE id = '12A' AND \"taken by\" IS NULL",
            [],
            |row| row.get(0),
        )
        .unwrap();
    assert_eq!(left, 7);
    assert_eq!(
        written(&Row { table: "main.seat", ..SEAT }, "taken by").unwrap(),
        Swap::Written { version: 8 }
    );
}

#[test]
fn a_row_refuses_a_stale_token() {
    let db = seats();
    db.execute_batch("ALTER TABLE seat ADD COLUMN fence INTEGER").unwrap();
    let row = Row { guard: "fence", ..SEAT };
    let write = |number, who: &str| {
        column::sqlite::write(&db, &row, &"12A", token(number), &[("taken by", &who)])
    };
    assert!(column::sqlite::enter(&db, &row, &"12A", token(33)).unwrap());
    assert!(write(33, "ada").unwrap());
    assert!(write(33, "bob").unwrap());
    assert!(column::sqlite::enter(&db, &row, &"12A", token(34)).unwrap());
    let error = error_of(write(33, "eve"));
    assert_eq!(*error.kind(), ErrorKind::Stale);
    let text = "token 33 for row \"12A\" of seat is stale: 34 has entered";
    assert_eq!(error.to_string(), text);
    let taken: String = db
        .query_row("SELECT \"taken by\" FROM seat WHERE id = '12A'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(taken, "bob");
    assert!(!column::sqlite::enter(&db, &row, &"99Z", token(1)).unwrap());
}

/// Where each statement is a transaction of its own, the commit comes behind the row that tells of the write.
#[test]
fn a_write_that_could_not_be_committed_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let open = || {
        let connection = Connection::open(dir.path().join("shop.db")).unwrap();
        connection.pragma_update(None, "journal_mode", "DELETE").unwrap();
        connection.busy_timeout(std::time::Duration::ZERO).unwrap();
        connection
    };
    let (db, reader) = (open(), open());
    db.execute_batch(
        "CREATE TABLE seat (id TEXT, version INTEGER); INSERT INTO seat VALUES ('12A', 7)",
    )
    .unwrap();
    let seat = Row { table: "seat", key: "id", guard: "version" };
    let mut reading = reader.prepare("SELECT version FROM seat").unwrap();
    let mut rows = reading.query([]).unwrap();
    assert!(rows.next().unwrap().is_some());
    let swapped = error_of(cas::sqlite::swap(&db, &seat, &"12A", 7, &[]));
    assert_eq!(*swapped.kind(), ErrorKind::Unreachable, "{swapped}");
    let entered = error_of(column::sqlite::enter(&db, &seat, &"12A", token(9)));
    assert_eq!(*entered.kind(), ErrorKind::Unreachable, "{entered}");
    drop(rows);
    drop(reading);
    let version: i64 = db.query_row("SELECT version FROM seat", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 7);
}

/// To SQLite upper and lower case are the same, and the last of two settings of a column counts.
#[test]
fn the_guard_column_can_not_be_set_under_another_case() {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch(
        "CREATE TABLE seat (id TEXT, fence INTEGER); INSERT INTO seat VALUES ('12A', 40)",
    )
    .unwrap();
    let seat = Row { table: "seat", key: "id", guard: "fence" };
    let refused = column::sqlite::write(&db, &seat, &"12A", token(41), &[("FENCE", &3)]);
    assert_eq!(*error_of(refused).kind(), ErrorKind::Invalid);
}

/// A table of this name may be another program's: it is not taken for ours, and not changed.
#[test]
fn a_table_that_is_not_ours_is_refused() {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch("CREATE TABLE fencepost_marks (a)").unwrap();
    let error = sqlite::install(&db).unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("rename it"), "{error}");
}
