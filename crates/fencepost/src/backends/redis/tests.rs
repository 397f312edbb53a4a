//! What a batch does to the order of requests, step by step: on one thread a future moves only when it is polled.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use fencepost_core::{Label, LockName, OwnerId, Ttl};
use fencepost_testkit::Redis as Server;
use tokio::runtime::Handle;

use tokio_util::task::TaskTracker;

use super::*;
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
    let grant = |owner| GrantId { name: name.clone(), owner: OwnerId::from_bits(owner) };
    let request = Request {
        grant: grant(7),
        ttl: Ttl::MAX,
        label: Label::new("waiter").unwrap(),
        value: None,
        liveness: Liveness::Process,
        loss: LossSignal::unheard(),
    };
    server.command(&["SET", "x", "theirs", "PX", "60000"]).unwrap().text().unwrap();
    let limit = BootClock.now() + CALL_TIMEOUT;
    let queued = redis.try_acquire(request.clone(), Queue::Join, limit).await.unwrap();
    assert!(matches!(queued.value, Acquired::Queued { .. }));
    // From here on the server knows the scripts.
    redis.release(grant(8), limit).await.unwrap().value.unwrap_err();
    redis.inspect(name.clone(), limit).await.unwrap();

    let mut other = redis.inspect(name.clone(), limit);
    send(&mut other).await;
    let mut poll = redis.try_acquire(request, Queue::Join, limit);
    send(&mut poll).await;
    drop((other, poll));
    server.command(&["DEL", "x"]).unwrap();
    if !noted {
        redis.unanswered.clear(OwnerId::from_bits(7));
    }
    redis.release(grant(7), limit).await.unwrap().value.expect("it had a position");
    let holder = redis.inspect(name.clone(), limit).await.unwrap().value.holder;
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
