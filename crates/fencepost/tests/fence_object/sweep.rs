//! Data objects that count no more.

use std::sync::mpsc::channel;
use std::time::Duration;

use fencepost::ErrorKind;
use fencepost::object_store::ObjectStoreExt as _;
use fencepost_testkit::gate::Act;

use super::{Site, fails, name, now, text, token};

#[tokio::test]
async fn what_was_overwritten_is_swept_and_the_rest_stays() {
    let site = Site::new();
    let pointer = site.fence().await.pointer("p").unwrap();
    assert_eq!(pointer.sweep(Duration::ZERO).await.unwrap(), 0, "there is nothing yet");
    for number in 0..5 {
        pointer.write(&name(), token(33), number.to_string()).await.unwrap();
    }
    for path in ["p.data/README", "p.data/deeper/33-00000000000000ff"] {
        site.store().put(&site.path(path), "not ours".into()).await.unwrap();
    }
    assert_eq!(pointer.sweep(Duration::from_hours(1)).await.unwrap(), 0, "they are young");
    assert_eq!(site.files("p.data").await.len(), 7);
    assert_eq!(pointer.sweep(Duration::ZERO).await.unwrap(), 4);
    assert_eq!(site.files("p.data").await.len(), 3, "the current one, and what is not ours");
    assert_eq!(text(&pointer).await, "4");
    assert_eq!(pointer.sweep(Duration::ZERO).await.unwrap(), 0);
    pointer.remove(&name(), token(33)).await.unwrap();
    assert_eq!(pointer.sweep(Duration::ZERO).await.unwrap(), 1, "what was removed counts no more");
    assert_eq!(pointer.peek().await.unwrap(), None);
}

/// However long it slept between its data and the pointer: what it publishes is there.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_whose_data_were_swept_puts_them_again() {
    let site = Site::new();
    let gate = site.gate();
    let behind = site.fence_behind(&gate).await.pointer("p").unwrap();
    behind.write(&name(), token(33), "old").await.unwrap();
    let sweeper = site.clone();
    let sweep = move || {
        let swept = now(async {
            let pointer = sweeper.fence().await.pointer("p").unwrap();
            pointer.sweep(Duration::ZERO).await.unwrap()
        });
        assert_eq!(swept, 1, "the data of the writer that sleeps");
    };
    gate.once("PUT", site.ends("p"), Act::Before(Box::new(sweep)));
    behind.write(&name(), token(33), "new").await.unwrap();
    assert_eq!(gate.waiting(), 0);
    assert_eq!(text(&behind).await, "new");
    assert_eq!(site.files("p.data").await.len(), 2);
}

/// A sweep lists first and then raises the count. The other way round it would list, and remove, the data of a writer
/// that has seen the new count already and goes on to publish them.
#[tokio::test(flavor = "multi_thread")]
async fn a_writer_that_comes_while_a_sweep_lists_loses_nothing() {
    let site = Site::new();
    let (swept, written) = (site.gate(), site.gate());
    let sweeper = site.fence_behind(&swept).await.pointer("p").unwrap();
    let writer = site.fence_behind(&written).await.pointer("p").unwrap();
    for data in ["older", "old"] {
        sweeper.write(&name(), token(33), data).await.unwrap();
    }
    let ((arrived, arrival), (go_on, gone_on)) = (channel(), channel::<()>());
    let hold = move || {
        arrived.send(()).unwrap();
        gone_on.recv().unwrap();
    };
    written.once("PUT", site.ends("p"), Act::Before(Box::new(hold)));
    let (hand, thread) = channel();
    let begin = move || {
        let write = move || now(async { writer.write(&name(), token(33), "new").await });
        hand.send(std::thread::spawn(write)).unwrap();
        arrival.recv_timeout(Duration::from_mins(1)).unwrap();
    };
    // It lists by a GET of the bucket.
    swept.once("GET", "list-type", Act::Before(Box::new(begin)));
    assert_eq!(sweeper.sweep(Duration::ZERO).await.unwrap(), 2, "the oldest, and the writer's");
    go_on.send(()).unwrap();
    thread.recv().unwrap().join().unwrap().unwrap();
    assert_eq!(swept.waiting() + written.waiting(), 0);
    assert_eq!(text(&sweeper).await, "new");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_whose_data_were_swept_follows_the_pointer_again() {
    let site = Site::new();
    let gate = site.gate();
    let behind = site.fence_behind(&gate).await.pointer("p").unwrap();
    behind.write(&name(), token(33), "old").await.unwrap();
    let writer = site.clone();
    let overwrite = move || {
        now(async {
            let pointer = writer.fence().await.pointer("p").unwrap();
            pointer.write(&name(), token(33), "new").await.unwrap();
            assert_eq!(pointer.sweep(Duration::ZERO).await.unwrap(), 1);
        });
    };
    gate.once("GET", format!("{}/p.data/", site.folder), Act::Before(Box::new(overwrite)));
    assert_eq!(behind.read(&name(), token(33)).await.unwrap().unwrap(), "new");
    assert_eq!(gate.waiting(), 0);
}

/// No sweep does it; a rule of the bucket might.
#[tokio::test]
async fn data_that_somebody_deleted_are_missed() {
    let site = Site::new();
    let pointer = site.fence().await.pointer("p").unwrap();
    pointer.write(&name(), token(33), "x").await.unwrap();
    let file = site.files("p.data").await.pop().unwrap();
    let path = site.path(&format!("p.data/{file}"));
    site.store().put(&path, "longer".into()).await.unwrap();
    fails(pointer.peek().await, &ErrorKind::Refused, &[&file, "was changed"]);
    site.store().delete(&path).await.unwrap();
    fails(pointer.read(&name(), token(34)).await, &ErrorKind::Refused, &[&file, "is not there"]);
    pointer.write(&name(), token(34), "again").await.unwrap();
    assert_eq!(text(&pointer).await, "again");
}
