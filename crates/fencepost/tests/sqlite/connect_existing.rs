//! Reads create nothing.

use fencepost::backends::sqlite::SqliteOptions;
use fencepost::{ErrorKind, Fencepost};

use super::other_process::url;
use super::{connect, store_file, used};

#[tokio::test]
async fn missing_store_is_shown_as_an_empty_one() {
    let store_file = store_file();
    let fp = Fencepost::connect_existing(&url(&store_file.path)).await.unwrap();
    assert!(fp.list().await.unwrap().is_empty());
    assert!(fp.inspect("x").await.unwrap().holder.is_none());
    assert!(fp.break_lock("x").await.unwrap().is_none());
    assert!(fp.once_records().await.unwrap().is_empty());
    let error = fp.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.one_line().contains(&*store_file.path.to_string_lossy()), "{error}");
    let error = fp.once("k").run(async |_| Ok::<_, fencepost::Error>("")).await.unwrap_err();
    assert!(error.one_line().contains("no store"), "{error}");
    assert!(!store_file.path.parent().unwrap().exists(), "nothing was made");
    let guarantees = fp.guarantees();
    let made = connect(&store_file.path).await.unwrap();
    assert_eq!(made.guarantees(), guarantees, "as it would be");
}

#[tokio::test]
async fn store_created_later_is_seen() {
    let store_file = store_file();
    let fp = Fencepost::connect_existing(&url(&store_file.path)).await.unwrap();
    let mut watch = fp.watch("x").unwrap();
    assert!(watch.next().await.unwrap().holder.is_none());
    let later = tokio::spawn(async move { watch.next().await });
    let made = connect(&store_file.path).await.unwrap();
    let guard = made.lock("x").acquire().await.unwrap();
    let seen = super::within(later).await.unwrap().unwrap();
    assert_eq!(seen.holder.unwrap().token, Some(guard.token()));
    assert_eq!(fp.list().await.unwrap().len(), 1);
    // Now it is a store like any other.
    guard.release().await.unwrap();
    fp.lock("x").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn reads_create_no_file() {
    let store_file = store_file();
    used(&store_file.path, true).await;
    let directory = store_file.path.with_extension("db.d");
    std::fs::remove_dir_all(&directory).unwrap();
    let fp = Fencepost::connect_existing(&url(&store_file.path)).await.unwrap();
    assert_eq!(fp.list().await.unwrap().len(), 1);
    assert!(fp.inspect("x").await.unwrap().holder.is_some());
    assert!(!directory.exists());
    // An empty file is not a store yet.
    let empty = store_file.path.with_file_name("empty.db");
    std::fs::write(&empty, "").unwrap();
    let fp = Fencepost::connect_existing(&url(&empty)).await.unwrap();
    assert!(fp.list().await.unwrap().is_empty());
    assert_eq!(std::fs::metadata(&empty).unwrap().len(), 0);
    assert_eq!(used(&empty, false).await, 1, "a lock sets it up");
}

/// A path that no URL can name.
#[tokio::test]
async fn typed_options_open_the_same_store() {
    let store_file = store_file();
    let path = store_file.path.with_file_name("what?.db");
    let options = || SqliteOptions::new(&path);
    let missing = Fencepost::connect_existing(options()).await.unwrap();
    assert!(missing.list().await.unwrap().is_empty());
    assert!(!path.exists(), "nothing was made");
    let fp = Fencepost::connect(options()).await.unwrap();
    let guard = fp.lock("x").acquire().await.unwrap();
    assert!(path.exists());
    let options = options();
    let listed = tokio::task::spawn_blocking(move || {
        let fp = fencepost::blocking::Fencepost::connect(options.clone())?;
        assert!(fp.lock("x").try_acquire()?.is_none());
        fencepost::blocking::Fencepost::connect_existing(options)?.list()
    });
    assert_eq!(super::within(listed).await.unwrap().unwrap().len(), 1);
    guard.release().await.unwrap();
    let error = Fencepost::connect(SqliteOptions::new("")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
}
