//! Of many items, the first that no other worker has.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::LockName;

use crate::client::Client;
use crate::error::{ErrorKind, Result};
use crate::ledger::{LOOK_UP_BATCH, Ledger, RecordInfo};
use crate::once::{Once, PREFIX, RunGuard, Start, name_of};
use crate::options::acquire_options;

/// Items that are each done once, by one worker. Made by [`Fencepost::claim`](crate::Fencepost::claim).
///
/// ```
/// # tokio::runtime::Runtime::new().unwrap().block_on(async {
/// let fp = fencepost::Fencepost::connect("memory:claims").await?;
/// # let may = |claims: fencepost::Claims| claims.may_repeat();
/// let imports = ["import/a.csv", "import/b.csv"];
/// let claims = fp.claim(imports);
/// # let claims = may(claims);
/// while let Some(claimed) = claims.take().await? {
///     println!("importing {} under token {}", claimed.key(), claimed.token());
///     claimed.done("").await?;
/// }
/// # Ok::<(), fencepost::Error>(()) }).unwrap();
/// ```
#[derive(Clone)]
#[must_use = "nothing is claimed until `take` is awaited"]
pub struct Claims {
    client: Arc<Client>,
    items: Vec<String>,
    each: Once,
}

acquire_options!(Claims, each.lock.options);

impl Claims {
    pub(crate) fn new(client: &Arc<Client>, items: Vec<String>) -> Self {
        let each = Once::new(client, "").wait_timeout(Duration::ZERO);
        Self { client: Arc::clone(client), items, each }
    }

    /// How long the record of a done item stays: see [`Once::retain_for`].
    pub fn retain_for(mut self, retention: Duration) -> Self {
        self.each = self.each.retain_for(retention);
        self
    }

    /// Accepts a store that can lose records: see [`Once::may_repeat`].
    pub fn may_repeat(mut self) -> Self {
        self.each = self.each.may_repeat();
        self
    }

    /// How many items are neither done nor failed: free, or in work.
    pub async fn left(&self) -> Result<usize> {
        let ledger = self.client.ledger(true)?;
        let mut left = 0;
        for batch in self.items.chunks(LOOK_UP_BATCH) {
            left += self.unfinished(&*ledger, batch).await?.len();
        }
        Ok(left)
    }

    /// The first item that is neither done, nor failed, nor in work, with its guard; `None` if there is none. An
    /// item that is in work now may be free later, if its worker dies or gives up: check [`left`](Self::left).
    pub async fn take(&self) -> Result<Option<RunGuard>> {
        let ledger = self.each.checked_ledger()?;
        for batch in self.items.chunks(LOOK_UP_BATCH) {
            for (item, name) in self.unfinished(&*ledger, batch).await? {
                let item = self.each.for_key(item);
                match item.begin_unfinished(Arc::clone(&ledger), name).await {
                    Ok(Start::Claimed(claimed)) => return Ok(Some(claimed)),
                    Ok(Start::Finished(_)) => {}
                    Err(error) if matches!(error.kind(), ErrorKind::Held | ErrorKind::Lost) => {}
                    Err(error) => return Err(error),
                }
            }
        }
        Ok(None)
    }

    /// The items of a batch that are neither done nor failed for good, each with the name of its record.
    async fn unfinished<'a>(
        &self,
        ledger: &dyn Ledger,
        batch: &'a [String],
    ) -> Result<Vec<(&'a String, LockName)>> {
        let names = batch.iter().map(|item| name_of(PREFIX, item)).collect::<Result<Vec<_>>>()?;
        let records = self.client.store.look_up_all(ledger, names.clone()).await?;
        let is_finished = |name: &LockName| records.get(name).is_some_and(RecordInfo::is_finished);
        Ok(batch.iter().zip(names).filter(|(_, name)| !is_finished(name)).collect())
    }
}

impl fmt::Debug for Claims {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Claims").field("items", &self.items.len()).finish_non_exhaustive()
    }
}
