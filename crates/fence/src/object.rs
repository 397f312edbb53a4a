//! The fence in an object store, for crate `object_store`: S3 and what is compatible with it, GCS, Azure.
//!
//! ```
//! use std::sync::Arc;
//! use fencepost::fences::object::ObjectFence;
//! use fencepost::object_store::memory::InMemory;
//! # use fencepost::{LockName, Token};
//! # tokio::runtime::Runtime::new().unwrap().block_on(async {
//! # let (name, token) = (LockName::new("invoice/42")?, Token::new(33)?);
//! let store = Arc::new(InMemory::new()); // or an AmazonS3, ...
//! let fence = ObjectFence::open(store, "invoices").await?;
//! let invoice = fence.envelope("42.json")?;
//! // `name` is the lock's, `token` is `guard.token()`.
//! let old = invoice.read(&name, token).await?; // enters first
//! # assert!(old.is_none());
//! invoice.write(&name, token, "{\"sum\": 1}").await?; // refused, if a later holder has entered since
//! # Ok::<(), fencepost::Error>(()) }).unwrap();
//! ```
//!
//! Two shapes, one contract (P8):
//!
//! | | [`Envelope`] | [`Pointer`] |
//! |---|---|---|
//! | the mark is | in front of the data, in the same object | in a small object that names the data's |
//! | good for | up to some megabytes | any size that a client has memory for to write |
//! | requests: enter, first / again | 2 / 1 | 2 / 1 |
//! | requests: read / write, once entered | 1 / 2 | 2 / 3 |
//! | left behind | nothing | old data objects, until `sweep` |
//!
//! What must hold: the object with the mark changes only by a put on the condition that it is what was read. So no
//! holder can write between another's check and its write, and a stale one finds the mark of who came later. An object
//! belongs to one lock: another name is refused.
//!
//! The mark is the object's, and not the lock's: a holder that has entered one object has shut nobody out of another. Where
//! a lock is over several objects, enter all of them before you read the first, or keep them behind one [`Pointer`].
//!
//! When that stops being true:
//!
//! - **The store does not keep conditions.** [`ObjectFence::open`] refuses one that has none, or ignores them. It
//!   can not see one that keeps them most of the time: put the store under load first.
//! - **Somebody writes past the fence**, with a plain put or copy, or deletes the object, and the mark with it: by hand,
//!   by a rule that expires objects, by a replica or a backup of the bucket that is written over it. A version of an
//!   object that is brought back brings back its mark.
//! - **Reads lag behind** (a cache, a replica in another region). Then a stale holder may be served old data once. Its
//!   write is refused all the same: conditions are checked where the writes go.
//!
//! A mark does not live in the metadata of an object: its `ETag` does not cover them.
//!
//! An answer that is lost is not taken for a refusal: see `writing.rs`. A call whose future is dropped may be done or
//! not, and its request may still be on its way: see [`Envelope::write`]. The times in marks and records are by the clock
//! of the client that wrote them. How long to wait for an answer, and how often to
//! try again, is set in the store that you bring (`ClientOptions`, `RetryConfig`).

mod cell;
mod envelope;
mod faults;
mod pointer;
mod probe;
mod slot;
mod sweep;
mod writing;

use std::sync::Arc;

use fencepost_core::{Label, LockName};
use futures_util::TryStreamExt as _;
use object_store::path::Path;
use object_store::{Error as Fault, ObjectMeta, ObjectStore, ObjectStoreExt as _};

pub use envelope::Envelope;
pub use pointer::Pointer;

use cell::{Cell, HEADER_MAX, Shape, Unfit};
use faults::{explain, unfit};
use fencepost_base::label::default_label;
use fencepost_base::{Error, Result};

use super::{Mark, Reset};

/// A folder of a store, in which objects are fenced.
#[derive(Clone, Debug)]
pub struct ObjectFence {
    store: Arc<dyn ObjectStore>,
    folder: Path,
    who: Label,
}

impl ObjectFence {
    /// Opens the folder, `""` for the whole store, and sees whether the store can do what a fence needs: six small
    /// requests. An error of the kind [`Refused`](crate::ErrorKind::Refused) says why it can not.
    pub async fn open(store: Arc<dyn ObjectStore>, folder: &str) -> Result<Self> {
        // So that want of threads shows now and not when two meet.
        fencepost_base::clock::start()?;
        let folder = parsed(folder)?;
        let who = default_label()?;
        probe::probe(&store, &folder).await?;
        Ok(Self { store, folder, who })
    }

    /// The object at this path in the folder, with its mark in front of its data. Nothing is asked or made yet.
    pub fn envelope(&self, path: &str) -> Result<Envelope> {
        self.slot(path, Shape::Envelope).map(Envelope)
    }

    /// The object at this path in the folder, which points to its data. Nothing is asked or made yet.
    pub fn pointer(&self, path: &str) -> Result<Pointer> {
        let slot = self.slot(path, Shape::Pointer)?;
        let folder = parsed(&format!("{}{}", slot.path, pointer::DATA))?;
        Ok(Pointer { slot, folder })
    }

    fn slot(&self, path: &str, shape: Shape) -> Result<slot::Slot> {
        let below = parsed(path)?;
        if below.is_root() {
            return Err(Error::invalid("the path of the object is empty: name an object"));
        }
        let path: Path = self.folder.parts().chain(below.parts()).collect();
        if !may_be_fenced(&path) {
            return Err(Error::invalid(format!(
                "\"{path}\" is no path for a fenced object: what ends in \"{}\" or begins with \"{}\" \
                 belongs to the fence",
                pointer::DATA,
                probe::PROBE
            )));
        }
        let (store, who) = (Arc::clone(&self.store), self.who.clone());
        Ok(slot::Slot { store, path, shape, who })
    }

    /// The marks of all objects in the folder, or of those that belong to a lock, by path. It reads the head of each
    /// object.
    pub async fn show(&self, name: Option<&LockName>) -> Result<Vec<Mark>> {
        let marks = self.cells().await?.into_iter().filter_map(|cell| cell.mark);
        Ok(marks.filter(|mark| name.is_none_or(|name| mark.name == *name)).collect())
    }

    /// The records of resets of all objects in the folder, or of those that belong to a lock, by path and age.
    pub async fn audit(&self, name: Option<&LockName>) -> Result<Vec<Reset>> {
        let resets = self.cells().await?.into_iter().flat_map(|cell| cell.resets);
        Ok(resets.filter(|reset| name.is_none_or(|name| reset.name == *name)).collect())
    }

    /// All cells, without their data. What was not written through a fence is passed over.
    async fn cells(&self) -> Result<Vec<Cell>> {
        let folder = (!self.folder.is_root()).then_some(&self.folder);
        let listed = self.store.list(folder).try_collect().await;
        let mut listed: Vec<ObjectMeta> = listed.map_err(|fault| explain(&fault))?;
        listed.sort_by(|one, other| one.location.cmp(&other.location));
        let mut cells = Vec::new();
        for object in listed {
            let head = object.size.min(HEADER_MAX as u64);
            if head == 0 || !may_be_fenced(&object.location) {
                continue;
            }
            let bytes = match self.store.get_range(&object.location, 0..head).await {
                // Gone since it was listed.
                Err(Fault::NotFound { .. }) => continue,
                bytes => bytes.map_err(|fault| explain(&fault))?,
            };
            match Cell::decode_header(&bytes) {
                Ok((cell, ..)) => cells.push(cell),
                Err(Unfit::Foreign) => {}
                Err(found) => return Err(unfit(object.location.as_ref(), &found)),
            }
        }
        Ok(cells)
    }
}

fn parsed(path: &str) -> Result<Path> {
    Path::parse(path).map_err(|fault| {
        let path = path.escape_debug();
        Error::invalid(format!(
            "\"{path}\" is no path in an object store: use parts that are not empty, \".\" or \"..\", \
             with one \"/\" between them"
        ))
        .because(fault.to_string().escape_debug().to_string())
    })
}

/// Whether the path is neither a data object nor a probe.
fn may_be_fenced(path: &Path) -> bool {
    path.parts().all(|part| {
        let part = part.as_ref();
        !part.ends_with(pointer::DATA) && !part.starts_with(probe::PROBE)
    })
}
