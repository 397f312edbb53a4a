//! What a writer is told. "Refused" and "gave up" are words for a write that was not done: they must not be said of one
//! that was, nor of one that may have been.
//!
//! The store's client tries again by itself when a connection is closed without an answer, so what it hands on may be
//! the answer to its second try.

use fencepost::fences::object::Envelope;
use fencepost::{ErrorKind, Result};
use fencepost_testkit::gate::{Act, Gate};

use super::{Site, fails, name, token};

const FORBIDDEN: Act = Act::Instead("403 Forbidden\r\nContent-Length: 0");
const CHANGED: Act = Act::Instead("412 Precondition Failed\r\nContent-Length: 0");
const NOBODY_KNOWS: [&str; 3] = ["nobody knows", "a read does not stop it", "new token"];

/// An envelope with "before" in it, behind a gate.
struct Behind {
    site: Site,
    gate: Gate,
    envelope: Envelope,
}

impl Behind {
    async fn new() -> Self {
        let site = Site::new();
        let gate = site.gate();
        let envelope = site.fence_behind(&gate).await.envelope("e").unwrap();
        envelope.write(&name(), token(33), "before").await.unwrap();
        Self { site, gate, envelope }
    }

    /// What becomes of the next requests for the envelope, by method.
    fn then(&self, method: &'static str, acts: impl IntoIterator<Item = Act>) {
        for act in acts {
            self.gate.once(method, self.site.ends("e"), act);
        }
    }

    async fn write(&self) -> Result<()> {
        let done = self.envelope.write(&name(), token(33), "mine").await;
        assert_eq!(self.gate.waiting(), 0, "the gate has seen all that was to come");
        done
    }

    async fn is(&self, data: &str) {
        let there = self.site.fence().await.envelope("e").unwrap().peek().await;
        assert_eq!(there.unwrap().unwrap(), data);
    }
}

fn lose_answer() -> Act {
    Act::LoseAnswer(Box::new(|| {}))
}

fn pass() -> Act {
    Act::Before(Box::new(|| {}))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_after_a_try_that_was_done_is_no_refusal() {
    let behind = Behind::new().await;
    behind.then("PUT", [lose_answer(), FORBIDDEN]);
    behind.write().await.unwrap();
    behind.is("mine").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_refusal_after_a_try_of_unknown_fate_says_that_nobody_knows() {
    let behind = Behind::new().await;
    // The client's own first try. It was not done, but who can tell?
    behind.then("PUT", [Act::LoseRequest(Box::new(|| {})), FORBIDDEN]);
    fails(behind.write().await, &ErrorKind::Unreachable, &NOBODY_KNOWS);
    // Ours.
    behind.then("PUT", [Act::ResetBefore, FORBIDDEN]);
    fails(behind.write().await, &ErrorKind::Unreachable, &NOBODY_KNOWS);
    behind.is("before").await;
    // It was done, and we may not look.
    behind.then("GET", [pass(), FORBIDDEN]);
    behind.then("PUT", [lose_answer(), FORBIDDEN]);
    fails(behind.write().await, &ErrorKind::Unreachable, &NOBODY_KNOWS);
    behind.is("mine").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_refusal_is_one() {
    let behind = Behind::new().await;
    behind.then("PUT", [FORBIDDEN]);
    fails(behind.write().await, &ErrorKind::Refused, &["credentials", "list", "delete"]);
    behind.then("PUT", [Act::Instead("400 Bad Request\r\nContent-Length: 0")]);
    fails(behind.write().await, &ErrorKind::Refused, &["does not take the request", "400"]);
    behind.is("before").await;
}

/// The second try of the client meets its first: "412". Then the store does not let us look.
#[tokio::test(flavor = "multi_thread")]
async fn changed_by_ourselves_and_no_look_at_it_says_that_nobody_knows() {
    let behind = Behind::new().await;
    behind.then("GET", [pass(), FORBIDDEN]);
    behind.then("PUT", [lose_answer()]);
    fails(behind.write().await, &ErrorKind::Unreachable, &NOBODY_KNOWS);
    behind.is("mine").await;
}

/// Both at once, since sixty tries take their time.
#[tokio::test(flavor = "multi_thread")]
async fn who_meets_others_all_the_time_gives_up_and_looks_at_the_last_try_too() {
    let (last, none) = (Behind::new().await, Behind::new().await);
    last.then("PUT", (1..60).map(|_| CHANGED).chain([lose_answer()]));
    none.then("PUT", (0..60).map(|_| CHANGED));
    let (done, given_up) = tokio::join!(last.write(), none.write());
    done.unwrap();
    last.is("mine").await;
    fails(given_up, &ErrorKind::Unreachable, &["gave up after 60 tries"]);
    none.is("before").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn who_never_gets_an_answer_says_that_nobody_knows() {
    let behind = Behind::new().await;
    behind.then("PUT", (0..4).map(|_| Act::ResetBefore));
    fails(behind.write().await, &ErrorKind::Unreachable, &NOBODY_KNOWS);
    behind.is("before").await;
}

/// Who points a fence at somebody's film does not get it into memory: its length is refused, before its body comes.
#[tokio::test(flavor = "multi_thread")]
async fn an_object_that_is_too_long_is_refused_unread() {
    const LONG: &str = "200 OK\r\nContent-Length: 16842753\r\nETag: \"1\"\r\n\
                        Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT";
    let behind = Behind::new().await;
    behind.then("GET", [Act::Instead(LONG)]);
    let read = behind.envelope.read(&name(), token(34)).await;
    fails(read, &ErrorKind::Refused, &["no envelope", "16842752", "16842753", "another path"]);
    let pointer = behind.site.fence_behind(&behind.gate).await.pointer("p").unwrap();
    let long = "200 OK\r\nContent-Length: 65537\r\nETag: \"1\"\r\n\
                Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT";
    behind.gate.once("GET", behind.site.ends("p"), Act::Instead(long));
    let read = pointer.read(&name(), token(34)).await;
    fails(read, &ErrorKind::Refused, &["no pointer", "65536", "65537", "another path"]);
    assert_eq!(behind.gate.waiting(), 0);
}
