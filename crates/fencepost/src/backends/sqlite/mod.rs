//! `sqlite:PATH` a file that many processes on one host share. The default, under the user's state
//! directory.
//!
//! *Why grants exclude:* every step is one transaction, and SQLite allows one writer at a time. A grant is
//! made only if no row of that name has a live lease, at a time that is read inside the transaction on
//! `CLOCK_BOOTTIME`, which all processes of a host share and nobody can set. A guard counts its deadline from
//! before its request, so it is lost before the lease of its row ends.
//! *Why tokens rise:* the counter is a row of the same file, raised in the same transaction, and synced
//! (`synchronous=FULL`) before the reply. Only the loss of the file can undo it.
//! *Taking over at once:* a grant's row names a file that the holder's processes keep locked. Once it is unlocked,
//! they are all gone, and the next waiter need not wait for the lease (presence.rs).
//! *Values* of elections and *records* are tables of their own (values.rs, records.rs), which other steps do not touch.
//! *Who can undo that:* a user who can write or replace the file. So the file is refused unless that is its owner alone,
//! or the members of one group (access.rs).
//! *Where that ends:* with the host. A file of another machine, or on a network file system, is refused;
//! after a reboot every lease is void. A file restored from a backup, or copied, has its old counter:
//! tokens can repeat. A disk that acknowledges syncs it has not done can lose the counter in a power cut.
//! A process that is frozen inside a transaction blocks everybody until it continues or is killed: meanwhile nobody is
//! granted, and guards report that renewal is failing (P5). On tmpfs or a container's layer the counter ends with the
//! file system, so the guarantees say that it is not for correctness (guarantees.rs).
//!
//! *Waiting:* FIFO, by the waiter's position. The process that frees the lock notifies the oldest waiter
//! (`wake_socket.rs`), which takes the lock in a transaction of its own. All waiters poll every 250 ms, and the oldest
//! watches the holder's process, so a crash, an expiry and a lost message are detected as well. A waiter that is notified
//! and does not take the lock within a second is skipped.
//!
//! *Breaks:* the holder's client gets a datagram, renews, learns that the grant was broken, and releases it: that confirms
//! the break, which reads the confirmation from the table `fencepost_broken`.
//!
//! No `server_info.rs`: host.rs identifies the machine and boot of a
//! file. Also: operations.rs has the lock rules as transactions, `writer_thread.rs` runs them in batches; file.rs opens a
//! file, `new_file.rs` creates one, access.rs checks who may write it (users.rs: names and members); presence.rs shows that
//! a holder is alive, `wake_socket.rs` notifies waiting and holding processes; absent.rs is a file that does not exist yet.

mod absent;
mod access;
mod config;
mod connection;
mod error;
mod file;
mod guarantees;
mod host;
mod inspect;
mod layout;
mod locks;
mod new_file;
mod operations;
mod presence;
mod queue;
mod records;
mod users;
mod values;
mod wake_socket;
mod writer_thread;

use std::collections::HashMap;
use std::fmt;
use std::path::PathBuf;
use std::sync::Arc;

use fencepost_core::{LockName, Moment, OwnerId, Token};
use parking_lot::Mutex;

pub(crate) use self::absent::open;
pub use self::config::SqliteOptions;
pub use self::guarantees::guarantees_of;
pub(crate) use self::records::finish_in;
use self::users::{name_of, user};
use self::wake_socket::{RegisteredWaiter, WakeSocket};
use self::writer_thread::WriterThread;
use super::until_changed::inspect_until_changed;
use crate::backend::{
    Acquired, Backend, BackendContext, BoxFuture, Broken, GrantId, LockInfo, LockVersion, NotHeld,
    Observe, Page, PageRequest, Queue, Renewal, Renewals, Request, StoreCall, StoreError,
};
use crate::clock::Clock;
use crate::error::Result;
use crate::guarantees::Guarantees;

/// A store in a SQLite file.
pub struct Sqlite {
    path: PathBuf,
    /// The id of the file, whatever its path.
    store_id: String,
    context: BackendContext,
    writer_thread: Arc<WriterThread>,
    wake_socket: Arc<WakeSocket>,
    guarantees: Guarantees,
    /// The owner of the store, if root opened another user's.
    other_user: Option<u32>,
    /// The positions of this client in the queues, and how each is woken.
    positions: Mutex<HashMap<OwnerId, Arc<RegisteredWaiter>>>,
}

impl Sqlite {
    /// Opens the file, and creates it if it is missing. Waits for the disk.
    pub fn open(options: &SqliteOptions, context: &BackendContext) -> Result<Arc<Self>> {
        options.check()?;
        let file::Opened { path, db, file, presence_dir, access, other_user } =
            file::open(options, context.create, &*context.clock)?;
        let group = access.group.map(|group| name_of("/etc/group", group));
        let guarantees = guarantees::of(&path, group);
        let store_id = file.store_id();
        let wake_socket = Arc::new(WakeSocket::new(presence_dir, context.runtime.clone()));
        let writer_thread =
            WriterThread::new(path.clone(), db, file, context.clone(), Arc::clone(&wake_socket));
        let (context, writer_thread) = (context.clone(), Arc::new(writer_thread));
        let positions = Mutex::default();
        Ok(Arc::new(Self {
            path,
            store_id,
            context,
            writer_thread,
            wake_socket,
            guarantees,
            other_user,
            positions,
        }))
    }

    /// Refuses to lock in another user's store: root may read it, but root's locks must not depend on a file that another
    /// user controls.
    fn refuse_other_user(&self) -> Result<(), StoreError> {
        match self.other_user {
            None => Ok(()),
            Some(owner) => Err(StoreError::refused(format!(
                "{} belongs to {}: root can list, show and break there, but not lock; name a file of root's \
                own, or share one with a group (sqlite:PATH?shared=group)",
                self.path.display(),
                user(owner)
            ))),
        }
    }

    fn now(&self) -> Moment {
        self.context.clock.now()
    }

    fn clock(&self) -> &dyn Clock {
        &*self.context.clock
    }
}

impl Backend for Sqlite {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        _limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(locks::try_acquire(self, request, queue))
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(queue::wait(self, request, limit))
    }

    fn renew(&self, batch: Vec<Renewal>, _limit: Moment) -> BoxFuture<'_, Renewals> {
        Box::pin(locks::renew(self, batch))
    }

    fn release(&self, grant: GrantId, _limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        Box::pin(locks::release(self, grant))
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        _limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        Box::pin(locks::break_lock(self, name, token, confirm_until))
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees.clone()
    }
}

impl Observe for Sqlite {
    fn inspect(&self, name: LockName, _limit: Moment) -> StoreCall<'_, LockInfo> {
        Box::pin(self.writer_thread.read(move |write_batch| inspect::inspect(write_batch, &name)))
    }

    fn list(&self, page: PageRequest, _limit: Moment) -> StoreCall<'_, Page> {
        Box::pin(self.writer_thread.read(move |write_batch| inspect::list(write_batch, &page)))
    }

    fn changed(&self, name: LockName, seen: Option<LockVersion>) -> StoreCall<'_, LockInfo> {
        Box::pin(inspect_until_changed(self, self.clock(), queue::POLL_INTERVAL, name, seen))
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({})", self.path.display())
    }
}
