//! Elections in the file: what a leader says goes with its grant.

use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Leader, Value};

use super::records::LONG;
use super::{connect, place};

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
async fn a_leader_is_known_by_what_it_says() {
    let place = place();
    let (ours, theirs) = (connect(&place.path).await.unwrap(), connect(&place.path).await.unwrap());
    let election = ours.election("e").ttl(LONG);
    let watched = theirs.election("e");
    let mut observer = watched.observe().unwrap();
    assert_eq!(in_time(observer.next()).await.unwrap(), None);

    let leadership = election.campaign("first").await.unwrap();
    assert_eq!(value(in_time(observer.next()).await.unwrap()).as_deref(), Some("first"));
    leadership.proclaim([0, 255]).await.unwrap();
    let seen = in_time(observer.next()).await.unwrap().unwrap();
    assert_eq!((seen.term, seen.value), (Some(leadership.term()), Some(Value::found(&[0, 255]))));
    // A plain renewal leaves it as it is.
    theirs.renew("e", leadership.guard().owner(), None).await.unwrap();
    let leader = watched.leader().await.unwrap().unwrap();
    assert_eq!(leader.value.unwrap().as_bytes(), [0, 255]);
    let listed = theirs.list().await.unwrap().remove(0).holder.unwrap();
    assert_eq!(listed.value.unwrap().as_bytes(), [0, 255]);

    // The one who waits says something else, and that is told once it leads.
    let next = tokio::spawn({
        let election = watched.clone().ttl(LONG);
        async move { election.campaign("second").await }
    });
    while theirs.inspect("e").await.unwrap().waiting == 0 {
        tokio::task::yield_now().await;
    }
    let error = election.campaign_within("third", Duration::from_millis(50)).await.unwrap_err();
    assert_eq!(error.holder().unwrap().value, Some(Value::found(&[0, 255])));
    leadership.resign().await.unwrap();
    let next = in_time(next).await.unwrap().unwrap();
    assert_eq!(value(watched.leader().await.unwrap()).as_deref(), Some("second"));
    assert!(Some(next.term()) > seen.term);
    next.resign().await.unwrap();

    // A lock of that name shares the queue, and says nothing.
    let guard = ours.lock("e").acquire().await.unwrap();
    let leader = watched.leader().await.unwrap().unwrap();
    assert_eq!((leader.term, leader.value), (Some(guard.token()), None));
}

#[tokio::test]
async fn a_leader_that_was_overtaken_proclaims_nothing() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let election = fp.election("e").ttl(LONG);
    let old = election.campaign("old").await.unwrap();
    fp.break_lock("e").await.unwrap();
    let new = election.campaign("new").await.unwrap();
    assert!(old.proclaim("still me").await.is_err());
    assert_eq!(value(election.leader().await.unwrap()).as_deref(), Some("new"));
    assert!(new.term() > old.term());
}
