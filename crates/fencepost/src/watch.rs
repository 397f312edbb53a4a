//! Follows a lock as it changes hands.

use std::sync::Arc;

use fencepost_core::LockName;

use crate::backend::{Glimpse, LockInfo};
use crate::bounded_store::BoundedStore;
use crate::error::Result;

/// The states of one lock, one after the other. Made by [`Fencepost::watch`](crate::Fencepost::watch).
/// It always ends on the latest state; states that came and went in between may be skipped.
pub struct Watch {
    store: Arc<BoundedStore>,
    name: LockName,
    seen: Option<Glimpse>,
}

impl Watch {
    pub(crate) fn new(store: &Arc<BoundedStore>, name: LockName) -> Self {
        Self { store: Arc::clone(store), name, seen: None }
    }

    /// The present state on the first call, then each one that differs from the last. Dropping the future
    /// loses nothing.
    pub async fn next(&mut self) -> Result<LockInfo> {
        let info = self.store.changed(self.name.clone(), self.seen.clone()).await?;
        self.seen = Some(info.glimpse());
        Ok(info)
    }
}
