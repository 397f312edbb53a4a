//! The owner id as a handle for scripts: acquire, renew and release in separate processes.

use std::time::Duration;

use fencepost::{ErrorKind, LossCause};
use fencepost_testkit::{LONG, SOON, fails, fails_because, now, pass, until};

use super::common::Site;

#[tokio::test]
async fn lease_only_grant_is_renewed_from_several_processes() {
    let site = Site::shared();
    let first = site.client().await;
    let ttl = Duration::from_millis(800);
    let guard = first.lock("job").ttl(ttl).lease_only().acquire().await.unwrap();
    let (token, owner) = (guard.token(), guard.detach());
    drop(first);
    // Each process renews once and exits, together for far longer than the lease.
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
    let error = fails(script.renew("job", owner, None).await, ErrorKind::NotHeld, &["job"]);
    assert_eq!(error.loss_cause(), None);
    assert!(site.children("/job").is_empty());
}

#[tokio::test]
async fn process_grant_is_not_renewed_from_elsewhere() {
    let site = Site::shared();
    let (ours, theirs) = (site.client().await, site.client().await);
    let guard = ours.lock("mine").ttl(LONG).acquire().await.unwrap();
    let owner = guard.owner();
    fails(theirs.renew("mine", owner, None).await, ErrorKind::Refused, &["mine", "lease-only"]);
    // Its own client may renew it, and anybody who has the owner id may release it.
    ours.renew("mine", owner, None).await.unwrap();
    theirs.release("mine", owner).await.unwrap();
    until("the guard is lost", async || guard.check().is_err()).await;
    ours.lock("mine")
        .ttl(LONG)
        .wait_timeout(SOON)
        .acquire()
        .await
        .unwrap()
        .release()
        .await
        .unwrap();
}

#[tokio::test]
async fn broken_lease_only_grant_reports_broken() {
    let site = Site::shared();
    let client = site.client().await;
    let guard = client.lock("broken").ttl(LONG).lease_only().acquire().await.unwrap();
    let owner = guard.detach();
    drop(client);
    let other = site.client().await;
    other.break_lock("broken").await.unwrap().unwrap();
    let next = other.lock("broken").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    let script = site.client().await;
    let renewed = script.renew("broken", owner, None).await;
    fails_because(renewed, ErrorKind::NotHeld, LossCause::Broken, &["operator"]);
    next.check().unwrap();
}

/// A lease without renewals ends, even if its process lives and stays connected.
#[tokio::test]
async fn detached_lease_ends_although_its_process_lives() {
    let site = Site::shared();
    let client = site.client().await;
    let guard =
        client.lock("left").ttl(Duration::from_millis(500)).lease_only().acquire().await.unwrap();
    let _ = guard.detach();
    until("it ends", async || site.children("/left").is_empty()).await;
}
