//! Elections: the leader's value ends with its grant.

use fencepost::{Leader, Value};
use fencepost_testkit::{Database, LONG, SOON, connect, ms, two, until_waiting, within};

fn value(leader: Option<Leader>) -> Option<String> {
    leader.and_then(|leader| leader.value).map(|value| value.text().to_string())
}

#[tokio::test]
async fn leader_is_shown_with_its_value() {
    let database = Database::fresh().unwrap();
    let (ours, theirs) = two(&database.url()).await;
    let (election, watched) = (ours.election("e").ttl(LONG), theirs.election("e").ttl(LONG));
    let mut observer = watched.observe().unwrap();
    let mut next =
        async || within(SOON, "the observer sees a change", observer.next()).await.unwrap();
    assert_eq!(next().await, None);

    let leadership = election.campaign("first").await.unwrap();
    assert_eq!(value(next().await).as_deref(), Some("first"));
    leadership.proclaim([0, 255]).await.unwrap();
    let seen = next().await.unwrap();
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
    // An empty value is a value.
    leadership.proclaim("").await.unwrap();
    assert_eq!(next().await.unwrap().value, Some(Value::from_store(b"")));

    let waiting = tokio::spawn({
        let election = watched.clone();
        async move { election.campaign("second").await }
    });
    until_waiting(&theirs, "e", 1).await;
    let error = election.clone().wait_timeout(ms(50)).campaign("third").await.unwrap_err();
    assert_eq!(error.holder().unwrap().value, Some(Value::from_store(b"")));
    leadership.resign().await.unwrap();
    let successor = within(SOON, "the next leads", waiting).await.unwrap().unwrap();
    assert_eq!(value(watched.leader().await.unwrap()).as_deref(), Some("second"));
    assert!(Some(successor.term()) > seen.term);
    successor.resign().await.unwrap();

    // A value without a grant is not shown, and its row is removed.
    let values = "select count(*) from fencepost.current_values(null)";
    assert_eq!(database.psql(values).unwrap(), "0\n");
    assert_eq!(database.psql("select fencepost.gc_candidate_values()").unwrap(), "1\n");
    // A lock of that name shares the queue, and has no value, even if a leader had one before.
    let guard = ours.lock("e").ttl(LONG).acquire().await.unwrap();
    let leader = watched.leader().await.unwrap().unwrap();
    assert_eq!((leader.term, leader.value), (Some(guard.token()), None));
    assert_eq!(theirs.list().await.unwrap().remove(0).holder.unwrap().value, None);
}

/// gc keeps the rows of leaders, and an error for a waiter contains the leader's value.
#[tokio::test]
async fn value_stays_and_is_shown_to_all_waiters() {
    let database = Database::fresh().unwrap();
    let (ours, theirs) = two(&database.url()).await;
    let _leadership = ours.election("e").ttl(LONG).campaign("me").await.unwrap();
    assert_eq!(database.psql("select fencepost.gc_candidate_values()").unwrap(), "0\n");
    let error = theirs.lock("e").wait_timeout(ms(50)).acquire().await.unwrap_err();
    assert_eq!(error.holder().unwrap().value, Some(Value::from_store(b"me")));
}

#[tokio::test]
async fn overtaken_leader_cannot_proclaim() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    let election = client.election("e").ttl(LONG);
    let old = election.campaign("old").await.unwrap();
    client.break_lock("e").await.unwrap();
    let new = election.campaign("new").await.unwrap();
    assert!(old.proclaim("still me").await.is_err());
    assert_eq!(value(election.leader().await.unwrap()).as_deref(), Some("new"));
    assert!(new.term() > old.term());
}
