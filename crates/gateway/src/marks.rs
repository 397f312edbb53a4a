//! The gateway's marks: the highest token per lock name that has entered, on disk before anybody acts on it.
//!
//! ```text
//! DIR/marks.db     fencepost_marks, fencepost_resets   as in fencepost_fence::sqlite
//!                  fencepost_gateway                     one row: whether the last run left requests at the upstream
//! DIR/marks.lock   held (flock) by the one gateway that uses the directory
//! ```
//!
//! What must hold: [`Marks::enter`] succeeds only when the token is the mark on disk, synced. One thread writes. All
//! pending raises are one transaction and share one sync. Marks that were written or read are cached, so a holder's second
//! request needs no disk. The cache never refuses a request, only the database does. When another program has written to
//! the database (`fencepost fence reset`), the cache is cleared within a second.
//!
//! Only the gateway's user and root can open these files, and a group that has write permission ([`directory`]).
//!
//! This stops being true if the disk loses what it has synced, or the database is restored from a backup.

mod cache;
mod directory;
mod store;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use cache::MarkCache;
use fencepost_base::{Error, Result};
use fencepost_core::FencingToken;
use fencepost_fence::Mark;
use parking_lot::{Condvar, Mutex};
use store::Store;
use tokio::sync::oneshot;

use crate::metrics::Metrics;
use crate::server::spawn_thread;

/// Why a token did not enter.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A later holder has entered.
    Stale(Mark),
    /// The database cannot be used. The mark is unknown.
    Failed(String),
}

/// One request to the writer.
struct MarkRequest {
    fencing: FencingToken,
    who: String,
    answer: oneshot::Sender<Result<(), Refusal>>,
}

/// What callers and the writer share.
#[derive(Default)]
struct Shared {
    requests: Mutex<PendingRequests>,
    changed: Condvar,
    cache: MarkCache,
}

#[derive(Default)]
struct PendingRequests {
    waiting: Vec<MarkRequest>,
    closing: bool,
    /// On closing, record that no request has an unknown outcome.
    clean: bool,
}

/// The marks, and the thread that writes them.
pub(crate) struct Marks {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<Result<()>>>>,
    /// For the control of a test only: answer before the mark is on disk.
    forward_before_mark: bool,
}

impl Marks {
    /// Opens the marks in a directory. Returns whether the last run left requests whose outcome is unknown.
    pub(crate) fn open(
        directory: &Path,
        forward_before_mark: bool,
        metrics: &Arc<Metrics>,
    ) -> Result<(Self, bool)> {
        let (store, outcome_unknown) = Store::open(directory)?;
        let shared = Arc::<Shared>::default();
        let (theirs, metrics) = (Arc::clone(&shared), Arc::clone(metrics));
        let thread =
            spawn_thread("fencepost-marks", move || writer::write(store, &theirs, &metrics))?;
        Ok((
            Self { shared, thread: Mutex::new(Some(thread)), forward_before_mark },
            outcome_unknown,
        ))
    }

    /// Makes this token the mark, on disk, or refuses it.
    pub(crate) async fn enter(
        &self,
        fencing: &FencingToken,
        who: impl FnOnce() -> String,
    ) -> Result<(), Refusal> {
        if self.shared.cache.contains(fencing.name(), fencing.token()) {
            return Ok(());
        }
        let (answer, answered) = oneshot::channel();
        let request = MarkRequest { fencing: fencing.clone(), who: who(), answer };
        let first = {
            let mut requests = self.shared.requests.lock();
            requests.waiting.push(request);
            requests.waiting.len() == 1
        };
        if first {
            self.shared.changed.notify_one();
        }
        if self.forward_before_mark {
            return Ok(());
        }
        answered.await.unwrap_or_else(|_| {
            Err(Refusal::Failed("the thread that writes the marks has ended".into()))
        })
    }

    /// Ends the writer. `clean` records that no request has an unknown outcome.
    pub(crate) fn close(&self, clean: bool) -> Result<()> {
        {
            let mut requests = self.shared.requests.lock();
            (requests.closing, requests.clean) = (true, clean);
        }
        self.shared.changed.notify_one();
        let thread = self.thread.lock().take();
        thread.map_or(Ok(()), |thread| {
            let panicked = |_| Err(Error::unreachable("the thread that writes the marks panicked"));
            thread.join().unwrap_or_else(panicked)
        })
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        // Not clean: a clean stop has called `close` before.
        let _ = self.close(false);
    }
}
