//! A holder learns at once that its grant was broken, and confirms it by deleting the note.

use fencepost::{ErrorKind, LossCause};
use fencepost_testkit::{
    LONG, Mode, Proxy, SOON, broken_holder_learns_at_once, connect, fails_because, until,
};

use crate::common::Site;

const NOTES: &str = "/.fencepost/broken";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn broken_holder_is_notified_at_once_and_confirms() {
    let site = Site::shared();
    let (holder, operator) = (site.client().await, site.client().await);
    broken_holder_learns_at_once(&holder, &operator, LONG).await;
    assert_eq!(site.children(NOTES), [""; 0], "a confirmed note is gone");
}

/// A lease-only holder confirms with its release. Until then the note stays, and every renewal reports the cause.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lease_only_holder_confirms_with_its_release() {
    let site = Site::shared();
    let (script, operator) = (site.client().await, site.client().await);
    let guard = script.lock("x").ttl(LONG).lease_only().acquire().await.unwrap();
    let owner = guard.detach();
    let broken = operator.break_lock("x").await.unwrap().unwrap();
    assert!(!broken.confirmed, "nobody was there to confirm it");
    let elsewhere = site.client().await;
    for _ in 0..2 {
        let renewed = elsewhere.renew("x", owner, None).await;
        fails_because(renewed, ErrorKind::NotHeld, LossCause::Broken, &["\"x\""]);
    }
    assert_eq!(site.children(NOTES).len(), 1);
    let released = elsewhere.release("x", owner).await;
    fails_because(released, ErrorKind::NotHeld, LossCause::Broken, &["\"x\""]);
    until("the note is gone", async || site.children(NOTES).is_empty()).await;
}

/// The break is done, whether or not it is confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unreachable_holder_does_not_confirm() {
    let site = Site::shared();
    let proxy = Proxy::to(site.server.address()).unwrap();
    let ours = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
    let theirs = site.client().await;
    let guard = ours.lock("x").ttl(LONG).wait_timeout(SOON).acquire().await.unwrap();
    proxy.set_mode(Mode::Silent);
    let broken = theirs.break_lock("x").await.unwrap().unwrap();
    assert_eq!((broken.token, broken.confirmed), (Some(guard.token()), false));
    proxy.set_mode(Mode::Pass);
    until("it learns, and confirms", async || site.children(NOTES).is_empty()).await;
    assert!(guard.check().is_err());
}
