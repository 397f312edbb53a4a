//! Elections on the server: what a leader says goes with its grant.

use fencepost::{Leader, Value};
use fencepost_testkit::{Database, LONG, SOON, connect, ms, two, until_waiting, within};

fn value(leader: Option<Leader>) -> Option<String> {
    leader.and_then(|leader| leader.value).map(|value| value.text().to_string())
}

#[tokio::test]
async fn a_leader_is_known_by_what_it_says() {
    let database = Database::fresh().unwrap();
    let (ours, theirs) = two(&database.url()).await;
    let (election, watched) = (ours.election("e").ttl(LONG), theirs.election("e").ttl(LONG));
    let mut observer = watched.observe().unwrap();
    let mut next = async || within(SOON, "it is told", observer.next()).await.unwrap();
    assert_eq!(next().await, None);

    let leadership = election.campaign("first").await.unwrap();
    assert_eq!(value(next().await).as_deref(), Some("first"));
    leadership.proclaim([0, 255]).await.unwrap();
    let seen = next().await.unwrap();
    assert_eq!((seen.term, seen.value), (Some(leadership.term()), Some(Value::found(&[0, 255]))));
    // A plain renewal leaves it as it is.
    theirs.renew("e", leadership.guard().owner(), None).await.unwrap();
    let leader = watched.leader().await.unwrap().unwrap();
    assert_eq!(leader.value.unwrap().as_bytes(), [0, 255]);
    let listed = theirs.list().await.unwrap().remove(0).holder.unwrap();
    assert_eq!(listed.value.unwrap().as_bytes(), [0, 255]);
    // An empty value is one.
    leadership.proclaim("").await.unwrap();
    assert_eq!(next().await.unwrap().value, Some(Value::found(b"")));

    let waiting = tokio::spawn({
        let election = watched.clone();
        async move { election.campaign("second").await }
    });
    until_waiting(&theirs, "e", 1).await;
    let error = election.campaign_within("third", ms(50)).await.unwrap_err();
    assert_eq!(error.holder().unwrap().value, Some(Value::found(b"")));
    leadership.resign().await.unwrap();
    let successor = within(SOON, "the next leads", waiting).await.unwrap().unwrap();
    assert_eq!(value(watched.leader().await.unwrap()).as_deref(), Some("second"));
    assert!(Some(successor.term()) > seen.term);
    successor.resign().await.unwrap();

    // What nobody says any more is not shown, and its row goes.
    let said = "select count(*) from fencepost.leaders_now(null)";
    assert_eq!(database.psql(said).unwrap(), "0\n");
    assert_eq!(database.psql("select fencepost.tidy_leaders()").unwrap(), "1\n");
    // A lock of that name shares the queue, and says nothing: also where a leader said something before.
    let guard = ours.lock("e").ttl(LONG).acquire().await.unwrap();
    let leader = watched.leader().await.unwrap().unwrap();
    assert_eq!((leader.term, leader.value), (Some(guard.token()), None));
    assert_eq!(theirs.list().await.unwrap().remove(0).holder.unwrap().value, None);
}

/// Rows of those who lead are not tidied away, and who waits for a lock that a leader has is told what it says.
#[tokio::test]
async fn what_a_leader_says_stays_and_is_told_to_all() {
    let database = Database::fresh().unwrap();
    let (ours, theirs) = two(&database.url()).await;
    let _leadership = ours.election("e").ttl(LONG).campaign("me").await.unwrap();
    assert_eq!(database.psql("select fencepost.tidy_leaders()").unwrap(), "0\n");
    let error = theirs.lock("e").acquire_within(ms(50)).await.unwrap_err();
    assert_eq!(error.holder().unwrap().value, Some(Value::found(b"me")));
}

#[tokio::test]
async fn a_leader_that_was_overtaken_proclaims_nothing() {
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
