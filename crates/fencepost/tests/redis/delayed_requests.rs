//! A request that arrives after the one that should undo it.
//!
//! The acquire was sent on a connection that then froze. The client reconnected and released there. When the first
//! connection recovers, it delivers the acquire: nobody waits for it any more, and nobody would release it. So the
//! release has left a note on the server.

use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::{
    LONG, Mode, Proxy, Redis, SOON, Trigger, connect, fails, has, ms, nothing_is_left,
    switching_proxy, until, within,
};

/// A client with two connections to a server. From now on requests on the old one are held back.
pub(crate) struct HeldBack {
    pub(crate) server: Redis,
    pub(crate) old: Proxy,
    pub(crate) new: Proxy,
    pub(crate) client: Fencepost,
}

impl HeldBack {
    pub(crate) async fn new() -> Self {
        let server = Redis::builder().start().unwrap();
        let old = Proxy::to(server.address()).unwrap();
        let new = Proxy::to(server.address()).unwrap();
        let route = switching_proxy(old.address(), new.address());
        let client = connect(&format!("redis://{route}")).await;
        client.lock("x").acquire().await.unwrap().release().await.unwrap();

        // Of the requests held back only the acquire will pass: the connection is cut after its reply.
        old.set_mode(Mode::DropRequests);
        old.cut_on(Trigger::after("EVALSHA"));
        Self { server, old, new, client }
    }
}

/// A late acquire, which finds the note, or whose note was deleted.
async fn late_acquire(with_note: bool) {
    let HeldBack { server, old, new, client } = HeldBack::new().await;
    let outcome = client.lock("x").ttl(LONG).wait_timeout(ms(200)).acquire().await;
    fails(outcome, ErrorKind::Unreachable, &["\"x\""]);
    within(SOON, "the release arrives over the new connection", client.close()).await;
    assert_eq!((old.fired(), new.accepted()), (0, 1));
    assert!(!has(&server, "x"));
    let notes = server.command(&["KEYS", "fencepost:withdrawn:*"]).unwrap();
    let [note] = notes.items().unwrap() else { panic!("one owner is noted: {notes:?}") };
    if !with_note {
        server.command(&["DEL", &note.text().unwrap()]).unwrap();
    }

    old.set_mode(Mode::Pass);
    until("the late acquire is answered", async || old.fired() == 1).await;
    assert_eq!(has(&server, "x"), !with_note);
    if with_note {
        nothing_is_left(&connect(&server.url()).await, "x").await;
    }
}

#[tokio::test]
async fn acquire_that_arrives_after_its_release_is_refused() {
    late_acquire(true).await;
}

/// Control: without the note the lock is granted to nobody until its TTL.
#[tokio::test]
async fn control_late_acquire_without_the_note_is_granted() {
    late_acquire(false).await;
}
