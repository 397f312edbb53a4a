//! A holder learns at once that its grant was broken, and confirms it by taking the marker away.

use fencepost::{ErrorKind, LossCause};
use fencepost_testkit::{
    LONG, Mode, Proxy, SOON, broken_holder_learns_at_once, connect, fails, until,
};

use crate::common::Site;

const MARKERS: &str = "/.fencepost/broken";

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_holder_learns_at_once_and_confirms() {
    let site = Site::shared();
    let (holder, operator) = (site.client().await, site.client().await);
    broken_holder_learns_at_once(&holder, &operator, LONG).await;
    assert_eq!(site.children(MARKERS), [""; 0], "a marker that was confirmed is gone");
}

/// A script confirms with its release; until then the marker stays, and every renewal says why.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_script_confirms_with_its_release() {
    let site = Site::shared();
    let (script, operator) = (site.client().await, site.client().await);
    let guard = script.lock("x").ttl(LONG).lease_only().acquire().await.unwrap();
    let owner = guard.detach();
    let broken = operator.break_lock("x").await.unwrap().unwrap();
    assert!(!broken.confirmed, "nobody was there to confirm it");
    let elsewhere = site.client().await;
    for _ in 0..2 {
        let renewed = elsewhere.renew("x", owner, None).await;
        fails(renewed, &ErrorKind::NotHeld(Some(LossCause::Broken)), &["\"x\""]);
    }
    assert_eq!(site.children(MARKERS).len(), 1);
    let released = elsewhere.release("x", owner).await;
    fails(released, &ErrorKind::NotHeld(Some(LossCause::Broken)), &["\"x\""]);
    until("the marker is gone", async || site.children(MARKERS).is_empty()).await;
}

/// The break is done, whatever becomes of the wait for its confirmation.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_holder_that_is_cut_off_does_not_confirm() {
    let site = Site::shared();
    let proxy = Proxy::to(site.server.address()).unwrap();
    let ours = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
    let theirs = site.client().await;
    let guard = ours.lock("x").ttl(LONG).acquire_within(SOON).await.unwrap();
    proxy.set_mode(Mode::Silent);
    let broken = theirs.break_lock("x").await.unwrap().unwrap();
    assert_eq!((broken.token, broken.confirmed), (Some(guard.token()), false));
    proxy.set_mode(Mode::Pass);
    until("it learns, and confirms", async || site.children(MARKERS).is_empty()).await;
    assert!(guard.check().is_err());
}
