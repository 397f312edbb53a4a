//! The data and their mark in one object.

use bytes::Bytes;
use fencepost_base::{Error, Result};
use fencepost_core::{Label, LockName, Token};

use super::cell::Data;
use super::slot::Slot;
use super::writing::Holder;
use crate::{Mark, Reset};

/// An object that carries its mark in front of its data. For data that fit well into memory and one request: each
/// holder rewrites them once to enter.
///
/// Reading through another tool gives the header and the data: see the byte map in this module's source.
#[derive(Clone, Debug)]
pub struct Envelope(pub(super) Slot);

impl Envelope {
    /// The most data, in bytes. [`Pointer`](super::Pointer) is for more.
    pub const MAX_BYTES: usize = 16 * 1024 * 1024;

    /// Raises the mark to `token`, or refuses with [`Stale`](crate::ErrorKind::Stale). One request if the token has
    /// entered already, else two.
    pub async fn enter(&self, name: &LockName, token: Token) -> Result<()> {
        self.read(name, token).await.map(drop)
    }

    /// [`enter`](Self::enter), with what a person shall read as the one who entered.
    pub async fn enter_as(&self, name: &LockName, token: Token, who: &Label) -> Result<()> {
        self.0.enter(Holder { name, token, who }).await.map(drop)
    }

    /// Enters and reads: the data as they were at that moment, or nothing if nobody has written yet. It costs what
    /// [`enter`](Self::enter) costs.
    pub async fn read(&self, name: &LockName, token: Token) -> Result<Option<Bytes>> {
        let entered = self.0.enter(self.0.holder(name, token)).await?;
        Ok(entered.and_then(|found| data_in(found.cell.data)))
    }

    /// Checks and writes, in one step. Two requests.
    ///
    /// The error is [`Stale`](crate::ErrorKind::Stale) only if nothing was written. It is
    /// [`Unreachable`](crate::ErrorKind::Unreachable) if nobody knows. Then, and after this future was dropped, the request
    /// may still be on its way. A read with the same token does not stop it, because it changes nothing: what it reads may
    /// be overwritten after. Another write does, and so does to enter with a new token.
    pub async fn write(&self, name: &LockName, token: Token, data: impl Into<Bytes>) -> Result<()> {
        let data = data.into();
        let (length, most) = (data.len(), Self::MAX_BYTES);
        if length > most {
            return Err(Error::invalid(format!(
                "{length} bytes are too many for an envelope, which has at most {most}: use a pointer"
            )));
        }
        self.0.write(self.0.holder(name, token), &Data::Here(data)).await
    }

    /// Takes the data away, as a write does, and keeps the mark. To delete the object would forget it.
    pub async fn remove(&self, name: &LockName, token: Token) -> Result<()> {
        self.0.write(self.0.holder(name, token), &Data::None).await
    }

    /// The data, for one who holds no lock and will not write.
    pub async fn peek(&self) -> Result<Option<Bytes>> {
        Ok(self.0.load().await?.and_then(|found| data_in(found.cell.data)))
    }

    /// The mark of `name`, if anybody has entered with that lock. None, too, if the object belongs to another lock.
    pub async fn mark(&self, name: &LockName) -> Result<Option<Mark>> {
        self.0.mark(name).await
    }

    /// Sets the mark to `to`, or forgets it, and keeps a record of it with the data. Returns the mark that was there.
    ///
    /// A mark that is lowered or forgotten lets holders in that it had kept out: see that none is left.
    pub async fn reset(
        &self,
        name: &LockName,
        to: Option<Token>,
        by: &str,
        why: &str,
    ) -> Result<Option<Mark>> {
        self.0.reset(name, to, (by, why)).await
    }

    /// The records of resets, oldest first: those of `name`, or all. The last 16 are kept.
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
