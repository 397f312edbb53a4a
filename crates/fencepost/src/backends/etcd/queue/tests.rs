//! A position that another client took, on a real etcd.

use fencepost_testkit::Etcd as Server;

use super::*;
use crate::backend::{Backend as _, Grant, Queue};
use crate::backends::etcd::testing::{open, request};

const SOON: Duration = Duration::from_secs(15);

#[tokio::test]
async fn another_client_waits_at_a_position_and_a_released_one_is_lost() {
    let server = Server::builder().start().unwrap();
    let (one, other) = (open(server.address()).await, open(server.address()).await);
    let soon = one.0.now() + SOON;
    let holder = one.try_acquire(request("x", 1), Queue::Join, soon).await.unwrap().value;
    let Acquired::Granted(Grant { token: first, .. }) = holder else { panic!("{holder:?}") };
    let queued = one.try_acquire(request("x", 2), Queue::Join, soon).await.unwrap().value;
    assert!(matches!(queued, Acquired::Queued { .. }), "{queued:?}");

    // When the wait reaches its limit, the position stays.
    let limit = other.0.now() + Duration::from_millis(300);
    let late = other.wait(request("x", 2), limit).await.unwrap().value;
    assert!(matches!(late, Acquired::Queued { .. }), "{late:?}");
    let waiting = tokio::spawn({
        let other = Arc::clone(&other);
        async move { other.wait(request("x", 2), soon).await }
    });
    one.release(request("x", 1).grant, soon).await.unwrap().value.unwrap();
    let reply = waiting.await.unwrap().unwrap();
    let Acquired::Granted(Grant { token, needs_confirmation: queued, .. }) = reply.value else {
        panic!("{reply:?}")
    };
    assert!(token > first && !queued, "{token} after {first}");

    // A released position is lost, also for the client that took it and waits at it.
    other.release(request("x", 2).grant, soon).await.unwrap().value.unwrap();
    let gone = one.wait(request("x", 2), soon).await.unwrap().value;
    assert!(matches!(gone, Acquired::PositionLost), "{gone:?}");
}
