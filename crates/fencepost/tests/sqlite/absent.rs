//! Who only looks makes nothing.

use fencepost::{ErrorKind, Fencepost};

use super::other::url;
use super::{connect, place, used};

#[tokio::test]
async fn a_store_that_is_not_there_is_shown_as_an_empty_one() {
    let place = place();
    let fp = Fencepost::connect_existing(&url(&place.path)).await.unwrap();
    assert!(fp.list().await.unwrap().is_empty());
    assert!(fp.inspect("x").await.unwrap().holder.is_none());
    assert!(fp.break_lock("x").await.unwrap().is_none());
    assert!(fp.once_entries().await.unwrap().is_empty());
    let error = fp.lock("x").try_acquire().await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains(&*place.path.to_string_lossy()), "{error}");
    let error = fp.once("k").run(async |_| Ok::<_, fencepost::Error>("")).await.unwrap_err();
    assert!(error.to_string().contains("no store"), "{error}");
    assert!(!place.path.parent().unwrap().exists(), "nothing was made");
    let guarantees = fp.guarantees();
    let made = connect(&place.path).await.unwrap();
    assert_eq!(made.guarantees(), guarantees, "as it would be");
}

#[tokio::test]
async fn a_store_that_is_made_later_is_seen() {
    let place = place();
    let fp = Fencepost::connect_existing(&url(&place.path)).await.unwrap();
    let mut watch = fp.watch("x").unwrap();
    assert!(watch.next().await.unwrap().holder.is_none());
    let later = tokio::spawn(async move { watch.next().await });
    let made = connect(&place.path).await.unwrap();
    let guard = made.lock("x").acquire().await.unwrap();
    let seen = super::within(later).await.unwrap().unwrap();
    assert_eq!(seen.holder.unwrap().token, Some(guard.token()));
    assert_eq!(fp.list().await.unwrap().len(), 1);
    // It is a store like any other now.
    guard.release().await.unwrap();
    fp.lock("x").acquire().await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn looking_at_a_store_makes_no_file() {
    let place = place();
    used(&place.path, true).await;
    let directory = place.path.with_extension("db.d");
    std::fs::remove_dir_all(&directory).unwrap();
    let fp = Fencepost::connect_existing(&url(&place.path)).await.unwrap();
    assert_eq!(fp.list().await.unwrap().len(), 1);
    assert!(fp.inspect("x").await.unwrap().holder.is_some());
    assert!(!directory.exists());
    // An empty file is not a store yet.
    let empty = place.path.with_file_name("empty.db");
    std::fs::write(&empty, "").unwrap();
    let fp = Fencepost::connect_existing(&url(&empty)).await.unwrap();
    assert!(fp.list().await.unwrap().is_empty());
    assert_eq!(std::fs::metadata(&empty).unwrap().len(), 0);
    assert_eq!(used(&empty, false).await, 1, "who locks sets it up");
}
