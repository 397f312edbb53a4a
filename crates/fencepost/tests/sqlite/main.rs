//! What can go wrong only in the embedded store: its file.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test may panic")]

mod access;
mod breaks;
mod connect_existing;
mod done_in;
mod elections;
mod layout;
mod other_process;
mod records;
mod tmpfs;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost::clock::Clock as _;
use fencepost::{ErrorKind, Fencepost};
use rusqlite::Connection;
use tempfile::TempDir;

struct StoreFile {
    _directory: TempDir,
    path: PathBuf,
}

fn store_file() -> StoreFile {
    // Only a disk keeps records.
    let directory = fencepost_testkit::directory_on_disk().unwrap();
    let path = directory.path().join("state/locks.db");
    StoreFile { _directory: directory, path }
}

async fn connect(path: &Path) -> fencepost::Result<Fencepost> {
    Fencepost::connect(&format!("sqlite:{}", path.display())).await
}

/// A store where `x` was granted once, and is still held if `held`.
async fn used(path: &Path, held: bool) -> u64 {
    let fp = connect(path).await.unwrap();
    let guard = fp.lock("x").lease_only().acquire().await.unwrap();
    let token = guard.token().get();
    if held {
        let _owner = guard.detach();
    } else {
        guard.release().await.unwrap();
    }
    token
}

fn edit(path: &Path, sql: &str) {
    Connection::open(path).unwrap().execute_batch(sql).unwrap();
}

/// Limit for something that should happen soon, on a busy machine.
const SOON: Duration = Duration::from_secs(30);

/// Waits for the condition. A test that would hang fails instead.
#[track_caller]
fn until(mut holds: impl FnMut() -> bool) {
    fencepost_testkit::wait::until(SOON, "the condition holds", || Ok(holds())).unwrap();
}

/// The value of the future, if it comes soon.
async fn within<T>(future: impl Future<Output = T>) -> T {
    let clock = fencepost::clock::BootClock;
    tokio::select! {
        value = future => value,
        () = clock.alarm(clock.now() + SOON) => panic!("not within {SOON:?}"),
    }
}

#[track_caller]
fn refuses(outcome: fencepost::Result<Fencepost>, kind: ErrorKind, words: &[&str]) {
    let error = outcome.expect_err("it should not open");
    let message = error.one_line();
    assert_eq!(error.kind(), kind, "{message}");
    for word in words {
        assert!(message.contains(word), "\"{message}\" does not say \"{word}\"");
    }
    assert!(!message.contains('\n'), "an error is one line: {message}");
}

#[tokio::test]
async fn new_store_is_private() {
    let store_file = store_file();
    used(&store_file.path, false).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&store_file.path), 0o600, "owners are in it");
    assert_eq!(
        mode(&store_file.path.with_extension("db.d")),
        0o700,
        "whoever writes here can fake a holder"
    );
}

#[tokio::test]
async fn leases_end_with_a_reboot_and_tokens_keep_rising() {
    let store_file = store_file();
    let token = used(&store_file.path, true).await;
    edit(&store_file.path, "UPDATE fencepost_store SET boot = 'the boot before'");
    let fp = connect(&store_file.path).await.unwrap();
    let guard = fp.lock("x").try_acquire().await.unwrap().expect("its holder is gone");
    assert!(guard.token().get() > token);
}

#[tokio::test]
async fn leases_continue_within_a_boot() {
    let store_file = store_file();
    used(&store_file.path, true).await;
    let fp = connect(&store_file.path).await.unwrap();
    assert!(fp.lock("x").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn file_of_another_machine_is_refused_until_adopted() {
    let store_file = store_file();
    let token = used(&store_file.path, true).await;
    edit(&store_file.path, "UPDATE fencepost_store SET boot = 'elsewhere', machine = 'another'");
    refuses(
        connect(&store_file.path).await,
        ErrorKind::Refused,
        &["another machine", "adopt=true"],
    );
    let adopted = format!("sqlite:{}?adopt=true", store_file.path.display());
    let fp = Fencepost::connect(&adopted).await.unwrap();
    let guard = fp.lock("x").try_acquire().await.unwrap().expect("its leases are void");
    assert!(guard.token().get() > token, "tokens continue");
}

/// Opening the file cleans up after dead processes. It once removed the presence file of a holder that had just died,
/// whose row then counted as alive until its lease ended.
#[tokio::test]
async fn dead_holder_is_replaced_at_once() {
    let store_file = store_file();
    used(&store_file.path, true).await;
    let directory = store_file.path.with_extension("db.d");
    std::fs::write(directory.join("p-dead"), "").unwrap();
    std::fs::write(directory.join("p-old"), "").unwrap();
    edit(&store_file.path, "UPDATE fencepost_locks SET presence = 'p-dead', pid = 1");
    let fp = connect(&store_file.path).await.unwrap();
    assert!(!directory.join("p-old").exists(), "what no row names is deleted");
    let guard = fp.lock("x").try_acquire().await.unwrap();
    assert!(guard.is_some(), "nobody has the presence file locked");
    assert!(!directory.join("p-dead").exists(), "it goes with its row");
}

/// Containers of one host have different machine ids and one kernel. They share its clock, so their leases stay valid
/// for each other, whatever the URL says.
#[tokio::test]
async fn containers_of_one_kernel_share_leases() {
    let store_file = store_file();
    used(&store_file.path, true).await;
    edit(&store_file.path, "UPDATE fencepost_store SET machine = 'another'");
    for adopt in ["", "?adopt=true"] {
        let url = format!("sqlite:{}{adopt}", store_file.path.display());
        let fp = Fencepost::connect(&url).await.unwrap();
        assert!(fp.lock("x").try_acquire().await.unwrap().is_none(), "the lease runs: {adopt}");
    }
}

/// A client that has the file open while it is adopted under another clock must stop using it.
#[tokio::test]
async fn client_whose_file_was_adopted_grants_nothing() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let guard = fp.lock("x").acquire().await.unwrap();
    edit(
        &store_file.path,
        "UPDATE fencepost_store SET epoch = epoch + 1; DELETE FROM fencepost_locks",
    );
    let error = fp.lock("y").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.one_line().contains("connect again"), "{error}");
    assert!(guard.release().await.is_err());
}

/// A removed file is another store than the one that replaced it.
#[tokio::test]
async fn client_whose_file_was_replaced_grants_nothing() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    for end in ["", "-wal", "-shm"] {
        let path = PathBuf::from(format!("{}{end}", store_file.path.display()));
        std::fs::remove_file(path).unwrap();
    }
    let _other = connect(&store_file.path).await.unwrap();
    let error = fp.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.one_line().contains("replaced"), "{error}");
}

#[tokio::test]
async fn directory_that_others_can_write_is_refused() {
    let store_file = store_file();
    used(&store_file.path, false).await;
    let directory = store_file.path.with_extension("db.d");
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    refuses(connect(&store_file.path).await, ErrorKind::Refused, &["db.d", "chmod 700"]);
}

/// Two names for one file are one store, presence files and sockets included.
#[tokio::test]
async fn link_to_the_file_is_the_same_store() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let link = store_file.path.with_file_name("link.db");
    std::os::unix::fs::symlink(&store_file.path, &link).unwrap();
    let other = connect(&link).await.unwrap();
    let _guard = fp.lock("x").acquire().await.unwrap();
    assert!(other.lock("x").try_acquire().await.unwrap().is_none());
    assert!(!link.with_extension("db.d").exists());
}

/// The guard relies on its lease: a renewal by owner id cannot shorten it.
#[tokio::test]
async fn renewal_does_not_shorten_a_lease() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let guard = fp.lock("x").acquire().await.unwrap();
    fp.renew("x", guard.owner(), Some(fencepost::Ttl::MIN)).await.unwrap();
    let info = fp.inspect("x").await.unwrap();
    assert!(info.holder.unwrap().remaining >= Some(guard.remaining()));
}

/// A detached grant ends with its lease, even if a renewal was in flight when it was detached.
#[tokio::test]
async fn detached_grant_is_not_renewed() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let clock = fencepost::clock::BootClock;
    for round in 0..20_u64 {
        let lock = fp.lock("x").lease_only().ttl(Duration::from_millis(100));
        let guard = lock
            .wait_timeout(Duration::from_secs(5))
            .acquire()
            .await
            .expect("the one before has ended");
        // Around the time of its first renewal.
        clock.alarm(clock.now() + Duration::from_millis(30 + round % 8)).await;
        let _owner = guard.detach();
    }
}

/// A timeout means contention, however many waiters time out together.
#[tokio::test(flavor = "multi_thread")]
async fn waiters_that_time_out_together_report_held() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let _guard = fp.lock("x").acquire().await.unwrap();
    let waiting: Vec<_> = (0..200)
        .map(|_| {
            let fp = fp.clone();
            tokio::spawn(async move {
                fp.lock("x").wait_timeout(Duration::from_secs(2)).acquire().await
            })
        })
        .collect();
    for waiter in waiting {
        let error = waiter.await.unwrap().unwrap_err();
        assert!(error.holder().is_some(), "{error}");
    }
}

#[tokio::test]
async fn another_time_namespace_is_refused() {
    let store_file = store_file();
    used(&store_file.path, false).await;
    edit(&store_file.path, "UPDATE fencepost_store SET time_namespace = 'time:[1]'");
    refuses(connect(&store_file.path).await, ErrorKind::Refused, &["time namespace"]);
}

#[tokio::test]
async fn newer_layout_is_refused() {
    let store_file = store_file();
    used(&store_file.path, false).await;
    edit(&store_file.path, "PRAGMA user_version = 3");
    refuses(connect(&store_file.path).await, ErrorKind::Refused, &["layout 3", "newer"]);
}

#[tokio::test]
async fn database_of_another_program_is_not_changed() {
    let store_file = store_file();
    std::fs::create_dir_all(store_file.path.parent().unwrap()).unwrap();
    edit(&store_file.path, "CREATE TABLE theirs (x)");
    refuses(connect(&store_file.path).await, ErrorKind::Refused, &["another program"]);
}

#[tokio::test]
async fn damaged_file_is_named_with_the_remedy() {
    let store_file = store_file();
    std::fs::create_dir_all(store_file.path.parent().unwrap()).unwrap();
    std::fs::write(&store_file.path, "no database, ".repeat(1000)).unwrap();
    let path = store_file.path.display().to_string();
    refuses(
        connect(&store_file.path).await,
        ErrorKind::Unreachable,
        &[&path, "damaged", "move it away"],
    );
}

#[tokio::test]
async fn directory_that_cannot_be_created_is_named() {
    let store_file = store_file();
    let file = store_file.path.parent().unwrap();
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, "in the way").unwrap();
    refuses(connect(&store_file.path).await, ErrorKind::Unreachable, &["state", "sqlite:PATH"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn concurrent_clients_open_a_new_file() {
    let store_file = store_file();
    let opening: Vec<_> = (0..8)
        .map(|_| {
            let path = store_file.path.clone();
            tokio::spawn(async move { connect(&path).await })
        })
        .collect();
    for opened in opening {
        opened.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn released_names_leave_no_rows() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let cycles: Vec<_> = (0..500)
        .map(|n| {
            let fp = fp.clone();
            tokio::spawn(async move { fp.lock(format!("n/{n}")).acquire().await?.release().await })
        })
        .collect();
    for cycle in cycles {
        cycle.await.unwrap().unwrap();
    }
    let db = Connection::open(&store_file.path).unwrap();
    for table in ["fencepost_locks", "fencepost_waiters", "fencepost_broken"] {
        let rows: u32 =
            db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "{table}");
    }
    fp.close().await;
    drop(fp);
}

/// A process that opens the file while no other has it open reads the whole log, which took `fencepost run` up to 4 ms.
#[tokio::test]
async fn log_of_short_lived_clients_stays_short() {
    let store_file = store_file();
    for _ in 0..60 {
        used(&store_file.path, false).await;
    }
    let db = Connection::open(&store_file.path).unwrap();
    let pages = |row: &rusqlite::Row<'_>| row.get::<_, u32>(1);
    let pages = db.query_row("PRAGMA wal_checkpoint(NOOP)", [], pages).unwrap();
    assert!(pages > 0 && pages < 100, "{pages} pages; 60 grants and releases write 180");
}

#[tokio::test]
async fn reader_of_a_long_log_delays_nobody_and_keeps_its_view() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    for _ in 0..40 {
        fp.lock("x").acquire().await.unwrap().release().await.unwrap();
    }
    let reader = Connection::open(&store_file.path).unwrap();
    let last_token = || {
        let ask = "SELECT last_token FROM fencepost_store";
        reader.query_row(ask, [], |row| row.get::<_, i64>(0)).unwrap()
    };
    reader.execute_batch("BEGIN").unwrap();
    assert_eq!(last_token(), 40);
    for token in 41..44 {
        assert_eq!(used(&store_file.path, false).await, token);
    }
    assert_eq!(last_token(), 40);
    reader.execute_batch("COMMIT").unwrap();
    assert_eq!(last_token(), 43);
}

/// A process frozen in a transaction keeps SQLite's write lock. Nothing is granted, and the error names the cause.
#[tokio::test]
async fn file_locked_by_another_process_is_unreachable() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let stopped = Connection::open(&store_file.path).unwrap();
    stopped.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = fp.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.one_line().contains("busy"), "{error}");
    stopped.execute_batch("ROLLBACK").unwrap();
    let _guard = fp.lock("x").wait_timeout(Duration::from_secs(10)).acquire().await.unwrap();
}

/// A wait outlasts an outage, but not a fault that needs an operator.
#[tokio::test]
async fn wait_on_a_damaged_file_ends() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    // Changed by another connection, so that the client rereads it.
    edit(
        &store_file.path,
        "UPDATE fencepost_store SET epoch = epoch; PRAGMA wal_checkpoint(TRUNCATE)",
    );
    std::fs::write(&store_file.path, "no database, ".repeat(10_000)).unwrap();
    let error = within(fp.lock("x").acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.one_line().contains("damaged"), "{error}");
}

#[tokio::test]
async fn wait_without_the_presence_directory_ends() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    std::fs::remove_dir_all(store_file.path.with_extension("db.d")).unwrap();
    let error = within(fp.lock("x").acquire()).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.one_line().contains("connect again"), "{error}");
}

#[test]
fn wait_without_free_file_descriptors_ends() {
    let store_file = store_file();
    let url = other_process::url(&store_file.path);
    let line = other_process::OtherProcess::start(None, "022; ulimit -n 64", "many", &url).says();
    assert!(line.starts_with("error") && line.contains("raise ulimit -n"), "{line}");
}

/// An acquire that failed on its limit must not be granted later: whatever the slow transaction did is undone in the
/// background (P6).
#[tokio::test]
async fn acquire_that_timed_out_in_the_store_is_undone() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let stopped = Connection::open(&store_file.path).unwrap();
    stopped.execute_batch("BEGIN IMMEDIATE").unwrap();
    let limit = Duration::from_millis(200);
    let error = fp.lock("x").wait_timeout(limit).acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    stopped.execute_batch("ROLLBACK").unwrap();
    fp.close().await;
    let other = connect(&store_file.path).await.unwrap();
    let info = other.inspect("x").await.unwrap();
    assert_eq!((info.holder, info.waiting), (None, 0));
}
