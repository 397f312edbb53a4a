//! How a batch changes the order of requests, step by step: on one thread a future only advances when it is polled.

use std::future::poll_fn;
use std::sync::Arc;
use std::task::Poll;

use fencepost_core::{Label, LockName, OwnerId, Ttl};
use fencepost_testkit::Redis as Server;
use tokio::runtime::Handle;

use super::*;
use crate::clock::BootClock;

/// Polls a future once. It is not ready, because a reply takes a round trip.
async fn send(future: &mut (impl Future + Unpin)) {
    let ready =
        poll_fn(|context| Poll::Ready(std::pin::Pin::new(&mut *future).poll(context).is_ready()));
    assert!(!ready.await, "an answer without a round trip");
}

/// A waiter's poll is in a batch when its caller goes. The release is sent at once, because no other caller waits for
/// a reply. `noted`: the client knows that a poll is open.
async fn release_overtakes_the_batch(noted: bool) {
    let server = Server::builder().start().unwrap();
    let options = RedisOptions::new(server.address().to_string());
    let clock = Arc::new(BootClock);
    let context = BackendContext::new(clock, Handle::current());
    let redis = Redis::open(options, &context).await.unwrap();
    let name = LockName::new("x").unwrap();
    let grant = |owner| GrantId { name: name.clone(), owner: OwnerId::from_bits(owner) };
    let request = Request::new(grant(7), Ttl::MAX, Label::new("waiter").unwrap());
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
async fn acquire_in_a_batch_after_its_release_is_refused() {
    release_overtakes_the_batch(true).await;
}

/// Control: without the note the lock is granted to nobody.
#[tokio::test]
async fn control_acquire_in_a_batch_without_the_note_is_granted() {
    release_overtakes_the_batch(false).await;
}
