//! A position that was taken elsewhere, on a real etcd.

use fencepost_core::{Label, LockName, OwnerId};
use fencepost_testkit::Etcd as Server;

use super::*;
use crate::backend::{Backend as _, Grant, GrantId, Liveness, LossSignal, Queue};
use crate::backends::etcd::testing::open;

const SOON: Duration = Duration::from_secs(15);

fn request(owner: u128) -> Request {
    Request {
        grant: GrantId { name: LockName::new("x").unwrap(), owner: OwnerId::from_bits(owner) },
        ttl: Ttl::new(Duration::from_mins(2)).unwrap(),
        label: Label::new("web-1").unwrap(),
        value: None,
        liveness: Liveness::LeaseOnly,
        loss: LossSignal::default(),
    }
}

#[tokio::test]
async fn another_client_waits_at_a_position_and_gone_ones_are_lost() {
    let server = Server::builder().start().unwrap();
    let (one, other) = (open(server.address()).await, open(server.address()).await);
    let soon = one.0.now() + SOON;
    let holder = one.try_acquire(request(1), Queue::Join, soon).await.unwrap().value;
    let Acquired::Granted(Grant { token: first, .. }) = holder else { panic!("{holder:?}") };
    let queued = one.try_acquire(request(2), Queue::Join, soon).await.unwrap().value;
    assert!(matches!(queued, Acquired::Queued { .. }), "{queued:?}");

    // At its limit the wait leaves the position where it is.
    let limit = other.0.now() + Duration::from_millis(300);
    let late = other.wait(request(2), limit).await.unwrap().value;
    assert!(matches!(late, Acquired::Queued { .. }), "{late:?}");
    let waiting = tokio::spawn({
        let other = Arc::clone(&other);
        async move { other.wait(request(2), soon).await }
    });
    one.release(request(1).grant, soon).await.unwrap().value.unwrap();
    let reply = waiting.await.unwrap().unwrap();
    let Acquired::Granted(Grant { token, queued, .. }) = reply.value else { panic!("{reply:?}") };
    assert!(token > first && !queued, "{token} after {first}");

    // What its owner released is no position, though the client that took it waits for it.
    other.release(request(2).grant, soon).await.unwrap().value.unwrap();
    let gone = one.wait(request(2), soon).await.unwrap().value;
    assert!(matches!(gone, Acquired::PlaceLost), "{gone:?}");
}
