//! The marks of the proxy: the highest token per lock name that has entered, on disk before anybody acts on it.
//!
//! ```text
//! DIR/marks.db     fencepost_marks, fencepost_resets   as in fencepost_fence::sqlite
//!                  fencepost_proxy                     one row: whether the last run left requests at the upstream
//! DIR/marks.lock   held (flock) by the one proxy that uses the directory
//! ```
//!
//! What must hold: [`Marks::enter`] says yes only when the token is the mark on disk, synced. One thread writes; all
//! raises that wait are one transaction, so they share one sync. What was written or read is remembered, so that the
//! second request of a holder needs no disk. The memory never decides against a request, only the database does;
//! and when another program wrote to it (`fencepost fence reset`), the memory is dropped, a second later at most.
//!
//! Only the proxy's user can open these files, root, and a group if it may write them ([`directory`]).
//!
//! That stops being true if the disk does not keep what it has synced, or the database is put back to an older state.

mod directory;
mod known;
mod store;
mod writer;

use std::path::Path;
use std::sync::Arc;
use std::thread::JoinHandle;

use fencepost_base::{Error, Result};
use fencepost_core::{LockName, Token};
use fencepost_fence::Mark;
use known::Known;
use parking_lot::{Condvar, Mutex};
use store::Store;
use tokio::sync::oneshot;

use crate::metrics::Metrics;

/// What `enter` can say.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// A later holder has entered.
    Stale(Mark),
    /// The database can not be used. Nothing is known of the mark.
    Failed(String),
}

/// One request for the writer.
struct Ask {
    name: LockName,
    token: Token,
    who: String,
    answer: oneshot::Sender<Result<(), Refusal>>,
}

/// What callers and the writer share.
struct Desk {
    asks: Mutex<Asks>,
    came: Condvar,
    known: Known,
}

#[derive(Default)]
struct Asks {
    waiting: Vec<Ask>,
    closing: bool,
    /// Leave a note that nothing is in doubt.
    clean: bool,
}

/// The marks, and the thread that writes them.
pub(crate) struct Marks {
    desk: Arc<Desk>,
    thread: Mutex<Option<JoinHandle<Result<()>>>>,
    /// For the control of a test only: say yes before it is on disk.
    hasty: bool,
}

impl Marks {
    /// Opens the marks in a directory, and says whether the last run left requests in doubt.
    pub(crate) fn open(
        directory: &Path,
        hasty: bool,
        metrics: &Arc<Metrics>,
    ) -> Result<(Self, bool)> {
        let (store, in_doubt) = Store::open(directory)?;
        let desk = Arc::new(Desk {
            asks: Mutex::default(),
            came: Condvar::new(),
            known: Known::default(),
        });
        let (theirs, metrics) = (Arc::clone(&desk), Arc::clone(metrics));
        let thread = std::thread::Builder::new()
            .name("fencepost-marks".into())
            .spawn(move || writer::write(store, &theirs, &metrics))
            .map_err(|error| Error::unreachable("can not start a thread").because(error))?;
        Ok((Self { desk, thread: Mutex::new(Some(thread)), hasty }, in_doubt))
    }

    /// Enters: the mark is this token, and on disk, or the token is refused.
    pub(crate) async fn enter(
        &self,
        name: &LockName,
        token: Token,
        who: impl FnOnce() -> String,
    ) -> Result<(), Refusal> {
        if self.desk.known.is(name, token) {
            return Ok(());
        }
        let (answer, answered) = oneshot::channel();
        let ask = Ask { name: name.clone(), token, who: who(), answer };
        let first = {
            let mut asks = self.desk.asks.lock();
            asks.waiting.push(ask);
            asks.waiting.len() == 1
        };
        if first {
            self.desk.came.notify_one();
        }
        if self.hasty {
            return Ok(());
        }
        answered.await.unwrap_or_else(|_| Err(Refusal::Failed("the writer has ended".into())))
    }

    /// Ends the writer, and notes whether no request is in doubt.
    pub(crate) fn close(&self, clean: bool) -> Result<()> {
        {
            let mut asks = self.desk.asks.lock();
            (asks.closing, asks.clean) = (true, clean);
        }
        self.desk.came.notify_one();
        let thread = self.thread.lock().take();
        thread.map_or(Ok(()), |thread| {
            thread.join().unwrap_or_else(|_| Err(Error::unreachable("the writer panicked")))
        })
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        // Not clean: whoever wanted that has closed it before.
        let _ = self.close(false);
    }
}
