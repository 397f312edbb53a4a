//! A request that arrives after the one that should undo it.
//!
//! The acquire was sent on a connection that then stood still; the client gave up, opened another one, and
//! released there. When the first line comes back to life it delivers the acquire: nobody waits for it any
//! more, and nobody would release it. The release has left a note for it at the server.

use fencepost::{ErrorKind, Fencepost};
use fencepost_testkit::{
    LONG, Mode, Proxy, Redis, SOON, Trigger, connect, fails, fork_in_the_road, has, ms,
    nothing_is_left, until, within,
};

/// A client, and its two lines to a server. What it sends on the old one is held back from now on.
pub(crate) struct HeldBack {
    pub(crate) server: Redis,
    pub(crate) old: Proxy,
    pub(crate) new: Proxy,
    pub(crate) client: Fencepost,
}

impl HeldBack {
    pub(crate) async fn set() -> Self {
        let server = Redis::builder().start().unwrap();
        let old = Proxy::to(server.address()).unwrap();
        let new = Proxy::to(server.address()).unwrap();
        let way = fork_in_the_road(old.address(), new.address());
        let client = connect(&format!("redis://{way}")).await;
        client.lock("x").acquire().await.unwrap().release().await.unwrap();

        // Of what is held back only the acquire will pass: the line is cut when it has been answered.
        old.set_mode(Mode::DropRequests);
        old.cut_on(Trigger::after("EVALSHA"));
        Self { server, old, new, client }
    }
}

/// An acquire that comes late and alone; whether it finds the note, or somebody has deleted that.
async fn comes_late(with_note: bool) {
    let HeldBack { server, old, new, client } = HeldBack::set().await;
    let outcome = client.lock("x").ttl(LONG).acquire_within(ms(200)).await;
    fails(outcome, &ErrorKind::Unreachable, &["\"x\""]);
    within(SOON, "the release is heard over the new line", client.close()).await;
    assert_eq!((old.fired(), new.accepted()), (0, 1));
    assert!(!has(&server, "x"));
    let notes = server.command(&["KEYS", "fencepost:gone:*"]).unwrap();
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
async fn an_acquire_that_comes_after_its_release_is_refused() {
    comes_late(true).await;
}

/// The control: without the note the lock is held by nobody until its TTL.
#[tokio::test]
async fn without_the_note_it_would_hold_the_lock_for_nobody() {
    comes_late(false).await;
}
