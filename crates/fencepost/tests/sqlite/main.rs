//! What only the embedded store can get wrong: its file.

#![expect(clippy::panic, clippy::unwrap_used, reason = "a test may panic")]

mod absent;
mod access;
mod breaks;
mod done_in;
mod elections;
mod formats;
mod other;
mod records;
mod volatile;

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost::clock::Clock as _;
use fencepost::{ErrorKind, Fencepost};
use rusqlite::Connection;
use tempfile::TempDir;

struct Place {
    _directory: TempDir,
    path: PathBuf,
}

fn place() -> Place {
    // Records are kept only on one.
    let directory = fencepost_testkit::directory_on_disk().unwrap();
    let path = directory.path().join("state/locks.db");
    Place { _directory: directory, path }
}

async fn connect(path: &Path) -> fencepost::Result<Fencepost> {
    Fencepost::connect(&format!("sqlite:{}", path.display())).await
}

/// A file in which `x` was granted once, and is still held when `held`.
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

/// How long something may take that is to come soon, on a machine that has other things to do.
const SOON: Duration = Duration::from_secs(30);

/// Waits until the condition holds; a test that would hang fails instead.
#[track_caller]
fn until(mut holds: impl FnMut() -> bool) {
    fencepost_testkit::wait::until(SOON, "the condition holds", || Ok(holds())).unwrap();
}

/// What the future gives, if it does soon.
async fn within<T>(future: impl Future<Output = T>) -> T {
    let clock = fencepost::clock::BootClock;
    tokio::select! {
        value = future => value,
        () = clock.alarm(clock.now() + SOON) => panic!("not within {SOON:?}"),
    }
}

#[track_caller]
fn refuses(outcome: fencepost::Result<Fencepost>, kind: &ErrorKind, words: &[&str]) {
    let error = outcome.expect_err("it should not open");
    assert_eq!(error.kind(), kind, "{error}");
    let message = error.to_string();
    for word in words {
        assert!(message.contains(word), "\"{message}\" does not say \"{word}\"");
    }
    assert!(!message.contains('\n'), "an error is one line: {message}");
}

#[tokio::test]
async fn the_file_is_the_users_alone() {
    let place = place();
    used(&place.path, false).await;
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&place.path), 0o600, "owners are in it");
    assert_eq!(
        mode(&place.path.with_extension("db.d")),
        0o700,
        "who writes here can pass for a holder"
    );
}

#[tokio::test]
async fn after_a_reboot_leases_are_void_and_tokens_go_on() {
    let place = place();
    let token = used(&place.path, true).await;
    edit(&place.path, "UPDATE store SET boot = 'the boot before'");
    let fp = connect(&place.path).await.unwrap();
    let guard = fp.lock("x").try_acquire().await.unwrap().expect("its holder is gone");
    assert!(guard.token().get() > token);
}

#[tokio::test]
async fn within_a_boot_leases_stay() {
    let place = place();
    used(&place.path, true).await;
    let fp = connect(&place.path).await.unwrap();
    assert!(fp.lock("x").try_acquire().await.unwrap().is_none());
}

#[tokio::test]
async fn a_file_of_another_machine_is_refused_until_it_is_adopted() {
    let place = place();
    let token = used(&place.path, true).await;
    edit(&place.path, "UPDATE store SET boot = 'elsewhere', machine = 'another'");
    refuses(connect(&place.path).await, &ErrorKind::Refused, &["another machine", "adopt=true"]);
    let adopted = format!("sqlite:{}?adopt=true", place.path.display());
    let fp = Fencepost::connect(&adopted).await.unwrap();
    let guard = fp.lock("x").try_acquire().await.unwrap().expect("its leases are void");
    assert!(guard.token().get() > token, "tokens go on");
}

/// Opening the file tidies up after the dead. It once removed the presence file of a holder that had died a
/// moment before, whose row then counted as alive until its lease ended.
#[tokio::test]
async fn a_holder_that_died_before_we_came_is_taken_over_at_once() {
    let place = place();
    used(&place.path, true).await;
    let directory = place.path.with_extension("db.d");
    std::fs::write(directory.join("p-dead"), "").unwrap();
    std::fs::write(directory.join("p-old"), "").unwrap();
    edit(&place.path, "UPDATE locks SET presence = 'p-dead', pid = 1");
    let fp = connect(&place.path).await.unwrap();
    assert!(!directory.join("p-old").exists(), "what no row names is swept");
    let guard = fp.lock("x").try_acquire().await.unwrap();
    assert!(guard.is_some(), "nobody has the presence file locked");
    assert!(!directory.join("p-dead").exists(), "it goes with its row");
}

/// Containers of one host have machine ids of their own, and one kernel: they share its clock, so nothing
/// may be voided between them, whatever the URL says.
#[tokio::test]
async fn one_kernel_is_one_machine_whatever_it_is_called() {
    let place = place();
    used(&place.path, true).await;
    edit(&place.path, "UPDATE store SET machine = 'another'");
    for adopt in ["", "?adopt=true"] {
        let url = format!("sqlite:{}{adopt}", place.path.display());
        let fp = Fencepost::connect(&url).await.unwrap();
        assert!(fp.lock("x").try_acquire().await.unwrap().is_none(), "the lease runs: {adopt}");
    }
}

/// Whoever has the file open when it is adopted from another clock must not go on with its own.
#[tokio::test]
async fn a_client_whose_file_was_adopted_grants_nothing() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let guard = fp.lock("x").acquire().await.unwrap();
    edit(&place.path, "UPDATE store SET epoch = epoch + 1; DELETE FROM locks");
    let error = fp.lock("y").try_acquire().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("connect again"), "{error}");
    assert!(guard.release().await.is_err());
}

/// A file that was removed under its users is another lock service than the one that took its place.
#[tokio::test]
async fn a_client_whose_file_was_replaced_grants_nothing() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    for end in ["", "-wal", "-shm"] {
        let path = PathBuf::from(format!("{}{end}", place.path.display()));
        std::fs::remove_file(path).unwrap();
    }
    let _other = connect(&place.path).await.unwrap();
    let error = fp.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("replaced"), "{error}");
}

#[tokio::test]
async fn a_directory_that_others_can_write_is_refused() {
    let place = place();
    used(&place.path, false).await;
    let directory = place.path.with_extension("db.d");
    std::fs::set_permissions(&directory, std::fs::Permissions::from_mode(0o777)).unwrap();
    refuses(connect(&place.path).await, &ErrorKind::Refused, &["db.d", "chmod 700"]);
}

/// Two names for one file are one store, presence files and sockets included.
#[tokio::test]
async fn a_link_to_the_file_is_the_same_store() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let link = place.path.with_file_name("link.db");
    std::os::unix::fs::symlink(&place.path, &link).unwrap();
    let other = connect(&link).await.unwrap();
    let _guard = fp.lock("x").acquire().await.unwrap();
    assert!(other.lock("x").try_acquire().await.unwrap().is_none());
    assert!(!link.with_extension("db.d").exists());
}

/// The guard counts on the lease that it was promised: nobody who knows the owner can shorten it.
#[tokio::test]
async fn a_renewal_does_not_shorten_a_lease() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let guard = fp.lock("x").acquire().await.unwrap();
    fp.renew("x", guard.owner(), Some(fencepost::Ttl::MIN)).await.unwrap();
    let info = fp.inspect("x").await.unwrap();
    assert!(info.holder.unwrap().remaining >= Some(guard.remaining()));
}

/// A detached grant ends with its lease, even if a renewal was under way when it was let go.
#[tokio::test]
async fn a_detached_grant_is_not_renewed() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let clock = fencepost::clock::BootClock;
    for round in 0..20_u64 {
        let lock = fp.lock("x").lease_only().ttl(Duration::from_millis(100));
        let guard =
            lock.acquire_within(Duration::from_secs(5)).await.expect("the one before has ended");
        // Around the time of its first renewal.
        clock.alarm(clock.now() + Duration::from_millis(30 + round % 8)).await;
        let _owner = guard.detach();
    }
}

/// Timing out is contention, however many do it together.
#[tokio::test(flavor = "multi_thread")]
async fn many_waiters_that_give_up_together_are_told_that_it_is_held() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let _guard = fp.lock("x").acquire().await.unwrap();
    let waiting: Vec<_> = (0..200)
        .map(|_| {
            let fp = fp.clone();
            tokio::spawn(async move { fp.lock("x").acquire_within(Duration::from_secs(2)).await })
        })
        .collect();
    for waiter in waiting {
        let error = waiter.await.unwrap().unwrap_err();
        assert!(error.holder().is_some(), "{error}");
    }
}

#[tokio::test]
async fn another_time_namespace_is_refused() {
    let place = place();
    used(&place.path, false).await;
    edit(&place.path, "UPDATE store SET time_namespace = 'time:[1]'");
    refuses(connect(&place.path).await, &ErrorKind::Refused, &["time namespace"]);
}

#[tokio::test]
async fn a_newer_format_is_refused() {
    let place = place();
    used(&place.path, false).await;
    edit(&place.path, "PRAGMA user_version = 3");
    refuses(connect(&place.path).await, &ErrorKind::Refused, &["format 3", "newer"]);
}

#[tokio::test]
async fn the_database_of_another_program_is_left_alone() {
    let place = place();
    std::fs::create_dir_all(place.path.parent().unwrap()).unwrap();
    edit(&place.path, "CREATE TABLE theirs (x)");
    refuses(connect(&place.path).await, &ErrorKind::Refused, &["another program"]);
}

#[tokio::test]
async fn a_damaged_file_is_named_with_the_remedy() {
    let place = place();
    std::fs::create_dir_all(place.path.parent().unwrap()).unwrap();
    std::fs::write(&place.path, "no database, ".repeat(1000)).unwrap();
    let path = place.path.display().to_string();
    refuses(
        connect(&place.path).await,
        &ErrorKind::Unreachable,
        &[&path, "damaged", "move it away"],
    );
}

#[tokio::test]
async fn a_directory_that_can_not_be_made_is_named() {
    let place = place();
    let file = place.path.parent().unwrap();
    std::fs::create_dir_all(file.parent().unwrap()).unwrap();
    std::fs::write(file, "in the way").unwrap();
    refuses(connect(&place.path).await, &ErrorKind::Unreachable, &["state", "sqlite:PATH"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn many_may_open_a_fresh_file_at_once() {
    let place = place();
    let opening: Vec<_> = (0..8)
        .map(|_| {
            let path = place.path.clone();
            tokio::spawn(async move { connect(&path).await })
        })
        .collect();
    for opened in opening {
        opened.await.unwrap().unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn released_names_leave_nothing_behind() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let cycles: Vec<_> = (0..500)
        .map(|n| {
            let fp = fp.clone();
            tokio::spawn(async move { fp.lock(format!("n/{n}")).acquire().await?.release().await })
        })
        .collect();
    for cycle in cycles {
        cycle.await.unwrap().unwrap();
    }
    let db = Connection::open(&place.path).unwrap();
    for table in ["locks", "waiters", "broken"] {
        let rows: u32 =
            db.query_row(&format!("SELECT count(*) FROM {table}"), [], |row| row.get(0)).unwrap();
        assert_eq!(rows, 0, "{table}");
    }
    fp.close().await;
    drop(fp);
}

/// A process that stops in the middle of a transaction keeps SQLite's write lock. Nobody is granted, and
/// the error says what to look for.
#[tokio::test]
async fn a_file_that_somebody_else_keeps_is_unreachable_not_a_hang() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let stopped = Connection::open(&place.path).unwrap();
    stopped.execute_batch("BEGIN IMMEDIATE").unwrap();
    let error = fp.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("busy"), "{error}");
    stopped.execute_batch("ROLLBACK").unwrap();
    let _guard = fp.lock("x").acquire_within(Duration::from_secs(10)).await.unwrap();
}

/// A wait outlasts an outage, but not what only somebody's doing ends.
#[tokio::test]
async fn a_wait_on_a_damaged_file_ends() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    // Changed by another, so that the client reads it anew.
    edit(&place.path, "UPDATE store SET epoch = epoch; PRAGMA wal_checkpoint(TRUNCATE)");
    std::fs::write(&place.path, "no database, ".repeat(10_000)).unwrap();
    let error = within(fp.lock("x").acquire()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("damaged"), "{error}");
}

#[tokio::test]
async fn a_wait_without_the_directory_of_presence_files_ends() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    std::fs::remove_dir_all(place.path.with_extension("db.d")).unwrap();
    let error = within(fp.lock("x").acquire()).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    assert!(error.to_string().contains("connect again"), "{error}");
}

#[test]
fn a_wait_without_open_files_ends() {
    let place = place();
    let url = other::url(&place.path);
    let said = other::Other::start(None, "022; ulimit -n 64", "many", &url).says();
    assert!(said.starts_with("error") && said.contains("raise ulimit -n"), "{said}");
}

/// A grant that was refused for want of time must not come back later: whatever the slow transaction did
/// is undone in the background (P6).
#[tokio::test]
async fn an_acquire_that_timed_out_in_the_store_is_undone() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let stopped = Connection::open(&place.path).unwrap();
    stopped.execute_batch("BEGIN IMMEDIATE").unwrap();
    let limit = Duration::from_millis(200);
    let error = fp.lock("x").acquire_within(limit).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    stopped.execute_batch("ROLLBACK").unwrap();
    fp.close().await;
    let other = connect(&place.path).await.unwrap();
    let info = other.inspect("x").await.unwrap();
    assert_eq!((info.holder, info.waiting), (None, 0));
}
