//! The desk where transactions are queued: whoever comes first does the work of all who wait.
//!
//! A commit costs one sync of the disk, whatever it contains. So jobs queue up while a transaction runs,
//! and the next one takes them all: one sync, many grants. Replies leave only after the commit that
//! explains them.
//!
//! Who runs it? A caller who finds the desk free runs its own job there and then: handing it to another
//! thread and back costs two wake-ups (docs/decisions/0004). It blocks for one commit at most. Whatever would take longer, because another process has the file or more
//! jobs came meanwhile, is left to the desk's own thread, which can wait. The client's own runtime never
//! runs jobs: its thread must be free to tell guards of their deadline even when the disk hangs.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::connection::wait_at_most;
use super::error::{Failure, is_busy};
use super::file::{self, OpenFile};
use super::presence::Marks;
use super::wake::{Address, Post};
use crate::backend::{Reply, StoreError, StoreResult, Surroundings};
use crate::retry::CALL_TIMEOUT;

/// How often a client that writes removes what others left to expire.
const CLEAN_EVERY: Duration = Duration::from_mins(1);

/// What a job sees: the open transaction, the time in it, who lives, and who is to be woken once it is committed.
pub(super) struct Sheet<'a> {
    pub(super) db: &'a Connection,
    pub(super) now: Moment,
    pub(super) marks: &'a Marks,
    pub(super) wake: &'a mut Vec<Address>,
}

pub(super) struct Desk(Arc<Inner>);

struct Inner {
    path: PathBuf,
    around: Surroundings,
    post: Arc<Post>,
    db: Mutex<Db>,
    jobs: Mutex<VecDeque<Box<dyn Job>>>,
    /// Jobs are left for the desk's own thread, or the desk is closed.
    call: Mutex<Call>,
    called: Condvar,
}

struct Db {
    connection: Connection,
    file: OpenFile,
    cleaned: Moment,
}

#[derive(Default)]
struct Call {
    work: bool,
    closed: bool,
    started: bool,
}

trait Job: Send {
    fn writes(&self) -> bool;
    fn run(&mut self, sheet: &mut Sheet<'_>) -> rusqlite::Result<()>;
    fn reply(self: Box<Self>, committed: Result<(), StoreError>);
}

struct Typed<T, F> {
    writes: bool,
    work: F,
    outcome: Option<T>,
    reply: oneshot::Sender<Result<T, StoreError>>,
}

impl<T, F> Job for Typed<T, F>
where
    T: Send,
    F: FnMut(&mut Sheet<'_>) -> rusqlite::Result<T> + Send,
{
    fn writes(&self) -> bool {
        self.writes
    }

    fn run(&mut self, sheet: &mut Sheet<'_>) -> rusqlite::Result<()> {
        self.outcome = Some((self.work)(sheet)?);
        Ok(())
    }

    fn reply(self: Box<Self>, committed: Result<(), StoreError>) {
        let lost = || StoreError::no_reply("the transaction ended without an answer");
        let Self { outcome, reply, .. } = *self;
        // Nobody may listen any more; the work stands all the same.
        let _ = reply.send(committed.and_then(|()| outcome.ok_or_else(lost)));
    }
}

impl Desk {
    pub(super) fn new(
        path: PathBuf,
        connection: Connection,
        file: OpenFile,
        around: Surroundings,
        post: Arc<Post>,
    ) -> Self {
        let db = Db { connection, file, cleaned: around.clock.now() };
        Self(Arc::new(Inner {
            path,
            around,
            post,
            db: Mutex::new(db),
            jobs: Mutex::default(),
            call: Mutex::default(),
            called: Condvar::new(),
        }))
    }

    /// Runs `work` in a transaction that is synced before the answer comes. Dropped, it still runs.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Sheet<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.submit(true, work).await
    }

    /// Runs `work`, which only looks, on one state of the store.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut Sheet<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.submit(false, work).await
    }

    async fn submit<T: Send + 'static>(
        &self,
        writes: bool,
        work: impl FnMut(&mut Sheet<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        let sent = self.0.around.clock.now();
        let (reply, answer) = oneshot::channel();
        let job = Typed { writes, work, outcome: None, reply };
        self.0.jobs.lock().push_back(Box::new(job));
        self.0.attend();
        let abandoned = |_| StoreError::no_reply("the transaction was abandoned");
        Ok(Reply::new(answer.await.map_err(abandoned)??, sent))
    }
}

impl Drop for Desk {
    fn drop(&mut self) {
        self.0.call.lock().closed = true;
        self.0.called.notify_one();
    }
}

impl Inner {
    /// Sees to it that the jobs are done: here and now if the desk is free.
    fn attend(self: &Arc<Self>) {
        let ours = self.around.runtime.id();
        let on_own_runtime =
            tokio::runtime::Handle::try_current().is_ok_and(|current| current.id() == ours);
        if !on_own_runtime {
            // Whoever has it looks for more jobs after letting go of it.
            let Some(mut db) = self.db.try_lock() else { return };
            self.serve_guarded(&mut db, Duration::ZERO);
        }
        if !self.jobs.lock().is_empty() {
            self.call_own_thread();
        }
    }

    fn call_own_thread(self: &Arc<Self>) {
        let mut call = self.call.lock();
        call.work = true;
        if call.started {
            self.called.notify_one();
            return;
        }
        let desk = Arc::clone(self);
        let thread = std::thread::Builder::new().name("fencepost-sqlite".into());
        match thread.spawn(move || desk.work()) {
            Ok(_) => call.started = true,
            Err(error) => {
                drop(call);
                tracing::error!(%error, "cannot start the store's thread");
                for job in std::mem::take(&mut *self.jobs.lock()) {
                    let error = "cannot start the store's thread: allow more threads (ulimit -u)";
                    job.reply(Err(StoreError::unusable(error)));
                }
            }
        }
    }

    /// The desk's own thread.
    fn work(&self) {
        loop {
            {
                let mut call = self.call.lock();
                while !call.work && !call.closed {
                    self.called.wait(&mut call);
                }
                call.work = false;
                if call.closed && self.jobs.lock().is_empty() {
                    return;
                }
            }
            while !self.jobs.lock().is_empty() {
                let mut db = self.db.lock();
                self.serve_guarded(&mut db, CALL_TIMEOUT);
            }
        }
    }

    /// A panic ends the jobs that it met, which are told so by their dropped reply, and nothing else.
    fn serve_guarded(&self, db: &mut Db, patience: Duration) {
        let serve = std::panic::AssertUnwindSafe(|| self.serve(db, patience));
        if std::panic::catch_unwind(serve).is_err() {
            tracing::error!("a transaction panicked; going on");
        }
    }

    /// Does all jobs that are queued now in one transaction. Without patience they are put back if another
    /// process has the file.
    fn serve(&self, db: &mut Db, patience: Duration) {
        let mut batch = std::mem::take(&mut *self.jobs.lock());
        if batch.is_empty() {
            return;
        }
        wait_at_most(patience);
        match self.commit(db, batch.make_contiguous()) {
            Ok(()) => {
                for job in batch {
                    job.reply(Ok(()));
                }
            }
            Err(Failure::Sqlite(error)) if patience.is_zero() && is_busy(&error) => {
                let mut jobs = self.jobs.lock();
                batch.append(&mut jobs);
                *jobs = batch;
            }
            // Nobody answers for another's job: each is tried alone.
            Err(Failure::Sqlite(error)) if batch.len() > 1 && !is_busy(&error) => {
                for mut job in batch {
                    let outcome = self.commit(db, std::slice::from_mut(&mut job));
                    job.reply(outcome.map_err(|failure| failure.explain(&self.path)));
                }
            }
            Err(failure) => {
                let error = failure.explain(&self.path);
                for job in batch {
                    job.reply(Err(error.clone()));
                }
            }
        }
    }

    fn commit(&self, db: &mut Db, batch: &mut [Box<dyn Job>]) -> Result<(), Failure> {
        let writes = batch.iter().any(|job| job.writes());
        let behavior =
            if writes { TransactionBehavior::Immediate } else { TransactionBehavior::Deferred };
        let transaction = db.connection.transaction_with_behavior(behavior)?;
        if writes {
            db.file.check(&transaction)?;
        }
        // Read inside: no other transaction runs now, so times in the file rise with its commits.
        let now = self.around.clock.now();
        let mut wake = Vec::new();
        for job in batch {
            let (db, marks) = (&transaction, &self.post.marks);
            job.run(&mut Sheet { db, now, marks, wake: &mut wake })?;
        }
        if writes && db.cleaned + CLEAN_EVERY <= now {
            file::clean(&transaction, now)?;
            db.cleaned = now;
        }
        transaction.commit()?;
        for address in &wake {
            self.post.ring(address);
        }
        Ok(())
    }
}
