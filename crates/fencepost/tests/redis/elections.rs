//! Elections: the leader's value is stored beside the lock, and ends with it.

use fencepost_testkit::elections::{
    campaigns, leads, lost_leader_cannot_change_the_value, one_leads_after_the_other,
    renewals_keep_the_value, value_of_leader,
};
use fencepost_testkit::{
    LONG, Mode, Proxy, Redis, SOON, Trigger, connect, has, ms, switching_proxy, two, until, within,
};

const VALUE_KEY: &str = "fencepost:value:{e}";

#[tokio::test]
async fn leaders_follow_each_other_with_their_own_values() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    one_leads_after_the_other(&ours, &theirs).await;
    assert!(!has(&server, VALUE_KEY), "nothing is left of what was published");
}

#[tokio::test]
async fn renewal_keeps_the_value() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    renewals_keep_the_value(&ours, &theirs, ms(2000)).await;
}

#[tokio::test]
async fn deposed_leader_has_no_value() {
    let server = Redis::builder().start().unwrap();
    let (ours, theirs) = two(&server.url()).await;
    lost_leader_cannot_change_the_value(&ours, &theirs).await;
}

/// Nobody renews or releases: lock and value end together. The next leader has its own value.
#[tokio::test]
async fn value_of_a_dead_leader_ends_with_its_lease() {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let ours = connect(&format!("redis://{}", proxy.address())).await;
    let theirs = connect(&server.url()).await;
    let dead = leads(campaigns(&ours, "e", b"mine", ms(2000))).await;
    proxy.set_mode(Mode::Silent);
    assert_eq!(value_of_leader(&theirs, "e").await.as_deref(), Some(&b"mine"[..]));
    let next = leads(campaigns(&theirs, "e", b"next", LONG)).await;
    assert_eq!(value_of_leader(&theirs, "e").await.as_deref(), Some(&b"next"[..]));
    next.resign().await.unwrap();
    assert!(!has(&server, "e") && !has(&server, VALUE_KEY));
    drop(dead);
}

/// An operator deleted the lock, and a third-party client took it: the leader's value is not shown for that client.
#[tokio::test]
async fn value_is_not_shown_for_a_third_party_holder() {
    let server = Redis::builder().start().unwrap();
    let client = connect(&server.url()).await;
    let _deposed = leads(campaigns(&client, "e", b"mine", LONG)).await;
    server.command(&["DEL", "e"]).unwrap();
    server.command(&["SET", "e", "0123456789abcdef0123456789abcdef", "PX", "60000"]).unwrap();
    assert!(has(&server, VALUE_KEY), "it is still there");
    assert_eq!(value_of_leader(&client, "e").await, None);
}

/// The same without a next leader: nothing is left on the server.
#[tokio::test]
async fn value_of_a_dead_leader_leaves_no_key() {
    let server = Redis::builder().start().unwrap();
    let proxy = Proxy::to(server.address()).unwrap();
    let ours = connect(&format!("redis://{}", proxy.address())).await;
    let _dead = leads(campaigns(&ours, "e", b"mine", ms(2000))).await;
    assert!(has(&server, VALUE_KEY));
    proxy.set_mode(Mode::Silent);
    until("nothing is left", async || !has(&server, "e") && !has(&server, VALUE_KEY)).await;
}

/// A proclaim was sent on a frozen connection, and again on the next one, and then a newer value. When the first
/// connection recovers, it delivers the older value: the newer one must stay.
#[tokio::test]
async fn older_value_that_arrives_late_does_not_replace_a_newer_one() {
    let server = Redis::builder().start().unwrap();
    let old = Proxy::to(server.address()).unwrap();
    let new = Proxy::to(server.address()).unwrap();
    let route = switching_proxy(old.address(), new.address());
    let client = connect(&format!("redis://{route}")).await;
    let leadership = leads(campaigns(&client, "e", b"mine", LONG)).await;
    leadership.proclaim("warm").await.unwrap();

    old.set_mode(Mode::DropRequests);
    old.cut_on(Trigger::after("EVALSHA"));
    // On a slow machine the call may time out before the new connection is up: then it is repeated.
    within(SOON * 3, "the proclaim arrives over the new connection", async {
        while leadership.proclaim("first").await.is_err() {
            assert!(leadership.check().is_ok(), "the leadership is lost");
        }
    })
    .await;
    leadership.proclaim("second").await.unwrap();
    assert_eq!((old.fired(), new.accepted()), (0, 1));
    old.set_mode(Mode::Pass);
    until("the late proclaim is answered", async || old.fired() == 1).await;
    assert_eq!(value_of_leader(&client, "e").await.as_deref(), Some(&b"second"[..]));
}
