//! The fence in a SQLite database: what is specific to SQLite. What all fences share is in `fences/`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

use fencepost::fences::cas::{self, Swap};
use fencepost::fences::sqlite::rusqlite::{Connection, OpenFlags, TransactionBehavior};
use fencepost::fences::{Row, column, sqlite};
use fencepost::{Error, ErrorKind, FencingToken, Label, LockName, Token};

fn name(text: &str) -> LockName {
    LockName::new(text).unwrap()
}

fn fencing(name: &str, number: u64) -> FencingToken {
    FencingToken::new(LockName::new(name).unwrap(), Token::new(number).unwrap())
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
fn stale_error_names_the_mark_and_who_set_it() {
    let mut db = Connection::open_in_memory().unwrap();
    let tx = db.transaction().unwrap();
    let who = Label::new("web-2:77").unwrap();
    sqlite::enter_as(&tx, &fencing("invoice/42", 34), &who).unwrap();
    tx.commit().unwrap();
    let error = error_of(sqlite::begin(&mut db, &fencing("invoice/42", 33)));
    assert_eq!(error.kind(), ErrorKind::Stale);
    let text = error.one_line();
    let start = "token 33 for \"invoice/42\" is stale: 34 has entered (web-2:77, 2";
    assert!(text.starts_with(start) && text.ends_with("Z)"), "{text}");
}

#[test]
fn default_label_is_host_and_process() {
    let mut db = Connection::open_in_memory().unwrap();
    sqlite::begin(&mut db, &fencing("a", 1)).unwrap().commit().unwrap();
    let mark = sqlite::show(&db, Some(&name("a"))).unwrap().pop().unwrap();
    assert!(mark.set_by.ends_with(&format!(":{}", std::process::id())), "{}", mark.set_by);
}

/// The mark holds from `enter` to the commit: nobody can enter between the check and the write.
#[test]
fn open_transaction_excludes_others_even_with_an_equal_token() {
    let database = Database::new();
    let (mut first, mut second) = (database.open(), database.open());
    sqlite::begin(&mut first, &fencing("a", 1)).unwrap().commit().unwrap();
    // Deferred and with an equal token: it is the write of the mark that takes the lock.
    let tx = first.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    sqlite::enter(&tx, &fencing("a", 1)).unwrap();
    let busy = error_of(sqlite::begin(&mut second, &fencing("a", 2)));
    assert_eq!(busy.kind(), ErrorKind::Unreachable);
    assert!(busy.to_string().contains("busy_timeout"), "{busy}");
    tx.commit().unwrap();
    sqlite::begin(&mut second, &fencing("a", 2)).unwrap().commit().unwrap();
}

#[test]
fn transaction_that_read_before_enter_is_told_to_enter_first() {
    let database = Database::new();
    let (mut first, mut second) = (database.open(), database.open());
    sqlite::install(&first).unwrap();
    let tx = first.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    assert!(sqlite::show(&tx, None).unwrap().is_empty());
    sqlite::begin(&mut second, &fencing("other", 9)).unwrap().commit().unwrap();
    let error = error_of(sqlite::enter(&tx, &fencing("a", 1)));
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.one_line().contains("enter first"), "{error}");
}

#[test]
fn database_without_the_tables_has_no_marks_and_is_not_changed() {
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
fn read_only_database_is_refused_with_the_reason() {
    let database = Database::new();
    sqlite::install(&database.open()).unwrap();
    let path = database.0.path().join("shop.db");
    let mut db = Connection::open_with_flags(path, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    let tx = db.transaction().unwrap();
    let error = error_of(sqlite::enter(&tx, &fencing("a", 1)));
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.one_line().contains("open it for writing"), "{error}");
}

/// Other languages write the tables directly: the database itself refuses invalid tokens and names.
#[test]
fn tables_refuse_invalid_input() {
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

fn database_with_seats() -> Connection {
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
fn version_lets_one_writer_through() {
    let db = database_with_seats();
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
fn wrong_table_or_column_is_named_and_nothing_is_written() {
    let db = database_with_seats();
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
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.one_line().contains(names), "{error}");
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
fn row_refuses_a_stale_token() {
    let db = database_with_seats();
    db.execute_batch("ALTER TABLE seat ADD COLUMN fence INTEGER").unwrap();
    let row = Row { guard: "fence", ..SEAT };
    let write = |number, who: &str| {
        column::sqlite::write(&db, &row, &"12A", &fencing("seat", number), &[("taken by", &who)])
    };
    assert!(column::sqlite::enter(&db, &row, &"12A", &fencing("seat", 33)).unwrap());
    assert!(write(33, "ada").unwrap());
    assert!(write(33, "bob").unwrap());
    assert!(column::sqlite::enter(&db, &row, &"12A", &fencing("seat", 34)).unwrap());
    let error = error_of(write(33, "eve"));
    assert_eq!(error.kind(), ErrorKind::Stale);
    let text = "token 33 for row \"12A\" of seat is stale: 34 has entered";
    assert_eq!(error.one_line(), text);
    let taken: String = db
        .query_row("SELECT \"taken by\" FROM seat WHERE id = '12A'", [], |row| row.get(0))
        .unwrap();
    assert_eq!(taken, "bob");
    assert!(!column::sqlite::enter(&db, &row, &"99Z", &fencing("seat", 1)).unwrap());
}

/// Without an explicit transaction the commit comes after the row that reports the write.
#[test]
fn write_that_could_not_be_committed_is_reported() {
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
    assert_eq!(swapped.kind(), ErrorKind::Unreachable, "{swapped}");
    let entered = error_of(column::sqlite::enter(&db, &seat, &"12A", &fencing("seat", 9)));
    assert_eq!(entered.kind(), ErrorKind::Unreachable, "{entered}");
    drop(rows);
    drop(reading);
    let version: i64 = db.query_row("SELECT version FROM seat", [], |row| row.get(0)).unwrap();
    assert_eq!(version, 7);
}

/// SQLite ignores case, and the last assignment to a column counts.
#[test]
fn guard_column_cannot_be_set_in_another_case() {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch(
        "CREATE TABLE seat (id TEXT, fence INTEGER); INSERT INTO seat VALUES ('12A', 40)",
    )
    .unwrap();
    let seat = Row { table: "seat", key: "id", guard: "fence" };
    let refused = column::sqlite::write(&db, &seat, &"12A", &fencing("seat", 41), &[("FENCE", &3)]);
    assert_eq!(error_of(refused).kind(), ErrorKind::Invalid);
}

/// The table may belong to another program: it is not used and not changed.
#[test]
fn third_party_table_is_refused() {
    let db = Connection::open_in_memory().unwrap();
    db.execute_batch("CREATE TABLE fencepost_marks (a)").unwrap();
    let error = sqlite::install(&db).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.one_line().contains("rename it"), "{error}");
}

/// The page and a real database agree on the tables, their columns and the form of a time.
#[test]
fn tables_match_the_page() {
    let page = include_str!("../../../docs/layouts/fences.md");
    let mut db = Connection::open_in_memory().unwrap();
    sqlite::begin(&mut db, &fencing("a", 1)).unwrap().commit().unwrap();
    for table in ["fencepost_marks", "fencepost_resets"] {
        let mut columns = db.prepare("SELECT name FROM pragma_table_info(?)").unwrap();
        let columns = columns.query_map([table], |row| row.get::<_, String>(0)).unwrap();
        let columns = columns.collect::<Result<Vec<_>, _>>().unwrap().join(", ");
        let shown = format!("{table:<18}({columns})");
        assert!(page.contains(&shown), "docs/layouts/fences.md does not have:\n{shown}");
    }
    let form = |time: &str| time.replace(|it: char| it.is_ascii_digit(), "0");
    let time = page.split_once("in UTC: `").unwrap().1.split_once('`').unwrap().0;
    let mark = sqlite::mark(&db, &name("a")).unwrap().unwrap();
    assert_eq!(form(&mark.set_at), form(time));
}
