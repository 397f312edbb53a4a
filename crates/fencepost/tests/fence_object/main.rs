//! The fence in an object store: what is specific to object stores. What all fences share is in `fences/`.

#![expect(clippy::unwrap_used, reason = "a test may panic")]

mod gc;
mod killed_writer;
mod lost_puts;
mod lost_replies;
mod races;
mod refused;

use std::fmt::Debug;
use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost::fences::object::object_store::aws::{AmazonS3, AmazonS3Builder};
use fencepost::fences::object::object_store::path::Path;
use fencepost::fences::object::object_store::{ClientOptions, ObjectStore, ObjectStoreExt as _};
use fencepost::fences::object::{ObjectFence, Pointer};
use fencepost::{ErrorKind, FencingToken, LockName, Token};
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

fn fencing(number: u64) -> FencingToken {
    FencingToken::new(name(), token(number))
}

/// A client with the TLS library that everything here uses.
fn builder() -> AmazonS3Builder {
    // An error means that another test has done it.
    let _ = rustls::crypto::ring::default_provider().install_default();
    AmazonS3Builder::new()
}

/// A folder of its own on the shared server.
#[derive(Clone)]
struct Site {
    server: Arc<SeaweedFs>,
    folder: String,
}

impl Site {
    fn new() -> Self {
        let bits = u64::from_ne_bytes(fencepost_base::random::bytes().unwrap());
        let folder = format!("test-{bits:016x}");
        Self { server: shared(&SERVER, SeaweedFs::start).unwrap(), folder }
    }

    /// A default client, which retries by itself.
    fn store_at(&self, endpoint: String) -> Arc<AmazonS3> {
        // On a busy machine this server queues requests for long.
        let patient = ClientOptions::new().with_timeout(Duration::from_mins(2));
        let builder = builder().with_endpoint(endpoint);
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

    /// The files in a folder below ours.
    async fn files(&self, folder: &str) -> Vec<String> {
        let objects: Vec<_> =
            self.store().list(Some(&self.path(folder))).try_collect().await.unwrap();
        objects.iter().map(|object| object.location.filename().unwrap().to_owned()).collect()
    }
}

/// Runs a future on a thread without a runtime, such as a hook of the gate.
fn block_on<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// Asserts that the call failed with this kind and these words, on one line.
#[track_caller]
fn fails<T: Debug>(outcome: fencepost::Result<T>, kind: ErrorKind, words: &[&str]) {
    let error = outcome.expect_err("it should fail");
    let message = error.one_line();
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
async fn data_can_be_absent_or_empty() {
    let fence = Site::new().fence().await;
    let (envelope, pointer) = (fence.envelope("a").unwrap(), fence.pointer("b/c d ü").unwrap());
    assert_eq!(envelope.peek().await.unwrap(), None);
    assert_eq!(pointer.peek().await.unwrap(), None);
    assert_eq!(envelope.read(&fencing(1)).await.unwrap(), None);
    assert_eq!(pointer.read(&fencing(1)).await.unwrap(), None);
    for data in ["", "x", "fencepost-fence 2 envelope\n\n"] {
        envelope.write(&fencing(1), data).await.unwrap();
        pointer.write(&fencing(1), data).await.unwrap();
        assert_eq!(envelope.read(&fencing(1)).await.unwrap().unwrap(), data);
        assert_eq!(pointer.read(&fencing(1)).await.unwrap().unwrap(), data);
    }
    envelope.remove(&fencing(2)).await.unwrap();
    pointer.remove(&fencing(2)).await.unwrap();
    assert_eq!(envelope.peek().await.unwrap(), None);
    assert_eq!(pointer.peek().await.unwrap(), None);
    // A removed object is still fenced.
    fails(envelope.write(&fencing(1), "x").await, ErrorKind::Stale, &["2 has entered"]);
    fails(pointer.write(&fencing(1), "x").await, ErrorKind::Stale, &["2 has entered"]);
}

/// Several requests put the data, and a stream reads it.
#[tokio::test]
async fn large_data_passes_through_a_pointer() {
    let site = Site::new();
    let pointer = site.fence().await.pointer("large").unwrap();
    let data: Vec<u8> = (0..20_000_003_u32).map(|n| (n % 251) as u8).collect();
    pointer.write(&fencing(1), data.clone()).await.unwrap();
    let opened = pointer.open(&fencing(1)).await.unwrap().unwrap();
    assert_eq!(opened.meta.size, data.len() as u64);
    let (mut pieces, mut at) = (opened.into_stream(), 0);
    while let Some(piece) = pieces.try_next().await.unwrap() {
        assert!(piece == data[at..at + piece.len()], "the piece at {at} differs");
        at += piece.len();
    }
    assert_eq!(at, data.len());
    assert!(pointer.read(&fencing(2)).await.unwrap().unwrap() == data);
}

#[tokio::test]
async fn marks_of_a_folder_are_listed_and_other_objects_are_skipped() {
    let site = Site::new();
    let fence = site.fence().await;
    assert!(fence.show(None).await.unwrap().is_empty());
    let other = LockName::new("ledger").unwrap();
    fence.envelope("b").unwrap().write(&fencing(3), vec![0; 100_000]).await.unwrap();
    fence
        .pointer("a/deep")
        .unwrap()
        .write(&FencingToken::new(other.clone(), token(9)), "x")
        .await
        .unwrap();
    for body in ["", "a note by hand"] {
        site.store().put(&site.path(&format!("note{}", body.len())), body.into()).await.unwrap();
    }
    let marks = fence.show(None).await.unwrap();
    let shown: Vec<_> = marks.iter().map(|mark| (mark.name.as_str(), mark.token.get())).collect();
    assert_eq!(shown, [("ledger", 9), ("invoice/42", 3)]);
    assert_eq!(fence.show(Some(&other)).await.unwrap().len(), 1);
}
