//! The fence in an object store, for crate `object_store`: S3 and what is compatible with it, GCS, Azure.
//!
//! ```
//! use std::sync::Arc;
//! use fencepost::fences::object::ObjectFence;
//! use fencepost::fences::object::object_store::memory::InMemory;
//! # use fencepost::{FencingToken, LockName, Token};
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! # let fencing = FencingToken::new(LockName::new("invoice/42")?, Token::new(33)?);
//! let store = Arc::new(InMemory::new()); // or an AmazonS3, ...
//! let fence = ObjectFence::open(store, "invoices").await?;
//! let invoice = fence.envelope("42.json")?;
//! // `fencing` is `guard.fencing()`.
//! let old = invoice.read(&fencing).await?; // enters first
//! # assert!(old.is_none());
//! invoice.write(&fencing, "{\"sum\": 1}").await?; // refused if a later holder has entered since
//! # Ok::<(), fencepost::Error>(()) }).unwrap();
//! ```
//!
//! Two shapes, one contract (P8):
//!
//! | | [`Envelope`] | [`Pointer`] |
//! |---|---|---|
//! | the mark is | in front of the data, in the same object | in a small object that names the data's |
//! | good for | up to some megabytes | any size that fits into the writer's memory |
//! | requests: enter, first / again | 2 / 1 | 2 / 1 |
//! | requests: read / write, once entered | 1 / 2 | 2 / 3 |
//! | left behind | nothing | old data objects, until `gc` |
//!
//! What must hold: the object with the mark changes only by a put on the condition that it is still what was read. So no
//! holder can write between another's check and its write, and a stale holder finds the mark of the later one. An object
//! belongs to one lock: a [`FencingToken`](crate::FencingToken) of another name is refused.
//!
//! The mark belongs to the object, not to the lock: entering one object refuses nobody at another. If one lock protects
//! several objects, enter all of them before you read the first, or keep them behind one [`Pointer`].
//!
//! When it does not hold:
//!
//! - **The store does not check conditions.** [`ObjectFence::open`] refuses a store that has none, or ignores them. It
//!   cannot detect a store that checks them most of the time: test yours under load first.
//! - **A write bypasses the fence**: a plain put or copy, or a delete of the object and its mark, by a user, by a
//!   lifecycle rule, by a replica or backup that is written over the bucket. A restored version of an object brings
//!   back its mark.
//! - **Reads are stale** (a cache, a replica in another region). Then a stale holder may read old data once. Its write
//!   is still refused, because conditions are checked where the writes go.
//!
//! The mark is not in the metadata of an object, because its `ETag` does not cover them.
//!
//! A lost reply does not count as a refusal: see `rules.rs`. The outcome of a call whose future is dropped is unknown,
//! and its request may still arrive: see [`Envelope::write`]. Times in marks and records are by the clock of the client
//! that wrote them. Timeouts and retries are set in the store that you bring (`ClientOptions`, `RetryConfig`).

mod cas_object;
mod envelope;
mod error;
mod format;
mod gc;
mod pointer;
mod probe;
mod rules;

use std::sync::Arc;

use fencepost_core::{Label, LockName};
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{Error as ObjectStoreError, ObjectMeta, ObjectStore, ObjectStoreExt as _};

pub use envelope::Envelope;
pub use pointer::Pointer;

use error::{explain, unfit};
use fencepost_base::label::default_label;
use fencepost_base::{Error, Result};
use format::{HEADER_MAX, ObjectState, Shape, Unfit};

use super::{Mark, Reset};

/// The driver of this fence. Your store must be of this version. A new major version of the driver is a breaking change
/// of this crate.
pub use ::object_store;

/// A folder of a store, with fenced objects.
#[derive(Clone, Debug)]
pub struct ObjectFence {
    store: Arc<dyn ObjectStore>,
    folder: Path,
    who: Label,
}

impl ObjectFence {
    /// Opens the folder, `""` for the whole store, and checks that the store supports what a fence needs, with six small
    /// requests. An error of the kind [`Refused`](crate::ErrorKind::Refused) says what it does not support.
    pub async fn open(store: Arc<dyn ObjectStore>, folder: &str) -> Result<Self> {
        // So that a failure to start the clock's thread shows now, and not at the first conflict.
        fencepost_base::clock::start()?;
        let folder = parsed(folder)?;
        let who = default_label()?;
        probe::probe(&store, &folder).await?;
        Ok(Self { store, folder, who })
    }

    /// The object at this path in the folder, with its mark in front of its data. Sends nothing yet.
    pub fn envelope(&self, path: &str) -> Result<Envelope> {
        self.cas_object(path, Shape::Envelope).map(Envelope)
    }

    /// The object at this path in the folder, which points to its data. Sends nothing yet.
    pub fn pointer(&self, path: &str) -> Result<Pointer> {
        let cas_object = self.cas_object(path, Shape::Pointer)?;
        let folder = parsed(&format!("{}{}", cas_object.path, pointer::DATA))?;
        Ok(Pointer { cas_object, folder })
    }

    fn cas_object(&self, path: &str, shape: Shape) -> Result<cas_object::CasObject> {
        let below = parsed(path)?;
        if below.is_root() {
            return Err(Error::invalid("the path of the object is empty: name an object"));
        }
        let path: Path = self.folder.parts().chain(below.parts()).collect();
        if !may_be_fenced(&path) {
            return Err(Error::invalid(format!(
                "\"{path}\" is not a valid path for a fenced object: a name that ends in \"{}\" or begins with \"{}\" \
                 is reserved for the fence",
                pointer::DATA,
                probe::PROBE
            )));
        }
        let (store, who) = (Arc::clone(&self.store), self.who.clone());
        Ok(cas_object::CasObject { store, path, shape, who })
    }

    /// The marks of all objects in the folder, or of those of one lock, sorted by path. Reads the header of each object.
    pub async fn show(&self, name: Option<&LockName>) -> Result<Vec<Mark>> {
        let marks = self.states().await?.into_iter().filter_map(|state| state.mark);
        Ok(marks.filter(|mark| name.is_none_or(|name| mark.name == *name)).collect())
    }

    /// The logged resets of all objects in the folder, or of one lock, sorted by path and age.
    pub async fn audit(&self, name: Option<&LockName>) -> Result<Vec<Reset>> {
        let resets = self.states().await?.into_iter().flat_map(|state| state.resets);
        Ok(resets.filter(|reset| name.is_none_or(|name| reset.name == *name)).collect())
    }

    /// The states of all objects, without their data. Skips objects that were not written through a fence.
    async fn states(&self) -> Result<Vec<ObjectState>> {
        let folder = (!self.folder.is_root()).then_some(&self.folder);
        let listed = self.store.list(folder).try_collect().await;
        let mut listed: Vec<ObjectMeta> = listed.map_err(|error| explain(&error))?;
        listed.sort_by(|one, other| one.location.cmp(&other.location));
        let mut states = Vec::new();
        for object in listed {
            let head = object.size.min(HEADER_MAX as u64);
            if head == 0 || !may_be_fenced(&object.location) {
                continue;
            }
            let bytes = match self.store.get_range(&object.location, 0..head).await {
                // Deleted since it was listed.
                Err(ObjectStoreError::NotFound { .. }) => continue,
                bytes => bytes.map_err(|error| explain(&error))?,
            };
            match ObjectState::decode_header(&bytes) {
                Ok((state, ..)) => states.push(state),
                Err(Unfit::Foreign) => {}
                Err(found) => return Err(unfit(object.location.as_ref(), &found)),
            }
        }
        Ok(states)
    }
}

fn parsed(path: &str) -> Result<Path> {
    Path::parse(path).map_err(|error| {
        let path = path.escape_debug();
        // The cause as text: it quotes the path, which may contain control characters.
        Error::invalid(format!(
            "\"{path}\" is not a path in an object store: use parts that are not empty, \".\" or \"..\", \
             with one \"/\" between them"
        ))
        .with_source(error.to_string().escape_debug().to_string())
    })
}

/// Whether the path is not that of a data object or a probe.
fn may_be_fenced(path: &Path) -> bool {
    path.parts().all(|part| {
        let part = part.as_ref();
        !part.ends_with(pointer::DATA) && !part.starts_with(probe::PROBE)
    })
}
