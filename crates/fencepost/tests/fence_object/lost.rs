//! Answers that get lost.
//!
//! A put is carried out, and its answer does not come. The client of S3 then tries again by itself if the connection
//! was closed, and its second try fails: the object is not what it was, because of the first. It says "412", and means
//! "done". After a reset it does not try again and says "failed", and it may have been done as well.

use fencepost::fences::object::ObjectFence;
use fencepost::object_store::{
    self, ObjectStore as _, ObjectStoreExt as _, PutMode, UpdateVersion,
};
use fencepost::{ErrorKind, Result};
use fencepost_testkit::gate::{Act, Gate};

use super::{Site, name, now, token};

/// Does it to both shapes, each at a path of its own. `lose` says what becomes of the put of the mark's object.
struct Shapes {
    site: Site,
    gate: Gate,
    behind: ObjectFence,
}

impl Shapes {
    async fn new() -> Self {
        let site = Site::new();
        let gate = site.gate();
        let behind = site.fence_behind(&gate).await;
        Self { site, gate, behind }
    }

    /// A holder with 33 has entered and written "before". Then it writes "mine" through the gate, where `act` happens.
    async fn write(&self, envelope: bool, act: Act) -> Result<()> {
        let (fence, path) = (self.site.fence().await, path(envelope));
        if envelope {
            fence.envelope(path)?.write(&name(), token(33), "before").await?;
        } else {
            fence.pointer(path)?.write(&name(), token(33), "before").await?;
        }
        self.gate.once("PUT", self.site.ends(path), act);
        let done = if envelope {
            self.behind.envelope(path)?.write(&name(), token(33), "mine").await
        } else {
            self.behind.pointer(path)?.write(&name(), token(33), "mine").await
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

/// Holder 34 enters, and writes so often.
fn later_holder(site: &Site, envelope: bool, writes: usize) -> Box<dyn FnOnce() + Send> {
    let site = site.clone();
    Box::new(move || {
        now(async {
            let fence = site.fence().await;
            if envelope {
                let later = fence.envelope(path(envelope)).unwrap();
                later.enter(&name(), token(34)).await.unwrap();
                for _ in 0..writes {
                    later.write(&name(), token(34), "later").await.unwrap();
                }
            } else {
                let later = fence.pointer(path(envelope)).unwrap();
                later.enter(&name(), token(34)).await.unwrap();
                for _ in 0..writes {
                    later.write(&name(), token(34), "later").await.unwrap();
                }
            }
        });
    })
}

fn nothing() -> Box<dyn FnOnce() + Send> {
    Box::new(|| {})
}

#[tokio::test(flavor = "multi_thread")]
async fn a_write_whose_answer_is_lost_is_done() {
    let shapes = Shapes::new().await;
    for envelope in [true, false] {
        for act in [Act::LoseAnswer, Act::ResetAfter, Act::LoseRequest] {
            shapes.write(envelope, act(nothing())).await.unwrap();
            assert_eq!(shapes.data(envelope).await, "mine");
        }
    }
}

/// To call it stale would be wrong: what it wrote is what the later holder reads.
#[tokio::test(flavor = "multi_thread")]
async fn it_is_done_also_if_a_later_holder_has_entered_since() {
    for act in [Act::LoseAnswer, Act::ResetAfter] {
        for envelope in [true, false] {
            let shapes = Shapes::new().await;
            let act = act(later_holder(&shapes.site, envelope, 0));
            shapes.write(envelope, act).await.unwrap();
            assert_eq!(shapes.data(envelope).await, "mine");
            let shapes = Shapes::new().await;
            let act = Act::LoseAnswer(later_holder(&shapes.site, envelope, 3));
            shapes.write(envelope, act).await.unwrap();
            assert_eq!(shapes.data(envelope).await, "later");
        }
    }
}

/// The counterpart: it looks the same from the outside, and nothing was written.
#[tokio::test(flavor = "multi_thread")]
async fn a_request_that_is_lost_is_stale_once_a_later_holder_has_entered() {
    for envelope in [true, false] {
        for writes in [0, 3] {
            let shapes = Shapes::new().await;
            let act = Act::LoseRequest(later_holder(&shapes.site, envelope, writes));
            let done = shapes.write(envelope, act).await;
            super::fails(done, &ErrorKind::Stale, &["token 33", "34 has entered"]);
            let expected = if writes == 0 { "before" } else { "later" };
            assert_eq!(shapes.data(envelope).await, expected);
            if !envelope {
                let files = shapes.site.files("p.data").await;
                assert_eq!(
                    files.len(),
                    1 + writes,
                    "the refused one took its data away: {files:?}"
                );
            }
        }
    }
}

/// Nobody remembers whether it was done: it is not called stale, and not done.
#[tokio::test(flavor = "multi_thread")]
async fn what_nobody_knows_is_not_made_up() {
    let shapes = Shapes::new().await;
    let act = Act::LoseAnswer(later_holder(&shapes.site, true, 257));
    let done = shapes.write(true, act).await;
    super::fails(
        done,
        &ErrorKind::Unreachable,
        &["nobody knows", "token 33", "read before you go on"],
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn an_entry_whose_answer_is_lost_is_made() {
    let shapes = Shapes::new().await;
    for act in [Act::LoseAnswer, Act::ResetAfter, Act::LoseRequest] {
        for path in ["new", "new", "other"] {
            let envelope = shapes.behind.envelope(path).unwrap();
            let mark = envelope.mark(&name()).await.unwrap().map_or(1, |mark| mark.token.get() + 1);
            shapes.gate.once("PUT", shapes.site.ends(path), act(nothing()));
            envelope.enter(&name(), token(mark)).await.unwrap();
            assert_eq!(shapes.gate.waiting(), 0);
            assert_eq!(envelope.mark(&name()).await.unwrap().unwrap().token, token(mark));
        }
    }
}

/// A reset to 5 is carried out, 6 enters, and the answer is lost. To do it again would shut 6 out, and let 5 in after it.
#[tokio::test(flavor = "multi_thread")]
async fn a_reset_whose_answer_is_lost_is_done_once() {
    for act in [Act::LoseAnswer, Act::ResetAfter] {
        for envelope in [true, false] {
            let shapes = Shapes::new().await;
            let (path, fence, words) =
                (path(envelope), shapes.site.fence().await, ("ops", "moved"));
            let (as_envelope, as_pointer) =
                (fence.envelope(path).unwrap(), fence.pointer(path).unwrap());
            if envelope {
                as_envelope.write(&name(), token(9), "data").await.unwrap();
            } else {
                as_pointer.write(&name(), token(9), "data").await.unwrap();
            }
            let site = shapes.site.clone();
            let enters = move || {
                now(async {
                    let fence = site.fence().await;
                    if envelope {
                        fence.envelope(path).unwrap().enter(&name(), token(6)).await
                    } else {
                        fence.pointer(path).unwrap().enter(&name(), token(6)).await
                    }
                })
                .unwrap();
            };
            shapes.gate.once("PUT", shapes.site.ends(path), act(Box::new(enters)));
            let (old, mark, audit) = if envelope {
                let behind = shapes.behind.envelope(path).unwrap();
                let old = behind.reset(&name(), Some(token(5)), words.0, words.1).await.unwrap();
                (
                    old,
                    as_envelope.mark(&name()).await.unwrap(),
                    as_envelope.audit(None).await.unwrap(),
                )
            } else {
                let behind = shapes.behind.pointer(path).unwrap();
                let old = behind.reset(&name(), Some(token(5)), words.0, words.1).await.unwrap();
                (
                    old,
                    as_pointer.mark(&name()).await.unwrap(),
                    as_pointer.audit(None).await.unwrap(),
                )
            };
            assert_eq!(shapes.gate.waiting(), 0, "the gate has seen the put");
            assert_eq!(mark.unwrap().token, token(6), "it was not lowered again");
            assert_eq!(old.unwrap().token, token(9), "what the reset found");
            let audit: Vec<_> = audit.iter().map(|reset| (reset.from, reset.to)).collect();
            assert_eq!(audit, [(Some(token(9)), Some(token(5)))]);
            assert_eq!(shapes.data(envelope).await, "data");
        }
    }
}

/// The control: who takes "412" for "not done" and begins anew counts twice.
#[tokio::test(flavor = "multi_thread")]
async fn control_a_plain_loop_of_compare_and_set_counts_twice() {
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
