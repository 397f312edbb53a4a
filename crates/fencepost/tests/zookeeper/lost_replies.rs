//! A request is applied, its reply is lost, and it is retried on another connection: nothing is done twice, and no
//! other client is hit.

use std::time::Duration;

use fencepost::Fencepost;
use fencepost_testkit::{LONG, Mode, Proxy, SOON, connect, now, pass, until, within};

use super::common::Site;

/// The default TTL, whose session exists from the start.
const TTL: Duration = Duration::from_secs(30);

struct Cut {
    site: Site,
    proxy: Proxy,
    client: Fencepost,
}

impl Cut {
    async fn new() -> Self {
        let site = Site::shared();
        let proxy = Proxy::to(site.server.address()).unwrap();
        let client = connect(&format!("zookeeper://{}{}", proxy.address(), site.chroot)).await;
        Self { site, proxy, client }
    }

    /// From now on requests reach the server and no reply returns.
    fn drop_replies(&self) {
        self.proxy.set_mode(Mode::DropAnswers);
    }

    /// The connection breaks, and the next one works.
    fn reconnect(&self) {
        self.proxy.close_all();
        self.proxy.set_mode(Mode::Pass);
    }
}

#[tokio::test]
async fn acquire_whose_reply_is_lost_finds_its_node() {
    let cut = Cut::new().await;
    for name in ["first", "again"] {
        cut.client.lock(name).ttl(TTL).acquire().await.unwrap().release().await.unwrap();
        cut.drop_replies();
        let client = cut.client.clone();
        let acquire = tokio::spawn(async move { client.lock(name).ttl(TTL).acquire().await });
        let dir = format!("/{name}");
        until("the node is made", async || cut.site.children(&dir).len() == 1).await;
        let node = cut.site.children(&dir);
        cut.reconnect();
        let guard = within(SOON, "granted", acquire).await.unwrap().unwrap();
        assert_eq!(cut.site.children(&dir), node, "it made another");
        guard.check().unwrap();
        guard.release().await.unwrap();
        assert!(cut.site.children(&dir).is_empty());
    }
}

/// curator#600: the contender of an interrupted acquire stayed in the queue.
#[tokio::test]
async fn dropped_acquire_whose_reply_is_lost_leaves_nothing() {
    for round in 0..3 {
        let cut = Cut::new().await;
        cut.client.lock("dropped").ttl(TTL).acquire().await.unwrap().release().await.unwrap();
        cut.drop_replies();
        let client = cut.client.clone();
        let acquire = tokio::spawn(async move { client.lock("dropped").ttl(TTL).acquire().await });
        until("the node is made", async || cut.site.children("/dropped").len() == 1).await;
        acquire.abort();
        pass(Duration::from_millis(round * 3)).await;
        cut.reconnect();
        until("it is undone", async || cut.site.children("/dropped").is_empty()).await;
        within(SOON, "nothing is left to do", cut.client.close()).await;
        assert!(cut.site.children("/dropped").is_empty());
    }
}

/// CURATOR-498: a release that lost its connection left its node.
#[tokio::test]
async fn release_whose_reply_is_lost_releases_once() {
    let cut = Cut::new().await;
    let other = cut.site.client().await;
    let guard = cut.client.lock("release").ttl(TTL).acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("release").ttl(LONG).acquire().await });
    until("it waits", async || cut.site.children("/release").len() == 2).await;
    cut.drop_replies();
    let release = tokio::spawn(guard.release());
    let next = within(SOON, "the next one is granted", waiting).await.unwrap().unwrap();
    cut.reconnect();
    within(SOON, "released", release).await.unwrap().unwrap();
    next.check().unwrap();
    assert_eq!(cut.site.children("/release").len(), 1);
}

#[tokio::test]
async fn break_whose_reply_is_lost_does_not_hit_the_next_holder() {
    let cut = Cut::new().await;
    let (holder, other) = (cut.site.client().await, cut.site.client().await);
    let guard = holder.lock("break").ttl(LONG).label("hit").acquire().await.unwrap();
    let waiting = tokio::spawn(async move { other.lock("break").ttl(LONG).acquire().await });
    until("it waits", async || cut.site.children("/break").len() == 2).await;
    // A read first, so that only the break itself can lose its reply.
    let client = cut.client.clone();
    cut.client.inspect("break").await.unwrap();
    let break_lock = tokio::spawn(async move {
        let end = now() + SOON;
        while now() < end {
            match client.break_lock("break").await {
                Err(error) if error.kind() == fencepost::ErrorKind::Unreachable => {}
                answer => return answer,
            }
        }
        panic!("no answer")
    });
    cut.drop_replies();
    pass(Duration::from_millis(300)).await;
    cut.reconnect();
    let broken = within(SOON, "broken", break_lock).await.unwrap().unwrap();
    let next = within(SOON, "the next one is granted", waiting).await.unwrap().unwrap();
    if let Some(broken) = broken {
        assert_eq!(broken.label.as_str(), "hit");
        assert!(next.token() >= broken.floor);
    }
    assert!(guard.lost().await == fencepost::LossCause::Broken);
    pass(Duration::from_millis(300)).await;
    next.check().unwrap();
    assert_eq!(cut.site.children("/break").len(), 1);
}

/// A renewal that was applied and not answered is no loss.
#[tokio::test]
async fn repeatedly_lost_connections_end_no_guard() {
    let cut = Cut::new().await;
    let ttl = Duration::from_secs(3);
    let guard = cut.client.lock("renewed").ttl(ttl).acquire().await.unwrap();
    let end = now() + ttl * 2;
    while now() < end {
        pass(Duration::from_millis(150)).await;
        cut.proxy.close_all();
    }
    guard.check().unwrap();
    assert_eq!(cut.site.children("/renewed").len(), 1);
    guard.release().await.unwrap();
}
