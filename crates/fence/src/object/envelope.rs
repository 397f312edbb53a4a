//! The data and their mark in one object.

use bytes::Bytes;
use fencepost_base::{Error, Result};
use fencepost_core::{FencingToken, Label, LockName, Token};

use super::cas_object::CasObject;
use super::format::Data;
use super::rules::Holder;
use crate::{Mark, Reset};

/// An object with its mark in front of its data. For data that fits into memory and into one request: each holder
/// rewrites it once to enter.
///
/// Other tools read the header and the data: `format.rs` in the source has the format.
#[derive(Clone, Debug)]
pub struct Envelope(pub(super) CasObject);

impl Envelope {
    /// The largest size of the data, in bytes. Use a [`Pointer`](super::Pointer) for more.
    pub const MAX_BYTES: usize = 16 * 1024 * 1024;

    /// Enters: raises the mark to the token, or refuses with [`Stale`](crate::ErrorKind::Stale). One request if the
    /// token has entered already, else two.
    pub async fn enter(&self, fencing: &FencingToken) -> Result<()> {
        self.read(fencing).await.map(drop)
    }

    /// [`enter`](Self::enter), with a label that says who entered, for people.
    pub async fn enter_as(&self, fencing: &FencingToken, who: &Label) -> Result<()> {
        self.0.enter(Holder { fencing, who }).await.map(drop)
    }

    /// Enters and reads the data; none if nothing was written yet. Costs as much as [`enter`](Self::enter).
    pub async fn read(&self, fencing: &FencingToken) -> Result<Option<Bytes>> {
        let entered = self.0.enter(self.0.holder(fencing)).await?;
        Ok(entered.and_then(|found| data_in(found.state.data)))
    }

    /// Enters and writes, in one step. Two requests.
    ///
    /// The error is [`Stale`](crate::ErrorKind::Stale) only if nothing was written. It is
    /// [`Unreachable`](crate::ErrorKind::Unreachable) if the outcome is unknown. Then, and after this future was
    /// dropped, the request may still arrive. A read with the same token does not stop it, because a read changes
    /// nothing: what it read may be overwritten afterwards. Another write stops it, and so does entering with a new
    /// token.
    pub async fn write(&self, fencing: &FencingToken, data: impl Into<Bytes>) -> Result<()> {
        let data = data.into();
        let (length, most) = (data.len(), Self::MAX_BYTES);
        if length > most {
            return Err(Error::invalid(format!(
                "{length} bytes are too many for an envelope, which has at most {most}: use a pointer"
            )));
        }
        self.0.write(self.0.holder(fencing), &Data::Here(data)).await
    }

    /// Removes the data, as a write, and keeps the mark. Deleting the object would delete the mark.
    pub async fn remove(&self, fencing: &FencingToken) -> Result<()> {
        self.0.write(self.0.holder(fencing), &Data::None).await
    }

    /// Reads the data without entering, for readers that hold no lock and do not write.
    pub async fn peek(&self) -> Result<Option<Bytes>> {
        Ok(self.0.load().await?.and_then(|found| data_in(found.state.data)))
    }

    /// The mark of `name`; none if no holder of that lock has entered, or if the object belongs to another lock.
    pub async fn mark(&self, name: &LockName) -> Result<Option<Mark>> {
        self.0.mark(name).await
    }

    /// Sets the mark to `to`, or deletes it, and logs the reset in the object. Returns the previous mark.
    ///
    /// A lowered or deleted mark lets in holders that it refused before: first make sure that none is left.
    pub async fn reset(
        &self,
        name: &LockName,
        to: Option<Token>,
        by: &str,
        why: &str,
    ) -> Result<Option<Mark>> {
        self.0.reset(name, to, (by, why)).await
    }

    /// The logged resets, oldest first: those of `name`, or all. The last 16 are kept.
    pub async fn audit(&self, name: Option<&LockName>) -> Result<Vec<Reset>> {
        self.0.audit(name).await
    }
}

fn data_in(data: Data) -> Option<Bytes> {
    match data {
        Data::Here(bytes) => Some(bytes),
        Data::None | Data::There { .. } => None,
    }
}
