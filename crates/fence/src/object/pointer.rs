//! Data in objects that never change, and a small object that says which of them counts.
//!
//! ```text
//! KEY                               the pointer: mark, and the name of the current data object
//! KEY.data/<token>-<write id>       one object per write, put before the pointer says so, and never put again
//! ```
//!
//! What must hold: the pointer never names a data object that is gone. A write puts its data first. A sweep first
//! raises a count in the pointer, by compare-and-set, and then removes only what it had listed before that, without the
//! one that the pointer named then. A writer that finds another count than when it began puts its data again under
//! another name. So what a sweep removes was published before, and overwritten; or can never be published. No clock
//! has a say in it, and a writer may sleep as long as it likes.

use bytes::Bytes;
use fencepost_base::{Error, ErrorKind, Result};
use fencepost_core::{Label, LockName, Token};
use futures_util::future::try_join_all;
use object_store::path::Path;
use object_store::{Error as Fault, GetResult, ObjectStoreExt as _, PutPayload};

use super::cell::{Cell, Data, WriteId};
use super::faults::explain;
use super::slot::{Found, Slot};
use super::writing::{Holder, Step, Writing};
use crate::{Mark, Reset};

/// What the folder of the data objects is called after the pointer's own name.
pub(super) const DATA: &str = ".data";
/// More data than this are put in parts of this size.
const PART: usize = 8 * 1024 * 1024;
/// How many parts are on their way at once.
const AT_ONCE: usize = 4;
/// How often a reader follows the pointer, and a writer puts its data, while others sweep.
const TRIES: usize = 10;

/// A small object with the mark, which points to the data. For data of any size, though a writer has them in memory: to enter
/// rewrites the pointer only.
///
/// Old data objects stay until [`sweep`](Self::sweep).
#[derive(Clone, Debug)]
pub struct Pointer {
    pub(super) slot: Slot,
    /// Where the data objects are.
    pub(super) folder: Path,
}

impl Pointer {
    /// Raises the mark to `token`, or refuses with [`Stale`](crate::ErrorKind::Stale). One request if the token has
    /// entered already, else two.
    pub async fn enter(&self, name: &LockName, token: Token) -> Result<()> {
        self.slot.enter(self.slot.holder(name, token)).await.map(drop)
    }

    /// [`enter`](Self::enter), with what a person shall read as the one who entered.
    pub async fn enter_as(&self, name: &LockName, token: Token, who: &Label) -> Result<()> {
        self.slot.enter(Holder { name, token, who }).await.map(drop)
    }

    /// Enters and reads: the data as they were at that moment, or nothing if nobody has written yet. One request more
    /// than [`enter`](Self::enter).
    pub async fn read(&self, name: &LockName, token: Token) -> Result<Option<Bytes>> {
        whole(self.open(name, token).await?).await
    }

    /// [`read`](Self::read) for data that do not fit into memory: what the store gives to take them bit by bit. A sweep
    /// may remove them meanwhile, once they were overwritten: then the store's error says so; open them again.
    pub async fn open(&self, name: &LockName, token: Token) -> Result<Option<GetResult>> {
        self.follow(Some(self.slot.holder(name, token))).await
    }

    /// The data, for one who holds no lock and will not write.
    pub async fn peek(&self) -> Result<Option<Bytes>> {
        whole(self.follow(None).await?).await
    }

    /// Follows the pointer, after the holder has entered if there is one. Data that are gone were overwritten and swept
    /// since it was read: then it names others by now.
    async fn follow(&self, holder: Option<Holder<'_>>) -> Result<Option<GetResult>> {
        let mut gone = None;
        for _ in 0..TRIES {
            let found = match holder {
                Some(holder) => self.slot.enter(holder).await?,
                None => self.slot.load().await?,
            };
            let Some(Data::There { file, length }) = found.map(|found| found.cell.data) else {
                return Ok(None);
            };
            let path = self.folder.clone().join(file.as_str());
            match self.slot.store.get(&path).await {
                Err(Fault::NotFound { .. }) if gone.as_ref() != Some(&file) => gone = Some(file),
                Err(Fault::NotFound { .. }) => return Err(dangling(&path, "is not there")),
                Ok(got) if got.meta.size != length => return Err(dangling(&path, "was changed")),
                got => return got.map(Some).map_err(|fault| explain(&fault)),
            }
        }
        let path = &self.slot.path;
        Err(Error::unreachable(format!(
            "what \"{path}\" points to was swept {TRIES} times while it was read: sweep what is older"
        )))
    }

    /// Checks and writes: puts the data under a name of their own, and lets the pointer name them, in one step with the
    /// check. Three requests; four if the token is new. Large data are put in parts, out of memory.
    ///
    /// The error is [`Stale`](crate::ErrorKind::Stale) only if nothing was written. It is
    /// [`Unreachable`](crate::ErrorKind::Unreachable) if nobody knows. Then, and after this future was dropped, the request
    /// may still be on its way. A read with the same token does not stop it, because it changes nothing: what it reads may
    /// be overwritten after. Another write does, and so does to enter with a new token.
    pub async fn write(
        &self,
        name: &LockName,
        token: Token,
        data: impl Into<PutPayload>,
    ) -> Result<()> {
        let (data, holder) = (data.into(), self.slot.holder(name, token));
        for _ in 0..TRIES {
            // Enters first: who came too late puts no data.
            let entered = self.slot.enter(holder).await?;
            let id = WriteId::draw()?;
            let file = format!("{token}-{:016x}", id.0);
            let path = self.folder.clone().join(file.as_str());
            let length = data.content_length() as u64;
            self.upload(&path, data.clone()).await?;
            let there = Data::There { file, length };
            let writing = Writing::new(holder, id);
            match self.publish(entered, writing, &there).await {
                Ok(true) => return Ok(()),
                // Swept. What is left of them is for a sweep too, which knows what the pointer names.
                Ok(false) => {}
                Err(error) => {
                    // Nobody will ever point to them. If this fails, a sweep finds them.
                    if *error.kind() == ErrorKind::Stale {
                        let _ = self.slot.store.delete(&path).await;
                    }
                    return Err(error);
                }
            }
        }
        let path = &self.slot.path;
        Err(Error::unreachable(format!(
            "\"{path}\" was swept {TRIES} times while it was written: sweep less often"
        )))
    }

    /// Takes the data away, as a write does, and keeps the mark. To delete the pointer would forget it.
    pub async fn remove(&self, name: &LockName, token: Token) -> Result<()> {
        self.slot.write(self.slot.holder(name, token), &Data::None).await
    }

    /// Lets the pointer name the data. False if somebody has swept since `entered` was read: then they may be gone.
    async fn publish(
        &self,
        entered: Option<Found>,
        mut writing: Writing<'_>,
        data: &Data,
    ) -> Result<bool> {
        let sweeps = |cell: Option<&Cell>| cell.map(|cell| cell.sweeps);
        let began = sweeps(entered.as_ref().map(|found| &found.cell));
        let step = |cell: Option<&Cell>| {
            Ok(match writing.step(self.slot.shape, cell, data)? {
                Step::Done(()) => Step::Done(true),
                Step::Put(..) if sweeps(cell) != began => Step::Done(false),
                Step::Put(next, ()) => Step::Put(next, true),
            })
        };
        Ok(self.slot.change(entered, step).await?.0)
    }

    async fn upload(&self, path: &Path, data: PutPayload) -> Result<()> {
        let failed = |fault: Fault| explain(&fault);
        if data.content_length() <= PART {
            return self.slot.store.put(path, data).await.map(drop).map_err(failed);
        }
        let mut upload = self.slot.store.put_multipart(path).await.map_err(failed)?;
        let parts = parts_of(data);
        let sent = async {
            for some in parts.chunks(AT_ONCE) {
                try_join_all(some.iter().map(|part| upload.put_part(part.clone()))).await?;
            }
            upload.complete().await
        };
        if let Err(fault) = sent.await {
            // What can not be taken back, a rule of the bucket for parts has to.
            let _ = upload.abort().await;
            return Err(explain(&fault));
        }
        Ok(())
    }

    /// The mark of `name`, if anybody has entered with that lock. None, too, if the object belongs to another lock.
    pub async fn mark(&self, name: &LockName) -> Result<Option<Mark>> {
        self.slot.mark(name).await
    }

    /// Sets the mark to `to`, or forgets it, and keeps a record of it in the pointer. Returns the mark that was there.
    ///
    /// A mark that is lowered or forgotten lets holders in that it had kept out: see that none is left.
    pub async fn reset(
        &self,
        name: &LockName,
        to: Option<Token>,
        by: &str,
        why: &str,
    ) -> Result<Option<Mark>> {
        self.slot.reset(name, to, (by, why)).await
    }

    /// The records of resets, oldest first: those of `name`, or all. The last 16 are kept.
    pub async fn audit(&self, name: Option<&LockName>) -> Result<Vec<Reset>> {
        self.slot.audit(name).await
    }
}

async fn whole(got: Option<GetResult>) -> Result<Option<Bytes>> {
    match got {
        None => Ok(None),
        Some(got) => got.bytes().await.map(Some).map_err(|fault| explain(&fault)),
    }
}

fn dangling(path: &Path, what: &str) -> Error {
    Error::refused(format!(
        "the data object \"{path}\" that the pointer names {what}, and no sweep does that: see who or \
         which rule of the bucket did, and restore it or write anew"
    ))
}

/// The data in parts of [`PART`] bytes; the last one has the rest.
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
    fn parts_are_of_one_size_and_lose_nothing() {
        let pieces = [3, PART, 0, 2 * PART - 3, 7].map(|length| Bytes::from(vec![1; length]));
        let lengths: Vec<_> =
            parts_of(pieces.into_iter().collect()).iter().map(PutPayload::content_length).collect();
        assert_eq!(lengths, [PART, PART, PART, 7]);
        assert!(parts_of(PutPayload::new()).is_empty());
    }
}
