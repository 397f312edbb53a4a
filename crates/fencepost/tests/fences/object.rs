//! Object stores for the fence suite: a folder of its own for each case.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::{Arc, Weak};
use std::time::Duration;

use bytes::Bytes;
use fencepost::backend::BoxFuture;
use fencepost::fences::object::ObjectFence;
use fencepost::fences::object::object_store::aws::AmazonS3Builder;
use fencepost::fences::object::object_store::memory::InMemory;
use fencepost::fences::object::object_store::path::Path;
use fencepost::fences::object::object_store::{
    self, ClientOptions, ObjectStore, ObjectStoreExt as _, RetryConfig,
};
use fencepost::fences::{Mark, Reset};
use fencepost::{Error, Label, LockName, Result, Token};
use fencepost_conformance::Unable;
use fencepost_conformance::fences::{BehindIntermediary, Fence, Marks, Resource};
use fencepost_testkit::gate::{Act, Gate};
use fencepost_testkit::{SeaweedFs, Slot, shared};

use super::fencing;

static SERVER: Slot<SeaweedFs> = Slot::new(Weak::new());

#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Shape {
    Envelope,
    Pointer,
}

/// On a server, or in memory.
pub(crate) struct InStore {
    pub(crate) shape: Shape,
    pub(crate) memory: bool,
}

impl Fence for InStore {
    fn name(&self) -> &'static str {
        match (self.shape, self.memory) {
            (Shape::Envelope, false) => "object_envelope",
            (Shape::Pointer, false) => "object_pointer",
            (Shape::Envelope, true) => "object_envelope_in_memory",
            (Shape::Pointer, true) => "object_pointer_in_memory",
        }
    }

    /// This server queues colliding requests for seconds.
    fn rounds(&self) -> u64 {
        if self.memory { 50 } else { 25 }
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Resource>, Unable>> {
        Box::pin(async {
            let storage = if self.memory {
                Storage::Memory(Arc::new(InMemory::new()))
            } else {
                Storage::Server(shared(&SERVER, SeaweedFs::start)?, None)
            };
            let counters = Counters::open(self.shape, storage, folder()?).await?;
            Ok(Box::new(counters) as Box<dyn Resource>)
        })
    }

    fn behind_intermediary(
        &self,
    ) -> Option<BoxFuture<'_, Result<Box<dyn BehindIntermediary>, Unable>>> {
        // A store in memory has no intermediary.
        let shape = (!self.memory).then_some(self.shape)?;
        Some(Box::pin(async move {
            let server = shared(&SERVER, SeaweedFs::start)?;
            let gate = Arc::new(Gate::to(server.address()));
            let storage = Storage::Server(server, Some(Arc::clone(&gate)));
            let counters = Counters::open(shape, storage, folder()?).await?;
            Ok(Box::new(BehindGate { counters, gate }) as Box<dyn BehindIntermediary>)
        }))
    }
}

/// An S3 gateway that times out while a write is in flight.
struct BehindGate {
    counters: Counters,
    gate: Arc<Gate>,
}

impl BehindIntermediary for BehindGate {
    fn resource(&self) -> &dyn Resource {
        &self.counters
    }

    fn write_given_up<'a>(
        &'a self,
        name: &'a LockName,
        token: Option<Token>,
        value: i64,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            // It has entered: only the write itself times out.
            if let Some(token) = token {
                self.counters.read(name, Some(token)).await?;
            }
            // The object with the mark, retries included; the data of a pointer is elsewhere.
            let path = format!("{} ", Counters::path(name));
            for _ in 0..100 {
                let late = "504 Gateway Timeout\r\nContent-Length: 0";
                self.gate.once("PUT", path.clone(), Act::GiveUp(late));
            }
            let written = self.counters.write(name, token, value).await;
            self.gate.open_up();
            written
        })
    }

    fn finish(&self) -> BoxFuture<'_, Result<()>> {
        Box::pin(async {
            let answers =
                self.gate.deliver().map_err(|error| Error::unreachable(error.to_string()));
            if answers?.is_empty() {
                return Err(Error::unreachable("nothing was given up"));
            }
            Ok(())
        })
    }
}

/// A folder for one case.
fn folder() -> Result<String, Unable> {
    let number = u64::from_ne_bytes(fencepost_base::random::bytes()?);
    Ok(format!("case-{number:016x}"))
}

#[derive(Clone)]
enum Storage {
    Memory(Arc<InMemory>),
    /// With the gate in front of it, if any.
    Server(Arc<SeaweedFs>, Option<Arc<Gate>>),
}

struct Counters {
    shape: Shape,
    storage: Storage,
    folder: String,
    store: Arc<dyn ObjectStore>,
    fence: ObjectFence,
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` takes")]
fn failed(error: object_store::Error) -> Error {
    Error::unreachable(error.to_string())
}

impl Counters {
    async fn open(shape: Shape, storage: Storage, folder: String) -> Result<Self> {
        let store: Arc<dyn ObjectStore> = match &storage {
            Storage::Memory(store) => Arc::clone(store) as _,
            Storage::Server(server, gate) => {
                // Here the client's own retries would only take time.
                let retry = match gate {
                    None => RetryConfig::default(),
                    Some(_) => RetryConfig { max_retries: 0, ..RetryConfig::default() },
                };
                let endpoint =
                    gate.as_ref().map_or_else(|| server.endpoint(), |gate| gate.endpoint());
                // On a busy machine this server queues requests for long.
                let patient = ClientOptions::new().with_timeout(Duration::from_mins(2));
                // An error means that another case has done it.
                let _ = rustls::crypto::ring::default_provider().install_default();
                let store = AmazonS3Builder::new()
                    .with_endpoint(endpoint)
                    .with_retry(retry)
                    .with_bucket_name(server.bucket())
                    .with_client_options(patient)
                    .with_allow_http(true)
                    .with_skip_signature(true)
                    .build();
                Arc::new(store.map_err(failed)?)
            }
        };
        let fence = ObjectFence::open(Arc::clone(&store), &folder).await?;
        Ok(Self { shape, storage, folder, store, fence })
    }

    /// A lock's name may be longer than a path segment.
    fn path(name: &LockName) -> String {
        let mut hasher = DefaultHasher::new();
        name.as_str().hash(&mut hasher);
        format!("{:016x}", hasher.finish())
    }

    /// Where writers without the fence write.
    fn bare(&self, name: &LockName) -> Path {
        Path::from(format!("{}/bare/{}", self.folder, Self::path(name)))
    }

    async fn fenced(&self, name: &LockName, token: Option<Token>) -> Result<Option<Bytes>> {
        let path = Self::path(name);
        match (self.shape, token) {
            (Shape::Envelope, Some(token)) => {
                self.fence.envelope(&path)?.read(&fencing(name, token)).await
            }
            (Shape::Envelope, None) => self.fence.envelope(&path)?.peek().await,
            (Shape::Pointer, Some(token)) => {
                self.fence.pointer(&path)?.read(&fencing(name, token)).await
            }
            (Shape::Pointer, None) => self.fence.pointer(&path)?.peek().await,
        }
    }
}

fn number(bytes: Option<Bytes>) -> Result<i64> {
    let Some(bytes) = bytes else { return Ok(0) };
    let number = std::str::from_utf8(&bytes).ok().and_then(|text| text.parse().ok());
    number.ok_or_else(|| Error::unreachable(format!("{bytes:?} is no counter")))
}

impl Resource for Counters {
    fn another(&self) -> BoxFuture<'_, Result<Box<dyn Resource>>> {
        Box::pin(async {
            let other = Self::open(self.shape, self.storage.clone(), self.folder.clone()).await?;
            Ok(Box::new(other) as Box<dyn Resource>)
        })
    }

    fn read<'a>(&'a self, name: &'a LockName, token: Option<Token>) -> BoxFuture<'a, Result<i64>> {
        Box::pin(async move {
            if token.is_none() {
                match self.store.get(&self.bare(name)).await {
                    Err(object_store::Error::NotFound { .. }) => {}
                    got => {
                        return number(Some(got.map_err(failed)?.bytes().await.map_err(failed)?));
                    }
                }
            }
            number(self.fenced(name, token).await?)
        })
    }

    fn write<'a>(
        &'a self,
        name: &'a LockName,
        token: Option<Token>,
        value: i64,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (path, value) = (Self::path(name), value.to_string());
            match (self.shape, token) {
                (Shape::Envelope, Some(token)) => {
                    self.fence.envelope(&path)?.write(&fencing(name, token), value).await
                }
                (Shape::Pointer, Some(token)) => {
                    self.fence.pointer(&path)?.write(&fencing(name, token), value).await
                }
                (_, None) => {
                    let put = self.store.put(&self.bare(name), value.into()).await;
                    put.map(drop).map_err(failed)
                }
            }
        })
    }

    fn marks(&self) -> Option<&dyn Marks> {
        Some(self)
    }
}

impl Marks for Counters {
    fn enter<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        who: &'a Label,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let path = Self::path(name);
            match self.shape {
                Shape::Envelope => {
                    self.fence.envelope(&path)?.enter_as(&fencing(name, token), who).await
                }
                Shape::Pointer => {
                    self.fence.pointer(&path)?.enter_as(&fencing(name, token), who).await
                }
            }
        })
    }

    fn mark<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Option<Mark>>> {
        Box::pin(async move {
            let path = Self::path(name);
            match self.shape {
                Shape::Envelope => self.fence.envelope(&path)?.mark(name).await,
                Shape::Pointer => self.fence.pointer(&path)?.mark(name).await,
            }
        })
    }

    fn show<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Mark>>> {
        Box::pin(self.fence.show(name))
    }

    fn reset<'a>(
        &'a self,
        name: &'a LockName,
        to: Option<Token>,
        by: &'a str,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Option<Mark>>> {
        Box::pin(async move {
            let path = Self::path(name);
            match self.shape {
                Shape::Envelope => self.fence.envelope(&path)?.reset(name, to, by, why).await,
                Shape::Pointer => self.fence.pointer(&path)?.reset(name, to, by, why).await,
            }
        })
    }

    fn audit<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Reset>>> {
        Box::pin(self.fence.audit(name))
    }
}
