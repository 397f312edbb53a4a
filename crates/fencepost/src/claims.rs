//! Of many things to do, one that nobody else is at.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::client::Client;
use crate::error::{ErrorKind, Result};
use crate::once::{Begun, Once, Turn};
use crate::options::acquire_options;

/// Things of which each is to be done once, by one worker. Made by [`Fencepost::claim`](crate::Fencepost::claim).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let fp = fencepost::Fencepost::connect("memory:claims").await?;
/// # let may = |claims: fencepost::Claims| claims.may_repeat();
/// let imports = ["import/a.csv", "import/b.csv"];
/// let claims = fp.claim(imports);
/// # let claims = may(claims);
/// while let Some(turn) = claims.take().await? {
///     println!("importing {} under token {}", turn.key(), turn.token());
///     turn.done("").await?;
/// }
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing is claimed until `take` is awaited"]
pub struct Claims {
    items: Vec<String>,
    each: Once,
}

acquire_options!(Claims, each.lock.options);

impl Claims {
    pub(crate) fn new(client: &Arc<Client>, items: Vec<String>) -> Self {
        let each = Once::new(client, "").wait_at_most(Duration::ZERO);
        Self { items, each }
    }

    /// How long it is remembered that an item is done: see [`Once::keep`].
    pub fn keep(mut self, keep: Duration) -> Self {
        self.each = self.each.keep(keep);
        self
    }

    /// Takes a store that may lose its records: see [`Once::may_repeat`].
    pub fn may_repeat(mut self) -> Self {
        self.each = self.each.may_repeat();
        self
    }

    /// How many items are neither done nor failed for good: free, or in work.
    pub async fn left(&self) -> Result<usize> {
        let mut left = 0;
        for item in &self.items {
            let entry = self.each.for_key(item).entry().await?;
            left += usize::from(!entry.is_some_and(|entry| entry.is_settled()));
        }
        Ok(left)
    }

    /// The first item that is neither done, nor failed for good, nor in work, with its guard; `None` if there is
    /// none. One that is in work now may be free later, if its worker dies or gives up: ask [`left`](Self::left).
    pub async fn take(&self) -> Result<Option<Turn>> {
        for item in &self.items {
            match self.each.for_key(item).begin().await {
                Ok(Begun::Ours(turn)) => return Ok(Some(turn)),
                Ok(Begun::Settled(_)) => {}
                Err(error) if matches!(error.kind(), ErrorKind::Held(_) | ErrorKind::Lost(_)) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(None)
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").field("items", &self.items.len()).finish_non_exhaustive()
    }
}
