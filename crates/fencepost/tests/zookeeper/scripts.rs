//! The owner as a handle for scripts: acquire, renew and release in processes of their own.

use std::time::Duration;

use fencepost::{ErrorKind, LossCause};
use fencepost_testkit::{LONG, SOON, fails, now, pass, until};

use super::common::Site;

#[tokio::test]
async fn a_script_renews_in_one_process_after_the_other() {
    let site = Site::shared();
    let first = site.client().await;
    let ttl = Duration::from_millis(800);
    let guard = first.lock("job").ttl(ttl).lease_only().acquire().await.unwrap();
    let (token, owner) = (guard.token(), guard.detach());
    drop(first);
    // Each renews once and ends, for far longer than the lease.
    let end = now() + Duration::from_secs(4);
    while now() < end {
        let script = site.client().await;
        let before = now();
        let renewed = script.renew("job", owner, None).await.unwrap();
        assert_eq!(renewed.value.token, token);
        assert!(renewed.sent >= before && renewed.sent <= now());
        drop(script);
        pass(ttl / 2).await;
    }
    let script = site.client().await;
    script.release("job", owner).await.unwrap();
    let error = ErrorKind::NotHeld(None);
    fails(script.renew("job", owner, None).await, &error, &["job"]);
    assert!(site.children("/job").is_empty());
}

#[tokio::test]
async fn a_grant_of_a_process_is_not_renewed_from_elsewhere() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let guard = ours.lock("mine").ttl(LONG).acquire().await.unwrap();
    let owner = guard.owner();
    fails(theirs.renew("mine", owner, None).await, &ErrorKind::Refused, &["mine", "lease-only"]);
    // But its own client may, and anybody who has the owner may release it.
    ours.renew("mine", owner, None).await.unwrap();
    theirs.release("mine", owner).await.unwrap();
    until("the guard is told", async || guard.check().is_err()).await;
    ours.lock("mine").ttl(LONG).acquire_within(SOON).await.unwrap().release().await.unwrap();
}

#[tokio::test]
async fn a_broken_script_is_told_so() {
    let site = Site::shared();
    let client = site.client().await;
    let guard = client.lock("broken").ttl(LONG).lease_only().acquire().await.unwrap();
    let owner = guard.detach();
    drop(client);
    let other = site.client().await;
    other.break_lock("broken").await.unwrap().unwrap();
    let next = other.lock("broken").ttl(LONG).acquire_within(SOON).await.unwrap();
    let script = site.client().await;
    let error = ErrorKind::NotHeld(Some(LossCause::Broken));
    fails(script.renew("broken", owner, None).await, &error, &["operator"]);
    next.check().unwrap();
}

/// A lease that nobody renews ends, even if the process that took it lives on and stays connected.
#[tokio::test]
async fn a_detached_lease_ends_although_its_process_lives() {
    let site = Site::shared();
    let client = site.client().await;
    let guard =
        client.lock("left").ttl(Duration::from_millis(500)).lease_only().acquire().await.unwrap();
    let _ = guard.detach();
    until("it ends", async || site.children("/left").is_empty()).await;
}
