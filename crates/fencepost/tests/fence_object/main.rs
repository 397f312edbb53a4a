//! The fence in an object store: what is its own. What all fences have in common is in `fences/`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod killed;
mod lost;
mod race;
mod refused;
mod sweep;
mod told;

use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost::fences::object::{ObjectFence, Pointer};
use fencepost::object_store::aws::{AmazonS3, AmazonS3Builder};
use fencepost::object_store::path::Path;
use fencepost::object_store::{ClientOptions, ObjectStore, ObjectStoreExt as _};
use fencepost::{ErrorKind, LockName, Token};
use fencepost_testkit::gate::Gate;
use fencepost_testkit::{SeaweedFs, Slot, shared};
use futures_util::TryStreamExt as _;

static SERVER: Slot<SeaweedFs> = Slot::new(Weak::new());

fn name() -> LockName {
    LockName::new("invoice/42").unwrap()
}

fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// A folder of its own on the server that the tests share.
#[derive(Clone)]
struct Site {
    server: Arc<SeaweedFs>,
    folder: String,
}

impl Site {
    fn new() -> Self {
        let mut bits = [0; 8];
        getrandom::fill(&mut bits).unwrap();
        let folder = format!("test-{:016x}", u64::from_ne_bytes(bits));
        Self { server: shared(&SERVER, SeaweedFs::start).unwrap(), folder }
    }

    /// A client as it comes, which tries again by itself.
    fn store_at(&self, endpoint: String) -> Arc<AmazonS3> {
        // A server that has many wait in line, on a busy machine, takes its time.
        let patient = ClientOptions::new().with_timeout(Duration::from_mins(2));
        let builder = AmazonS3Builder::new().with_endpoint(endpoint);
        let builder = builder.with_bucket_name(self.server.bucket()).with_client_options(patient);
        Arc::new(builder.with_allow_http(true).with_skip_signature(true).build().unwrap())
    }

    fn store(&self) -> Arc<AmazonS3> {
        self.store_at(self.server.endpoint())
    }

    async fn fence(&self) -> ObjectFence {
        ObjectFence::open(self.store(), &self.folder).await.unwrap()
    }

    fn gate(&self) -> Gate {
        Gate::to(self.server.address())
    }

    async fn fence_behind(&self, gate: &Gate) -> ObjectFence {
        ObjectFence::open(self.store_at(gate.endpoint()), &self.folder).await.unwrap()
    }

    /// The end of the request line for the object at this path.
    fn ends(&self, path: &str) -> String {
        format!("{}/{path} HTTP", self.folder)
    }

    fn path(&self, path: &str) -> Path {
        Path::from(format!("{}/{path}", self.folder))
    }

    /// What lies in a folder below ours.
    async fn files(&self, folder: &str) -> Vec<String> {
        let objects: Vec<_> =
            self.store().list(Some(&self.path(folder))).try_collect().await.unwrap();
        objects.iter().map(|object| object.location.filename().unwrap().to_owned()).collect()
    }
}

/// Runs it to its end on a thread that has no runtime: what a hook of the gate is.
fn now<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// The call failed like this, and says these words, on one line.
#[track_caller]
fn fails<T: Debug>(outcome: fencepost::Result<T>, kind: &ErrorKind, words: &[&str]) {
    let error = outcome.expect_err("it should fail");
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    for word in words {
        assert!(message.contains(word), "\"{message}\" does not say \"{word}\"");
    }
    assert!(!message.contains('\n'), "an error is one line: {message}");
}

async fn text(pointer: &Pointer) -> String {
    let bytes = pointer.peek().await.unwrap().unwrap();
    String::from_utf8(bytes.to_vec()).unwrap()
}

#[tokio::test]
async fn data_are_there_or_not_and_may_be_empty() {
    let fence = Site::new().fence().await;
    let (envelope, pointer) = (fence.envelope("a").unwrap(), fence.pointer("b/c d ü").unwrap());
    assert_eq!(envelope.peek().await.unwrap(), None);
    assert_eq!(pointer.peek().await.unwrap(), None);
    assert_eq!(envelope.read(&name(), token(1)).await.unwrap(), None);
    assert_eq!(pointer.read(&name(), token(1)).await.unwrap(), None);
    for data in ["", "x", "fencepost-fence 1 envelope\n\n"] {
        envelope.write(&name(), token(1), data).await.unwrap();
        pointer.write(&name(), token(1), data).await.unwrap();
        assert_eq!(envelope.read(&name(), token(1)).await.unwrap().unwrap(), data);
        assert_eq!(pointer.read(&name(), token(1)).await.unwrap().unwrap(), data);
    }
    envelope.remove(&name(), token(2)).await.unwrap();
    pointer.remove(&name(), token(2)).await.unwrap();
    assert_eq!(envelope.peek().await.unwrap(), None);
    assert_eq!(pointer.peek().await.unwrap(), None);
    // What was removed is still fenced.
    fails(envelope.write(&name(), token(1), "x").await, &ErrorKind::Stale, &["2 has entered"]);
    fails(pointer.write(&name(), token(1), "x").await, &ErrorKind::Stale, &["2 has entered"]);
}

/// Parts that are put by several requests, and taken bit by bit.
#[tokio::test]
async fn large_data_pass_through_a_pointer() {
    let site = Site::new();
    let pointer = site.fence().await.pointer("large").unwrap();
    let data: Vec<u8> = (0..20_000_003_u32).map(|n| (n % 251) as u8).collect();
    pointer.write(&name(), token(1), data.clone()).await.unwrap();
    let opened = pointer.open(&name(), token(1)).await.unwrap().unwrap();
    assert_eq!(opened.meta.size, data.len() as u64);
    let (mut pieces, mut at) = (opened.into_stream(), 0);
    while let Some(piece) = pieces.try_next().await.unwrap() {
        assert!(piece == data[at..at + piece.len()], "the piece at {at} differs");
        at += piece.len();
    }
    assert_eq!(at, data.len());
    assert!(pointer.read(&name(), token(2)).await.unwrap().unwrap() == data);
}

#[tokio::test]
async fn marks_of_a_folder_are_listed_and_others_passed_over() {
    let site = Site::new();
    let fence = site.fence().await;
    assert!(fence.show(None).await.unwrap().is_empty());
    let other = LockName::new("ledger").unwrap();
    fence.envelope("b").unwrap().write(&name(), token(3), vec![0; 100_000]).await.unwrap();
    fence.pointer("a/deep").unwrap().write(&other, token(9), "x").await.unwrap();
    for body in ["", "a note by hand"] {
        site.store().put(&site.path(&format!("note{}", body.len())), body.into()).await.unwrap();
    }
    let marks = fence.show(None).await.unwrap();
    let shown: Vec<_> = marks.iter().map(|mark| (mark.name.as_str(), mark.token.get())).collect();
    assert_eq!(shown, [("ledger", 9), ("invoice/42", 3)]);
    assert_eq!(fence.show(Some(&other)).await.unwrap().len(), 1);
}
