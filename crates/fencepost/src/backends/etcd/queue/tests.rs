//! A position that another client took, on a real etcd.

use fencepost_testkit::{Etcd as Server, EtcdCluster, until};

use super::super::locks;
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

/// A follower that is cut off answers alone what it has reached, and nothing newer.
#[tokio::test]
async fn member_that_lags_does_not_answer_alone() {
    let cluster = EtcdCluster::start().unwrap();
    let (leader, members) = (cluster.leader().unwrap(), cluster.members());
    let follower = (leader + 1) % members.len();
    let etcd = open(members[follower].address()).await.0.clone();
    let mine = request("x", 1);
    let soon = etcd.now() + SOON;
    let granted = locks::try_acquire(&etcd, mine.clone(), Queue::Join, soon).await.unwrap().value;
    let Acquired::Granted(Grant { token, .. }) = granted else { panic!("{granted:?}") };
    let (keys, made) = (etcd.prefix.keys(&mine.grant.name), token.get().cast_signed());
    let own = (lease_of(&mine.grant), made);
    let read = async |reached| {
        let limit = etcd.now() + Duration::from_millis(200);
        look(&etcd, &keys, own, Some(reached), limit).await
    };
    let others = || members.iter().enumerate().filter(|(at, _)| *at != follower);
    // It has to answer before it notices that there is no leader any more.
    until("it answers alone", async || {
        others().for_each(|(_, member)| member.stop().unwrap());
        let alone = matches!(read(made).await, Ok((Some(Ahead::Nothing), _)));
        let newer = read(made + 1000).await;
        others().for_each(|(_, member)| member.resume().unwrap());
        assert!(newer.is_err(), "{newer:?}");
        alone
    })
    .await;
    assert!(matches!(read(made + 1000).await, Ok((Some(Ahead::Nothing), _))), "the cluster does");
}
