//! Data in objects that never change, and a small object that names the current one.
//!
//! ```text
//! KEY                               the pointer: mark, and the name of the current data object
//! KEY.data/<token>-<write id>       one object per write, put before the pointer names it, and never put again
//! ```
//!
//! What must hold: the pointer never names a data object that was deleted. A write puts its data first. `gc` first
//! raises a count in the pointer, by compare-and-set, and then deletes only what it had listed before, except the
//! object that the pointer named then. A writer that finds another count than at its start puts its data again under
//! another name. So what it deletes was published and overwritten, or can never be published. No clock decides
//! here, and a writer may sleep for any length of time.

use bytes::Bytes;
use fencepost_base::{Error, ErrorKind, Result};
use fencepost_core::{FencingToken, Label, LockName, Token};
use futures_util::future::try_join_all;
use object_store::path::Path;
use object_store::{Error as ObjectStoreError, GetResult, ObjectStoreExt as _, PutPayload};

use super::cas_object::{CasObject, LoadedObject};
use super::error::explain;
use super::format::{Data, ObjectState, WriteId};
use super::rules::{Holder, Step, WriteAttempt};
use crate::{Mark, Reset};

/// The suffix of the folder of the data objects, after the pointer's own name.
pub(super) const DATA: &str = ".data";
/// Larger data is put in parts of this size.
const PART: usize = 8 * 1024 * 1024;
/// How many parts are sent at once.
const AT_ONCE: usize = 4;
/// How often a reader follows the pointer, and a writer puts its data, if `gc` interferes.
const TRIES: usize = 10;

/// A small object with the mark, which points to the data. For data of any size that fits into the writer's memory:
/// entering rewrites the pointer only.
///
/// Old data objects stay until [`gc`](Self::gc).
#[derive(Clone, Debug)]
pub struct Pointer {
    pub(super) cas_object: CasObject,
    /// The folder of the data objects.
    pub(super) folder: Path,
}

impl Pointer {
    /// Enters: raises the mark to the token, or refuses with [`Stale`](crate::ErrorKind::Stale). One request if the
    /// token has entered already, else two.
    pub async fn enter(&self, fencing: &FencingToken) -> Result<()> {
        self.cas_object.enter(self.cas_object.holder(fencing)).await.map(drop)
    }

    /// [`enter`](Self::enter), with a label that says who entered, for people.
    pub async fn enter_as(&self, fencing: &FencingToken, who: &Label) -> Result<()> {
        self.cas_object.enter(Holder { fencing, who }).await.map(drop)
    }

    /// Enters and reads the data; none if nothing was written yet. One request more than [`enter`](Self::enter).
    pub async fn read(&self, fencing: &FencingToken) -> Result<Option<Bytes>> {
        whole(self.open(fencing).await?).await
    }

    /// [`read`](Self::read) as a stream, for data that does not fit into memory. [`gc`](Self::gc) may delete
    /// overwritten data while you read it: the store returns an error then; open it again.
    pub async fn open(&self, fencing: &FencingToken) -> Result<Option<GetResult>> {
        self.follow(Some(self.cas_object.holder(fencing))).await
    }

    /// Reads the data without entering, for readers that hold no lock and do not write.
    pub async fn peek(&self) -> Result<Option<Bytes>> {
        whole(self.follow(None).await?).await
    }

    /// Follows the pointer, after entering if there is a holder. If the data is missing it was overwritten and deleted
    /// since the pointer was read: then the pointer names other data by now.
    async fn follow(&self, holder: Option<Holder<'_>>) -> Result<Option<GetResult>> {
        let mut gone = None;
        for _ in 0..TRIES {
            let found = match holder {
                Some(holder) => self.cas_object.enter(holder).await?,
                None => self.cas_object.load().await?,
            };
            let Some(Data::There { file, length }) = found.map(|found| found.state.data) else {
                return Ok(None);
            };
            let path = self.folder.clone().join(file.as_str());
            match self.cas_object.store.get(&path).await {
                Err(ObjectStoreError::NotFound { .. }) if gone.as_ref() != Some(&file) => {
                    gone = Some(file);
                }
                Err(ObjectStoreError::NotFound { .. }) => {
                    return Err(dangling(&path, "is not there"));
                }
                Ok(got) if got.meta.size != length => return Err(dangling(&path, "was changed")),
                got => return got.map(Some).map_err(|error| explain(&error)),
            }
        }
        let path = &self.cas_object.path;
        Err(Error::unreachable(format!(
            "the data of \"{path}\" was deleted {TRIES} times during a read: let `gc` delete only what is older"
        )))
    }

    /// Enters and writes: puts the data under a new name, and changes the pointer to it in one step with the check. Three
    /// requests; four if the token is new. Large data is sent in parts.
    ///
    /// The error is [`Stale`](crate::ErrorKind::Stale) only if nothing was written. It is
    /// [`Unreachable`](crate::ErrorKind::Unreachable) if the outcome is unknown. Then, and after this future was
    /// dropped, the request may still arrive. A read with the same token does not stop it, because a read changes
    /// nothing: what it read may be overwritten afterwards. Another write stops it, and so does entering with a new
    /// token.
    pub async fn write(&self, fencing: &FencingToken, data: impl Into<PutPayload>) -> Result<()> {
        let (data, holder) = (data.into(), self.cas_object.holder(fencing));
        for _ in 0..TRIES {
            // Enters first: a stale holder puts no data.
            let entered = self.cas_object.enter(holder).await?;
            let id = WriteId::draw()?;
            let file = format!("{}-{:016x}", fencing.token(), id.0);
            let path = self.folder.clone().join(file.as_str());
            let length = data.content_length() as u64;
            self.upload(&path, data.clone()).await?;
            let there = Data::There { file, length };
            let attempt = WriteAttempt::new(holder, id);
            match self.publish(entered, attempt, &there).await {
                Ok(true) => return Ok(()),
                // The data may be deleted. If not, a later `gc` deletes it.
                Ok(false) => {}
                Err(error) => {
                    // The pointer will never name the data. If this fails, `gc` deletes it.
                    if error.kind() == ErrorKind::Stale {
                        let _ = self.cas_object.store.delete(&path).await;
                    }
                    return Err(error);
                }
            }
        }
        let path = &self.cas_object.path;
        Err(Error::unreachable(format!(
            "`gc` ran on \"{path}\" {TRIES} times during a write: run it less often"
        )))
    }

    /// Removes the data, as a write, and keeps the mark. Deleting the pointer would delete the mark.
    pub async fn remove(&self, fencing: &FencingToken) -> Result<()> {
        self.cas_object.write(self.cas_object.holder(fencing), &Data::None).await
    }

    /// Changes the pointer to the data. Returns `false` if `gc` ran since `entered` was read: the data may be
    /// deleted then.
    async fn publish(
        &self,
        entered: Option<LoadedObject>,
        mut attempt: WriteAttempt<'_>,
        data: &Data,
    ) -> Result<bool> {
        let gc_count = |state: Option<&ObjectState>| state.map(|state| state.gc_count);
        let began = gc_count(entered.as_ref().map(|found| &found.state));
        let step = |state: Option<&ObjectState>| {
            Ok(match attempt.step(self.cas_object.shape, state, data)? {
                Step::Done(()) => Step::Done(true),
                Step::Put(..) if gc_count(state) != began => Step::Done(false),
                Step::Put(next, ()) => Step::Put(next, true),
            })
        };
        Ok(self.cas_object.change(entered, step).await?.0)
    }

    async fn upload(&self, path: &Path, data: PutPayload) -> Result<()> {
        let failed = |error: ObjectStoreError| explain(&error);
        if data.content_length() <= PART {
            return self.cas_object.store.put(path, data).await.map(drop).map_err(failed);
        }
        let mut upload = self.cas_object.store.put_multipart(path).await.map_err(failed)?;
        let parts = parts_of(data);
        let sent = async {
            for some in parts.chunks(AT_ONCE) {
                try_join_all(some.iter().map(|part| upload.put_part(part.clone()))).await?;
            }
            upload.complete().await
        };
        if let Err(error) = sent.await {
            // If this fails, a lifecycle rule for unfinished uploads removes the parts.
            let _ = upload.abort().await;
            return Err(explain(&error));
        }
        Ok(())
    }

    /// The mark of `name`; none if no holder of that lock has entered, or if the object belongs to another lock.
    pub async fn mark(&self, name: &LockName) -> Result<Option<Mark>> {
        self.cas_object.mark(name).await
    }

    /// Sets the mark to `to`, or deletes it, and logs the reset in the pointer. Returns the previous mark.
    ///
    /// A lowered or deleted mark lets in holders that it refused before: first make sure that none is left.
    pub async fn reset(
        &self,
        name: &LockName,
        to: Option<Token>,
        by: &str,
        why: &str,
    ) -> Result<Option<Mark>> {
        self.cas_object.reset(name, to, (by, why)).await
    }

    /// The logged resets, oldest first: those of `name`, or all. The last 16 are kept.
    pub async fn audit(&self, name: Option<&LockName>) -> Result<Vec<Reset>> {
        self.cas_object.audit(name).await
    }
}

async fn whole(got: Option<GetResult>) -> Result<Option<Bytes>> {
    match got {
        None => Ok(None),
        Some(got) => got.bytes().await.map(Some).map_err(|error| explain(&error)),
    }
}

fn dangling(path: &Path, what: &str) -> Error {
    Error::refused(format!(
        "the data object \"{path}\" that the pointer names {what}, and `gc` does not do that: check which \
         program or lifecycle rule did, and restore the object or write again"
    ))
}

/// Splits the data into parts of [`PART`] bytes; the last one has the rest.
fn parts_of(data: PutPayload) -> Vec<PutPayload> {
    let (mut parts, mut part, mut room) = (Vec::new(), Vec::new(), PART);
    for mut bytes in data {
        while bytes.len() >= room {
            part.push(bytes.split_to(room));
            parts.push(std::mem::take(&mut part).into_iter().collect());
            room = PART;
        }
        if !bytes.is_empty() {
            room -= bytes.len();
            part.push(bytes);
        }
    }
    if !part.is_empty() {
        parts.push(part.into_iter().collect());
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_have_one_size_and_lose_no_byte() {
        let pieces = [3, PART, 0, 2 * PART - 3, 7].map(|length| Bytes::from(vec![1; length]));
        let lengths: Vec<_> =
            parts_of(pieces.into_iter().collect()).iter().map(PutPayload::content_length).collect();
        assert_eq!(lengths, [PART, PART, PART, 7]);
        assert!(parts_of(PutPayload::new()).is_empty());
    }
}
