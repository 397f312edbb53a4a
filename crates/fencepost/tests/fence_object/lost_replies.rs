//! What a writer reports. "Refused" and "gave up" mean that the write was not done. They must not be reported for a
//! write that was done or may have been done.
//!
//! The S3 client retries by itself when a connection is closed without a reply, so the reply that it returns may
//! belong to its second attempt.

use fencepost::fences::object::Envelope;
use fencepost::{ErrorKind, Result};
use fencepost_testkit::gate::{Act, Gate};

use super::{Site, fails, fencing};

const FORBIDDEN: Act = Act::Instead("403 Forbidden\r\nContent-Length: 0");
const CHANGED: Act = Act::Instead("412 Precondition Failed\r\nContent-Length: 0");
const OUTCOME_UNKNOWN: [&str; 3] = ["outcome unknown", "a read does not stop it", "new token"];

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
        envelope.write(&fencing(33), "before").await.unwrap();
        Self { site, gate, envelope }
    }

    /// Injects these acts into the next requests for the envelope, by method.
    fn inject(&self, method: &'static str, acts: impl IntoIterator<Item = Act>) {
        for act in acts {
            self.gate.once(method, self.site.ends("e"), act);
        }
    }

    async fn write(&self) -> Result<()> {
        let done = self.envelope.write(&fencing(33), "mine").await;
        assert_eq!(self.gate.waiting(), 0, "the gate has seen all that was to come");
        done
    }

    async fn assert_data(&self, data: &str) {
        let there = self.site.fence().await.envelope("e").unwrap().peek().await;
        assert_eq!(there.unwrap().unwrap(), data);
    }
}

fn lose_reply() -> Act {
    Act::LoseAnswer(Box::new(|| {}))
}

fn pass() -> Act {
    Act::Before(Box::new(|| {}))
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_after_an_applied_write_is_success() {
    let behind = Behind::new().await;
    behind.inject("PUT", [lose_reply(), FORBIDDEN]);
    behind.write().await.unwrap();
    behind.assert_data("mine").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn refusal_after_a_lost_reply_reports_outcome_unknown() {
    let behind = Behind::new().await;
    // The S3 client's own first attempt. It was not applied, but the writer cannot know.
    behind.inject("PUT", [Act::LoseRequest(Box::new(|| {})), FORBIDDEN]);
    fails(behind.write().await, ErrorKind::Unreachable, &OUTCOME_UNKNOWN);
    // Our attempt.
    behind.inject("PUT", [Act::ResetBefore, FORBIDDEN]);
    fails(behind.write().await, ErrorKind::Unreachable, &OUTCOME_UNKNOWN);
    behind.assert_data("before").await;
    // It was applied, and we may not read it.
    behind.inject("GET", [pass(), FORBIDDEN]);
    behind.inject("PUT", [lose_reply(), FORBIDDEN]);
    fails(behind.write().await, ErrorKind::Unreachable, &OUTCOME_UNKNOWN);
    behind.assert_data("mine").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_refusal_is_refused() {
    let behind = Behind::new().await;
    behind.inject("PUT", [FORBIDDEN]);
    fails(behind.write().await, ErrorKind::Refused, &["credentials", "list", "delete"]);
    behind.inject("PUT", [Act::Instead("400 Bad Request\r\nContent-Length: 0")]);
    fails(behind.write().await, ErrorKind::Refused, &["rejected the request", "400"]);
    behind.assert_data("before").await;
}

/// The retry of the S3 client meets its own first attempt (412). Then the store refuses the read.
#[tokio::test(flavor = "multi_thread")]
async fn own_change_that_cannot_be_read_reports_outcome_unknown() {
    let behind = Behind::new().await;
    behind.inject("GET", [pass(), FORBIDDEN]);
    behind.inject("PUT", [lose_reply()]);
    fails(behind.write().await, ErrorKind::Unreachable, &OUTCOME_UNKNOWN);
    behind.assert_data("mine").await;
}

/// Both at once, because sixty attempts take long.
#[tokio::test(flavor = "multi_thread")]
async fn writer_gives_up_after_sixty_collisions_and_checks_the_last_one() {
    let (last, none) = (Behind::new().await, Behind::new().await);
    last.inject("PUT", (1..60).map(|_| CHANGED).chain([lose_reply()]));
    none.inject("PUT", (0..60).map(|_| CHANGED));
    let (done, given_up) = tokio::join!(last.write(), none.write());
    done.unwrap();
    last.assert_data("mine").await;
    fails(given_up, ErrorKind::Unreachable, &["gave up after 60 attempts"]);
    none.assert_data("before").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn writer_without_any_reply_reports_outcome_unknown() {
    let behind = Behind::new().await;
    behind.inject("PUT", (0..4).map(|_| Act::ResetBefore));
    fails(behind.write().await, ErrorKind::Unreachable, &OUTCOME_UNKNOWN);
    behind.assert_data("before").await;
}

/// A fence on somebody's large file must not read it into memory: its length is refused before its body arrives.
#[tokio::test(flavor = "multi_thread")]
async fn object_that_is_too_long_is_refused_unread() {
    const LONG: &str = "200 OK\r\nContent-Length: 16842753\r\nETag: \"1\"\r\n\
                        Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT";
    let behind = Behind::new().await;
    behind.inject("GET", [Act::Instead(LONG)]);
    let read = behind.envelope.read(&fencing(34)).await;
    fails(
        read,
        ErrorKind::Refused,
        &["a envelope has at most", "16842752", "16842753", "another path"],
    );
    let pointer = behind.site.fence_behind(&behind.gate).await.pointer("p").unwrap();
    let long = "200 OK\r\nContent-Length: 65537\r\nETag: \"1\"\r\n\
                Last-Modified: Thu, 01 Jan 2026 00:00:00 GMT";
    behind.gate.once("GET", behind.site.ends("p"), Act::Instead(long));
    let read = pointer.read(&fencing(34)).await;
    fails(read, ErrorKind::Refused, &["a pointer has at most", "65536", "65537", "another path"]);
    assert_eq!(behind.gate.waiting(), 0);
}
