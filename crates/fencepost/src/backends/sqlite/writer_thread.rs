//! The queue of transactions, and the thread that runs them: the first caller runs the jobs of all that wait.
//!
//! A commit costs one sync of the disk, whatever it contains. So jobs queue up while a transaction runs,
//! and the next one takes them all: one sync, many grants. Replies leave only after the commit that
//! explains them.
//!
//! Who runs them? A caller that finds the connection free runs its own job at once: sending it to another thread and back
//! costs two wake-ups (docs/decisions/0004). It blocks for one commit at most. If another process has the file, or more
//! jobs came meanwhile, the writer thread takes over, which can wait. The client's own runtime never runs jobs: its
//! thread must end guards at their deadlines even when the disk hangs.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::{Condvar, Mutex};
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::oneshot;

use super::connection::set_busy_timeout;
use super::error::{Failure, is_busy};
use super::file::{self, OpenFile};
use super::presence::PresenceDir;
use super::wake_socket::{Address, WakeSocket};
use crate::backend::{BackendContext, Reply, StoreError, StoreResult};
use crate::retry::CALL_TIMEOUT;

/// How often a client that writes removes expired rows.
const CLEAN_EVERY: Duration = Duration::from_mins(1);

/// The context of a job: the open transaction, its time, which processes are alive, and whom to wake after the commit.
pub(super) struct WriteBatch<'a> {
    pub(super) db: &'a Connection,
    pub(super) now: Moment,
    pub(super) presence_dir: &'a PresenceDir,
    pub(super) wake: &'a mut Vec<Address>,
}

pub(super) struct WriterThread(Arc<Inner>);

struct Inner {
    path: PathBuf,
    context: BackendContext,
    wake_socket: Arc<WakeSocket>,
    db: Mutex<Db>,
    jobs: Mutex<VecDeque<Box<dyn Job>>>,
    /// Jobs are left for the writer thread, or the connection is closed.
    thread_state: Mutex<ThreadState>,
    wake_up: Condvar,
}

struct Db {
    connection: Connection,
    file: OpenFile,
    cleaned: Moment,
}

#[derive(Default)]
struct ThreadState {
    work: bool,
    closed: bool,
    started: bool,
}

trait Job: Send {
    fn writes(&self) -> bool;
    fn run(&mut self, write_batch: &mut WriteBatch<'_>) -> rusqlite::Result<()>;
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
    F: FnMut(&mut WriteBatch<'_>) -> rusqlite::Result<T> + Send,
{
    fn writes(&self) -> bool {
        self.writes
    }

    fn run(&mut self, write_batch: &mut WriteBatch<'_>) -> rusqlite::Result<()> {
        self.outcome = Some((self.work)(write_batch)?);
        Ok(())
    }

    fn reply(self: Box<Self>, committed: Result<(), StoreError>) {
        let lost = || StoreError::no_reply("the transaction ended without an answer");
        let Self { outcome, reply, .. } = *self;
        // The caller may be gone; the transaction is committed anyway.
        let _ = reply.send(committed.and_then(|()| outcome.ok_or_else(lost)));
    }
}

impl WriterThread {
    pub(super) fn new(
        path: PathBuf,
        connection: Connection,
        file: OpenFile,
        context: BackendContext,
        wake_socket: Arc<WakeSocket>,
    ) -> Self {
        let db = Db { connection, file, cleaned: context.clock.now() };
        Self(Arc::new(Inner {
            path,
            context,
            wake_socket,
            db: Mutex::new(db),
            jobs: Mutex::default(),
            thread_state: Mutex::default(),
            wake_up: Condvar::new(),
        }))
    }

    /// Runs `work` in a transaction that is synced before the reply. It runs even if the future is dropped.
    pub(super) async fn write<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut WriteBatch<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.submit(true, work).await
    }

    /// Runs `work`, which only reads, on one state of the store.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        work: impl FnMut(&mut WriteBatch<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        self.submit(false, work).await
    }

    async fn submit<T: Send + 'static>(
        &self,
        writes: bool,
        work: impl FnMut(&mut WriteBatch<'_>) -> rusqlite::Result<T> + Send + 'static,
    ) -> StoreResult<T> {
        let sent = self.0.context.clock.now();
        let (reply, answer) = oneshot::channel();
        let job = Typed { writes, work, outcome: None, reply };
        self.0.jobs.lock().push_back(Box::new(job));
        self.0.run_jobs();
        let abandoned = |_| StoreError::no_reply("the transaction was abandoned");
        Ok(Reply::new(answer.await.map_err(abandoned)??, sent))
    }
}

impl Drop for WriterThread {
    fn drop(&mut self) {
        self.0.thread_state.lock().closed = true;
        self.0.wake_up.notify_one();
    }
}

impl Inner {
    /// Makes sure that the jobs run: on this thread if the connection is free.
    fn run_jobs(self: &Arc<Self>) {
        let ours = self.context.runtime.id();
        let on_own_runtime =
            tokio::runtime::Handle::try_current().is_ok_and(|current| current.id() == ours);
        if !on_own_runtime {
            // The thread that has it checks for more jobs after it unlocks.
            let Some(mut db) = self.db.try_lock() else { return };
            self.serve_guarded(&mut db, Duration::ZERO);
        }
        if !self.jobs.lock().is_empty() {
            self.wake_own_thread();
        }
    }

    fn wake_own_thread(self: &Arc<Self>) {
        let mut thread_state = self.thread_state.lock();
        thread_state.work = true;
        if thread_state.started {
            self.wake_up.notify_one();
            return;
        }
        let writer_thread = Arc::clone(self);
        let thread = std::thread::Builder::new().name("fencepost-sqlite".into());
        match thread.spawn(move || writer_thread.work()) {
            Ok(_) => thread_state.started = true,
            Err(error) => {
                drop(thread_state);
                tracing::error!(%error, "cannot start the store's thread");
                for job in std::mem::take(&mut *self.jobs.lock()) {
                    let error = "cannot start the store's thread: allow more threads (ulimit -u)";
                    job.reply(Err(StoreError::unusable(error)));
                }
            }
        }
    }

    /// The writer thread.
    fn work(&self) {
        loop {
            {
                let mut thread_state = self.thread_state.lock();
                while !thread_state.work && !thread_state.closed {
                    self.wake_up.wait(&mut thread_state);
                }
                thread_state.work = false;
                if thread_state.closed && self.jobs.lock().is_empty() {
                    return;
                }
            }
            while !self.jobs.lock().is_empty() {
                let mut db = self.db.lock();
                self.serve_guarded(&mut db, CALL_TIMEOUT);
            }
        }
    }

    /// A panic ends the jobs of its batch, whose callers learn it from the dropped reply, and nothing else.
    fn serve_guarded(&self, db: &mut Db, timeout: Duration) {
        let serve = std::panic::AssertUnwindSafe(|| self.serve(db, timeout));
        if std::panic::catch_unwind(serve).is_err() {
            tracing::error!("a transaction panicked; the store continues");
        }
    }

    /// Runs all jobs that are queued now in one transaction. If it may not wait, it puts them back if another process has
    /// the file.
    fn serve(&self, db: &mut Db, timeout: Duration) {
        let mut batch = std::mem::take(&mut *self.jobs.lock());
        if batch.is_empty() {
            return;
        }
        set_busy_timeout(timeout);
        match self.commit(db, batch.make_contiguous()) {
            Ok(()) => {
                for job in batch {
                    job.reply(Ok(()));
                }
            }
            Err(Failure::Sqlite(error)) if timeout.is_zero() && is_busy(&error) => {
                let mut jobs = self.jobs.lock();
                batch.append(&mut jobs);
                *jobs = batch;
            }
            // One job must not fail the others: retry each alone.
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
        let now = self.context.clock.now();
        let mut wake = Vec::new();
        for job in batch {
            let (db, presence_dir) = (&transaction, &self.wake_socket.presence_dir);
            job.run(&mut WriteBatch { db, now, presence_dir, wake: &mut wake })?;
        }
        if writes && db.cleaned + CLEAN_EVERY <= now {
            file::clean(&transaction, now)?;
            db.cleaned = now;
        }
        transaction.commit()?;
        for address in &wake {
            self.wake_socket.notify(address);
        }
        Ok(())
    }
}
