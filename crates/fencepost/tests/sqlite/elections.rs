//! Elections in the file: the leader's value ends with its grant.

use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Leader, Value};

use super::records::LONG;
use super::{connect, store_file};

const SOON: Duration = Duration::from_secs(30);

fn value(leader: Option<Leader>) -> Option<String> {
    leader.and_then(|leader| leader.value).map(|value| value.text().to_string())
}

async fn in_time<T>(future: impl Future<Output = T>) -> T {
    tokio::select! {
        value = future => value,
        () = BootClock.alarm(BootClock.now() + SOON) => panic!("it should come soon"),
    }
}

#[tokio::test]
async fn leader_is_shown_with_its_value() {
    let store_file = store_file();
    let (ours, theirs) =
        (connect(&store_file.path).await.unwrap(), connect(&store_file.path).await.unwrap());
    let election = ours.election("e").ttl(LONG);
    let watched = theirs.election("e");
    let mut observer = watched.observe().unwrap();
    assert_eq!(in_time(observer.next()).await.unwrap(), None);

    let leadership = election.campaign("first").await.unwrap();
    assert_eq!(value(in_time(observer.next()).await.unwrap()).as_deref(), Some("first"));
    leadership.proclaim([0, 255]).await.unwrap();
    let seen = in_time(observer.next()).await.unwrap().unwrap();
    assert_eq!(
        (seen.term, seen.value),
        (Some(leadership.term()), Some(Value::from_store(&[0, 255])))
    );
    // A plain renewal keeps the value.
    theirs.renew("e", leadership.guard().owner(), None).await.unwrap();
    let leader = watched.leader().await.unwrap().unwrap();
    assert_eq!(leader.value.unwrap().as_bytes(), [0, 255]);
    let listed = theirs.list().await.unwrap().remove(0).holder.unwrap();
    assert_eq!(listed.value.unwrap().as_bytes(), [0, 255]);

    // The waiter has another value, which is shown once it leads.
    let next = tokio::spawn({
        let election = watched.clone().ttl(LONG);
        async move { election.campaign("second").await }
    });
    while theirs.inspect("e").await.unwrap().waiting == 0 {
        tokio::task::yield_now().await;
    }
    let error = election
        .clone()
        .wait_timeout(Duration::from_millis(50))
        .campaign("third")
        .await
        .unwrap_err();
    assert_eq!(error.holder().unwrap().value, Some(Value::from_store(&[0, 255])));
    leadership.resign().await.unwrap();
    let next = in_time(next).await.unwrap().unwrap();
    assert_eq!(value(watched.leader().await.unwrap()).as_deref(), Some("second"));
    assert!(Some(next.term()) > seen.term);
    next.resign().await.unwrap();

    // A lock of that name shares the queue, and has no value.
    let guard = ours.lock("e").acquire().await.unwrap();
    let leader = watched.leader().await.unwrap().unwrap();
    assert_eq!((leader.term, leader.value), (Some(guard.token()), None));
}

#[tokio::test]
async fn overtaken_leader_cannot_proclaim() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let election = fp.election("e").ttl(LONG);
    let old = election.campaign("old").await.unwrap();
    fp.break_lock("e").await.unwrap();
    let new = election.campaign("new").await.unwrap();
    assert!(old.proclaim("still me").await.is_err());
    assert_eq!(value(election.leader().await.unwrap()).as_deref(), Some("new"));
    assert!(new.term() > old.term());
}
