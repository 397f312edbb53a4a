//! Elections between our clients, as every store must support them.

use std::time::Duration;

use fencepost::{Fencepost, Leader, Leadership, Observer, Value};
use tokio::task::JoinHandle;

use crate::time::{LIMIT, LONG, until, within};
use crate::until_waiting;

/// A candidate that campaigns until it leads.
pub fn campaigns(
    client: &Fencepost,
    name: &str,
    value: &[u8],
    ttl: Duration,
) -> JoinHandle<fencepost::Result<Leadership>> {
    let (election, value) = (client.election(name).ttl(ttl), value.to_vec());
    tokio::spawn(async move { election.campaign(value).await })
}

/// It leads now.
pub async fn leads(campaign: JoinHandle<fencepost::Result<Leadership>>) -> Leadership {
    within(LIMIT, "it leads", campaign).await.unwrap().unwrap()
}

/// Who leads.
pub async fn leader(client: &Fencepost, name: &str) -> Option<Leader> {
    client.election(name).leader().await.unwrap()
}

/// The leader's value.
pub async fn value_of_leader(client: &Fencepost, name: &str) -> Option<Vec<u8>> {
    Some(leader(client, name).await?.value?.as_bytes().to_vec())
}

/// Observes until this value comes, and no other term in between.
pub async fn sees(observer: &mut Observer, value: Option<&[u8]>) -> Option<Leader> {
    let wanted = value.map(|value| Value::new(value).unwrap());
    within(LIMIT, "the observer sees it", async {
        loop {
            let leader = observer.next().await.unwrap();
            if leader.as_ref().and_then(|leader| leader.value.clone()) == wanted {
                return leader;
            }
        }
    })
    .await
}

/// A leader changes its value, the next candidate waits with its own, and each leads in order.
pub async fn one_leads_after_the_other(ours: &Fencepost, theirs: &Fencepost) {
    let mut observer = theirs.election("e").observe().unwrap();
    assert_eq!(within(LIMIT, "it looks", observer.next()).await.unwrap(), None);
    let first = leads(campaigns(ours, "e", b"first", LONG)).await;
    assert_eq!(sees(&mut observer, Some(b"first")).await.unwrap().term, Some(first.term()));
    // Values of any content, and an empty one.
    let odd = [&[0, 255, b' ', b'\n', b'%'][..], &[7; Value::MAX_BYTES], b""];
    for words in odd {
        first.proclaim(words).await.unwrap();
        assert_eq!(value_of_leader(theirs, "e").await.as_deref(), Some(words));
        assert_eq!(sees(&mut observer, Some(words)).await.unwrap().term, Some(first.term()));
    }

    let next = campaigns(theirs, "e", b"second", LONG);
    until_waiting(ours, "e", 1).await;
    assert_eq!(
        value_of_leader(ours, "e").await.as_deref(),
        Some(&b""[..]),
        "a waiter does not lead"
    );
    let term = first.term();
    first.resign().await.unwrap();
    let second = leads(next).await;
    assert!(second.term() > term);
    assert_eq!(sees(&mut observer, Some(b"second")).await.unwrap().term, Some(second.term()));
    second.resign().await.unwrap();
    assert_eq!(sees(&mut observer, None).await, None);

    // The value ends with the grant.
    let guard = ours.lock("e").ttl(LONG).acquire().await.unwrap();
    let shown = leader(theirs, "e").await.unwrap();
    assert_eq!((shown.term, shown.value), (Some(guard.token()), None));
    guard.release().await.unwrap();
}

/// Renewals keep the value for as long as the lock.
pub async fn renewals_keep_the_value(ours: &Fencepost, theirs: &Fencepost, ttl: Duration) {
    let leadership = leads(campaigns(ours, "kept", b"before", ttl)).await;
    leadership.proclaim("words").await.unwrap();
    for _ in 0..4 {
        let before = leadership.guard().deadline();
        until("it is renewed", async || leadership.guard().deadline() > before).await;
        assert_eq!(value_of_leader(theirs, "kept").await.as_deref(), Some(&b"words"[..]));
    }
    leadership.check().unwrap();
}

/// A lost leader cannot change the value.
pub async fn lost_leader_cannot_change_the_value(ours: &Fencepost, theirs: &Fencepost) {
    let old = leads(campaigns(ours, "deposed", b"old", LONG)).await;
    theirs.break_lock("deposed").await.unwrap().unwrap();
    let new = leads(campaigns(theirs, "deposed", b"new", LONG)).await;
    assert!(old.proclaim("still me").await.is_err());
    let shown = leader(ours, "deposed").await.unwrap();
    assert_eq!(shown.term, Some(new.term()));
    assert_eq!(shown.value.unwrap().as_bytes(), b"new");
}
