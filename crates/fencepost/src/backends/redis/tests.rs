//! What a batch does to the order of requests, step by step: on one thread a future moves only when it is polled.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use fencepost_core::{Label, LockName, OwnerId, Ttl};
use fencepost_testkit::Redis as Server;
use tokio::runtime::Handle;

use super::*;
use tokio_util::task::TaskTracker;

use crate::backend::{Liveness, LossSignal};
use crate::clock::BootClock;

/// Polls a future once. It is not ready: its answer takes a moment.
async fn send(future: &mut (impl Future + Unpin)) {
    let ready =
        poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_ready()));
    assert!(!ready.await, "an answer without a round trip");
}

/// A waiter's poll stands in a batch when its caller goes, and the release is sent at once, since nobody else waits for
/// an answer by then. `noted`: the client knows that a poll is open.
async fn release_overtakes_the_batch(noted: bool) {
    let server = Server::builder().start().unwrap();
    let url = RedisUrl::parse("redis", &format!("//{}", server.address())).unwrap();
    let clock = Arc::new(BootClock);
    let around =
        Surroundings { clock, runtime: Handle::current(), tasks: TaskTracker::new(), create: true };
    let redis = Redis::open(url, &around).await.unwrap();
    let name = LockName::new("x").unwrap();
    let keys = redis.prefix.keys(&name).unwrap();
    let owner = OwnerId::from_bits(7);
    let request = Request {
        name: name.clone(),
        owner,
        ttl: Ttl::MAX,
        label: Label::new("waiter").unwrap(),
        value: None,
        liveness: Liveness::Process,
        loss: LossSignal::unheard(),
    };
    server.command(&["SET", "x", "theirs", "PX", "60000"]).unwrap().text().unwrap();
    let queued = redis.ask(&request, keys, true).await.unwrap();
    assert!(matches!(queued, Asked::InLine { .. }));
    // From here on the server knows the scripts.
    let nobody = OwnerId::from_bits(8);
    redis.release(name.clone(), nobody).await.unwrap_err();
    redis.look(&name, 0).await.unwrap();

    let mut other = Box::pin(redis.look(&name, 0));
    send(&mut other).await;
    let mut poll = Box::pin(redis.ask(&request, keys, true));
    send(&mut poll).await;
    drop((other, poll));
    server.command(&["DEL", "x"]).unwrap();
    if !noted {
        redis.link.forget_unanswered(owner);
    }
    redis.release(name.clone(), owner).await.expect("it had a position");
    let holder = redis.look(&name, 0).await.unwrap().holder;
    assert_eq!(holder.is_some(), !noted, "{holder:?}");
}

#[tokio::test]
async fn acquire_in_a_batch_that_its_release_overtook_is_refused() {
    release_overtakes_the_batch(true).await;
}

/// The control: without the note it is granted to nobody.
#[tokio::test]
async fn without_the_note_an_acquire_in_a_batch_is_granted_to_nobody() {
    release_overtakes_the_batch(false).await;
}
