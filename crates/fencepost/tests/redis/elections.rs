//! Elections: what the leader says of itself lies beside the lock, and goes with it.

use fencepost_testkit::elections::{
    a_deposed_leader_is_not_heard, campaigns, leads, one_leads_after_the_other,
    renewals_keep_the_words, said,
};
use fencepost_testkit::{
    LONG, Mode, Proxy, Redis, SOON, Trigger, connect, fork_in_the_road, has, ms, two, until, within,
};

const SAID: &str = "fencepost:value:e";

#[tokio::test]
async fn one_leads_after_the_other_and_says_its_own() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    one_leads_after_the_other(&ours, &theirs).await;
    assert!(!has(&server, SAID), "nothing is left of what was said");
}

#[tokio::test]
async fn renewals_leave_what_was_said() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    renewals_keep_the_words(&ours, &theirs, ms(2000)).await;
}

#[tokio::test]
async fn a_leader_that_was_deposed_is_not_heard() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    a_deposed_leader_is_not_heard(&ours, &theirs).await;
}

/// Nobody renews it, nobody releases it: lock and words end together. The next one's words are its own.
#[tokio::test]
async fn what_a_dead_leader_said_ends_with_its_lease() {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let ours = connect(&format!("redis://{}", proxy.address())).await;
    let theirs = connect(&server.url()).await;
    let dead = leads(campaigns(&ours, "e", b"mine", ms(2000))).await;
    proxy.set_mode(Mode::Silent);
    assert_eq!(said(&theirs, "e").await.as_deref(), Some(&b"mine"[..]));
    let next = leads(campaigns(&theirs, "e", b"next", LONG)).await;
    assert_eq!(said(&theirs, "e").await.as_deref(), Some(&b"next"[..]));
    next.resign().await.unwrap();
    assert!(!has(&server, "e") && !has(&server, SAID));
    drop(dead);
}

/// The lock was deleted by hand, and another make of client took it: what the leader said is not the other's word.
#[tokio::test]
async fn what_a_leader_said_is_not_another_makes_word() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let _deposed = leads(campaigns(&client, "e", b"mine", LONG)).await;
    server.command(&["DEL", "e"]).unwrap();
    server.command(&["SET", "e", "0123456789abcdef0123456789abcdef", "PX", "60000"]).unwrap();
    assert!(has(&server, SAID), "it is still there");
    assert_eq!(said(&client, "e").await, None);
}

/// The same without a next one: nothing is left on the server.
#[tokio::test]
async fn what_a_dead_leader_said_leaves_no_key() {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let ours = connect(&format!("redis://{}", proxy.address())).await;
    let _dead = leads(campaigns(&ours, "e", b"mine", ms(2000))).await;
    assert!(has(&server, SAID));
    proxy.set_mode(Mode::Silent);
    until("nothing is left", async || !has(&server, "e") && !has(&server, SAID)).await;
}

/// A proclamation was sent on a line that stood still, and again on the next one, and another after it. When
/// the first line comes back to life it delivers what was said first: the last word must stay the last.
#[tokio::test]
async fn a_word_that_comes_late_does_not_replace_a_later_one() {
    let server = Redis::builder().start().unwrap();
    let old = Proxy::to(server.address()).unwrap();
    let new = Proxy::to(server.address()).unwrap();
    let way = fork_in_the_road(old.address(), new.address());
    let client = connect(&format!("redis://{way}")).await;
    let leadership = leads(campaigns(&client, "e", b"mine", LONG)).await;
    leadership.proclaim("warm").await.unwrap();

    old.set_mode(Mode::DropRequests);
    old.cut_on(Trigger::after("EVALSHA"));
    // On a slow machine the library's patience may end before the new line is there: said again, it is the same word.
    within(SOON * 3, "it is heard over the new line", async {
        while leadership.proclaim("first").await.is_err() {
            assert!(leadership.check().is_ok(), "the leadership is lost");
        }
    })
    .await;
    leadership.proclaim("second").await.unwrap();
    assert_eq!((old.fired(), new.accepted()), (0, 1));
    old.set_mode(Mode::Pass);
    until("the late word is answered", async || old.fired() == 1).await;
    assert_eq!(said(&client, "e").await.as_deref(), Some(&b"second"[..]));
}
