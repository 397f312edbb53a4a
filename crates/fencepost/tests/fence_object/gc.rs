//! Garbage collection of data objects that are not current any more.

use std::sync::mpsc::channel;
use std::time::Duration;

use fencepost::ErrorKind;
use fencepost::fences::object::object_store::ObjectStoreExt as _;
use fencepost_testkit::gate::Act;

use super::{Site, block_on, fails, fencing, text};

#[tokio::test]
async fn overwritten_data_is_removed_and_the_rest_stays() {
    let site = Site::new();
    let pointer = site.fence().await.pointer("p").unwrap();
    assert_eq!(pointer.gc(Duration::ZERO).await.unwrap(), 0, "there is nothing yet");
    for number in 0..5 {
        pointer.write(&fencing(33), number.to_string()).await.unwrap();
    }
    for path in ["p.data/README", "p.data/deeper/33-00000000000000ff"] {
        site.store().put(&site.path(path), "not ours".into()).await.unwrap();
    }
    assert_eq!(pointer.gc(Duration::from_hours(1)).await.unwrap(), 0, "they are young");
    assert_eq!(site.files("p.data").await.len(), 7);
    assert_eq!(pointer.gc(Duration::ZERO).await.unwrap(), 4);
    assert_eq!(site.files("p.data").await.len(), 3, "the current one, and what is not ours");
    assert_eq!(text(&pointer).await, "4");
    assert_eq!(pointer.gc(Duration::ZERO).await.unwrap(), 0);
    pointer.remove(&fencing(33)).await.unwrap();
    assert_eq!(pointer.gc(Duration::ZERO).await.unwrap(), 1, "what was removed counts no more");
    assert_eq!(pointer.peek().await.unwrap(), None);
}

/// The gc runs between the writer's data and its pointer: what it publishes must exist.
#[tokio::test(flavor = "multi_thread")]
async fn writer_whose_data_was_removed_puts_it_again() {
    let site = Site::new();
    let gate = site.gate();
    let behind = site.fence_behind(&gate).await.pointer("p").unwrap();
    behind.write(&fencing(33), "old").await.unwrap();
    let collector = site.clone();
    let collect = move || {
        let deleted = block_on(async {
            let pointer = collector.fence().await.pointer("p").unwrap();
            pointer.gc(Duration::ZERO).await.unwrap()
        });
        assert_eq!(deleted, 1, "the data of the writer that sleeps");
    };
    gate.once("PUT", site.ends("p"), Act::Before(Box::new(collect)));
    behind.write(&fencing(33), "new").await.unwrap();
    assert_eq!(gate.waiting(), 0);
    assert_eq!(text(&behind).await, "new");
    assert_eq!(site.files("p.data").await.len(), 2);
}

/// A gc lists first and then raises the count. In the other order it would list and remove the data of a writer that
/// has read the new count and is about to publish.
#[tokio::test(flavor = "multi_thread")]
async fn writer_that_starts_during_the_listing_loses_nothing() {
    let site = Site::new();
    let (collected, written) = (site.gate(), site.gate());
    let collector = site.fence_behind(&collected).await.pointer("p").unwrap();
    let writer = site.fence_behind(&written).await.pointer("p").unwrap();
    for data in ["older", "old"] {
        collector.write(&fencing(33), data).await.unwrap();
    }
    let ((arrived, arrival), (go_on, gone_on)) = (channel(), channel::<()>());
    let hold = move || {
        arrived.send(()).unwrap();
        gone_on.recv().unwrap();
    };
    written.once("PUT", site.ends("p"), Act::Before(Box::new(hold)));
    let (hand, thread) = channel();
    let begin = move || {
        let write = move || block_on(async { writer.write(&fencing(33), "new").await });
        hand.send(std::thread::spawn(write)).unwrap();
        arrival.recv_timeout(Duration::from_mins(1)).unwrap();
    };
    // The listing is a GET of the bucket.
    collected.once("GET", "list-type", Act::Before(Box::new(begin)));
    assert_eq!(collector.gc(Duration::ZERO).await.unwrap(), 2, "the oldest, and the writer's");
    go_on.send(()).unwrap();
    thread.recv().unwrap().join().unwrap().unwrap();
    assert_eq!(collected.waiting() + written.waiting(), 0);
    assert_eq!(text(&collector).await, "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn reader_whose_data_was_removed_follows_the_pointer_again() {
    let site = Site::new();
    let gate = site.gate();
    let behind = site.fence_behind(&gate).await.pointer("p").unwrap();
    behind.write(&fencing(33), "old").await.unwrap();
    let writer = site.clone();
    let overwrite = move || {
        block_on(async {
            let pointer = writer.fence().await.pointer("p").unwrap();
            pointer.write(&fencing(33), "new").await.unwrap();
            assert_eq!(pointer.gc(Duration::ZERO).await.unwrap(), 1);
        });
    };
    gate.once("GET", format!("{}/p.data/", site.folder), Act::Before(Box::new(overwrite)));
    assert_eq!(behind.read(&fencing(33)).await.unwrap().unwrap(), "new");
    assert_eq!(gate.waiting(), 0);
}

/// Our gc never removes them; a rule of the bucket might.
#[tokio::test]
async fn missing_data_is_reported() {
    let site = Site::new();
    let pointer = site.fence().await.pointer("p").unwrap();
    pointer.write(&fencing(33), "x").await.unwrap();
    let file = site.files("p.data").await.pop().unwrap();
    let path = site.path(&format!("p.data/{file}"));
    site.store().put(&path, "longer".into()).await.unwrap();
    fails(pointer.peek().await, ErrorKind::Refused, &[&file, "was changed"]);
    site.store().delete(&path).await.unwrap();
    fails(pointer.read(&fencing(34)).await, ErrorKind::Refused, &[&file, "is not there"]);
    pointer.write(&fencing(34), "again").await.unwrap();
    assert_eq!(text(&pointer).await, "again");
}
