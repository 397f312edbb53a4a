//! The reply to a put is lost.
//!
//! The S3 client retries by itself if the connection was closed. Its retry fails with 412, because the first attempt
//! has changed the object: the write is done. After a reset the client does not retry and reports a failure, though
//! the write may be done as well.

use fencepost::fences::object::ObjectFence;
use fencepost::fences::object::object_store::{
    self, ObjectStore as _, ObjectStoreExt as _, PutMode, UpdateVersion,
};
use fencepost::{ErrorKind, Result};
use fencepost_testkit::gate::{Act, Gate};

use super::{Site, block_on, fencing, name, token};

/// Runs the same for both shapes, each at its own path.
struct Fixture {
    site: Site,
    gate: Gate,
    behind: ObjectFence,
}

impl Fixture {
    async fn new() -> Self {
        let site = Site::new();
        let gate = site.gate();
        let behind = site.fence_behind(&gate).await;
        Self { site, gate, behind }
    }

    /// A holder with token 33 has written "before". Then it writes "mine" through the gate, where `act` happens.
    async fn write(&self, envelope: bool, act: Act) -> Result<()> {
        let (fence, path) = (self.site.fence().await, path(envelope));
        if envelope {
            fence.envelope(path)?.write(&fencing(33), "before").await?;
        } else {
            fence.pointer(path)?.write(&fencing(33), "before").await?;
        }
        self.gate.once("PUT", self.site.ends(path), act);
        let done = if envelope {
            self.behind.envelope(path)?.write(&fencing(33), "mine").await
        } else {
            self.behind.pointer(path)?.write(&fencing(33), "mine").await
        };
        assert_eq!(self.gate.waiting(), 0, "the gate has seen the put");
        done
    }

    async fn data(&self, envelope: bool) -> String {
        let fence = self.site.fence().await;
        let data = if envelope {
            fence.envelope(path(envelope)).unwrap().peek().await
        } else {
            fence.pointer(path(envelope)).unwrap().peek().await
        };
        String::from_utf8(data.unwrap().unwrap().to_vec()).unwrap()
    }
}

const fn path(envelope: bool) -> &'static str {
    if envelope { "e" } else { "p" }
}

/// The holder with token 34 enters, and writes this often.
fn later_holder(site: &Site, envelope: bool, writes: usize) -> Box<dyn FnOnce() + Send> {
    let site = site.clone();
    Box::new(move || {
        block_on(async {
            let fence = site.fence().await;
            if envelope {
                let later = fence.envelope(path(envelope)).unwrap();
                later.enter(&fencing(34)).await.unwrap();
                for _ in 0..writes {
                    later.write(&fencing(34), "later").await.unwrap();
                }
            } else {
                let later = fence.pointer(path(envelope)).unwrap();
                later.enter(&fencing(34)).await.unwrap();
                for _ in 0..writes {
                    later.write(&fencing(34), "later").await.unwrap();
                }
            }
        });
    })
}

fn nothing() -> Box<dyn FnOnce() + Send> {
    Box::new(|| {})
}

#[tokio::test(flavor = "multi_thread")]
async fn write_whose_reply_is_lost_is_done() {
    let fixture = Fixture::new().await;
    for envelope in [true, false] {
        for act in [Act::LoseAnswer, Act::ResetAfter, Act::LoseRequest] {
            fixture.write(envelope, act(nothing())).await.unwrap();
            assert_eq!(fixture.data(envelope).await, "mine");
        }
    }
}

/// "Stale" would be wrong: the later holder reads what it wrote.
#[tokio::test(flavor = "multi_thread")]
async fn write_whose_reply_is_lost_is_done_though_a_later_holder_entered() {
    for act in [Act::LoseAnswer, Act::ResetAfter] {
        for envelope in [true, false] {
            let fixture = Fixture::new().await;
            let act = act(later_holder(&fixture.site, envelope, 0));
            fixture.write(envelope, act).await.unwrap();
            assert_eq!(fixture.data(envelope).await, "mine");
            let fixture = Fixture::new().await;
            let act = Act::LoseAnswer(later_holder(&fixture.site, envelope, 3));
            fixture.write(envelope, act).await.unwrap();
            assert_eq!(fixture.data(envelope).await, "later");
        }
    }
}

/// The counterpart: it looks the same from the outside, but nothing was written.
#[tokio::test(flavor = "multi_thread")]
async fn write_whose_request_is_lost_is_stale_once_a_later_holder_entered() {
    for envelope in [true, false] {
        for writes in [0, 3] {
            let fixture = Fixture::new().await;
            let act = Act::LoseRequest(later_holder(&fixture.site, envelope, writes));
            let done = fixture.write(envelope, act).await;
            super::fails(done, ErrorKind::Stale, &["token 33", "34 has entered"]);
            let expected = if writes == 0 { "before" } else { "later" };
            assert_eq!(fixture.data(envelope).await, expected);
            if !envelope {
                let files = fixture.site.files("p.data").await;
                assert_eq!(
                    files.len(),
                    1 + writes,
                    "the refused one took its data away: {files:?}"
                );
            }
        }
    }
}

/// The history no longer shows whether it was done, so neither "stale" nor "done" is reported.
#[tokio::test(flavor = "multi_thread")]
async fn write_with_unknown_outcome_is_reported_as_such() {
    let fixture = Fixture::new().await;
    let act = Act::LoseAnswer(later_holder(&fixture.site, true, 257));
    let done = fixture.write(true, act).await;
    super::fails(
        done,
        ErrorKind::Unreachable,
        &["outcome of the write", "token 33", "read before you continue"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn enter_whose_reply_is_lost_is_done() {
    let fixture = Fixture::new().await;
    for act in [Act::LoseAnswer, Act::ResetAfter, Act::LoseRequest] {
        for path in ["new", "new", "other"] {
            let envelope = fixture.behind.envelope(path).unwrap();
            let mark = envelope.mark(&name()).await.unwrap().map_or(1, |mark| mark.token.get() + 1);
            fixture.gate.once("PUT", fixture.site.ends(path), act(nothing()));
            envelope.enter(&fencing(mark)).await.unwrap();
            assert_eq!(fixture.gate.waiting(), 0);
            assert_eq!(envelope.mark(&name()).await.unwrap().unwrap().token, token(mark));
        }
    }
}

/// A reset to 5 is applied, 6 enters, and the reply is lost. A repeated reset would exclude 6, and let 5 in after it.
#[tokio::test(flavor = "multi_thread")]
async fn reset_whose_reply_is_lost_is_done_once() {
    for act in [Act::LoseAnswer, Act::ResetAfter] {
        for envelope in [true, false] {
            let fixture = Fixture::new().await;
            let (path, fence, words) =
                (path(envelope), fixture.site.fence().await, ("ops", "moved"));
            let (as_envelope, as_pointer) =
                (fence.envelope(path).unwrap(), fence.pointer(path).unwrap());
            if envelope {
                as_envelope.write(&fencing(9), "data").await.unwrap();
            } else {
                as_pointer.write(&fencing(9), "data").await.unwrap();
            }
            let site = fixture.site.clone();
            let enters = move || {
                block_on(async {
                    let fence = site.fence().await;
                    if envelope {
                        fence.envelope(path).unwrap().enter(&fencing(6)).await
                    } else {
                        fence.pointer(path).unwrap().enter(&fencing(6)).await
                    }
                })
                .unwrap();
            };
            fixture.gate.once("PUT", fixture.site.ends(path), act(Box::new(enters)));
            let (old, mark, audit) = if envelope {
                let behind = fixture.behind.envelope(path).unwrap();
                let old = behind.reset(&name(), Some(token(5)), words.0, words.1).await.unwrap();
                (
                    old,
                    as_envelope.mark(&name()).await.unwrap(),
                    as_envelope.audit(None).await.unwrap(),
                )
            } else {
                let behind = fixture.behind.pointer(path).unwrap();
                let old = behind.reset(&name(), Some(token(5)), words.0, words.1).await.unwrap();
                (
                    old,
                    as_pointer.mark(&name()).await.unwrap(),
                    as_pointer.audit(None).await.unwrap(),
                )
            };
            assert_eq!(fixture.gate.waiting(), 0, "the gate has seen the put");
            assert_eq!(mark.unwrap().token, token(6), "it was not lowered again");
            assert_eq!(old.unwrap().token, token(9), "what the reset found");
            let audit: Vec<_> = audit.iter().map(|reset| (reset.from, reset.to)).collect();
            assert_eq!(audit, [(Some(token(9)), Some(token(5)))]);
            assert_eq!(fixture.data(envelope).await, "data");
        }
    }
}

/// Control: a writer that takes 412 for "not done" and starts again counts twice.
#[tokio::test(flavor = "multi_thread")]
async fn control_plain_compare_and_set_loop_counts_twice() {
    let site = Site::new();
    let gate = site.gate();
    let (store, path) = (site.store_at(gate.endpoint()), site.path("counter"));
    store.put(&path, "0".into()).await.unwrap();
    gate.once("PUT", site.ends("counter"), Act::LoseAnswer(nothing()));
    loop {
        let got = store.get(&path).await.unwrap();
        let (e_tag, version) = (got.meta.e_tag.clone(), got.meta.version.clone());
        let value = String::from_utf8(got.bytes().await.unwrap().to_vec()).unwrap();
        let next = (value.parse::<u64>().unwrap() + 1).to_string();
        let mode = PutMode::Update(UpdateVersion { e_tag, version });
        match store.put_opts(&path, next.into(), mode.into()).await {
            Ok(_) => break,
            Err(object_store::Error::Precondition { .. }) => {}
            Err(error) => unreachable!("the client tries again by itself: {error}"),
        }
    }
    let value = store.get(&path).await.unwrap().bytes().await.unwrap();
    assert_eq!(value, "2", "one increment was acknowledged");
}
