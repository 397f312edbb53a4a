//! Wakes a waiter in another process, and notifies a holder whose grant was broken: a datagram to a Unix socket.
//!
//! A client that waits, or has held a lock for a moment, binds one socket beside the database.
//!
//! *Waiters:* the row of a waiter has the socket's name and a number for each wait. The process that frees the lock sends
//! that number there, eight bytes, after the commit. A lost datagram delays the waiter until its next poll, 250 ms at
//! most.
//! *Holders:* a break sends the broken grant's owner, 16 bytes, to every socket of the store: the client that has that
//! owner renews its grant, and so learns that it is gone. No row names the holder's socket, so a grant costs nothing
//! more; breaks are rare. A lost datagram delays the holder until its next renewal.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use fencepost_core::OwnerId;
use parking_lot::Mutex;
use rustix::fs::{Mode, OFlags};
use tokio::runtime::Handle;
use tokio::sync::Notify;

use super::presence::PresenceDir;
use crate::backends::live_grants::LiveGrants;
use crate::random;

/// Where a waiter can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The socket's file name.
    pub(super) socket: Arc<str>,
    /// The number of the wait.
    pub(super) waiter_id: u64,
}

/// The waiters of one client, and the grants for whose breaks it listens.
pub(super) struct WakeSocket {
    pub(super) presence_dir: PresenceDir,
    /// The grants that are held, or may be soon.
    pub(super) grants: Arc<LiveGrants<()>>,
    runtime: Handle,
    waiters: Arc<Waiters>,
    /// A task is binding the socket, or has bound it.
    subscribing: Mutex<bool>,
    socket: OnceLock<Option<Arc<str>>>,
    sender: Option<UnixDatagram>,
}

type Waiters = Mutex<HashMap<u64, Arc<Notify>>>;

impl WakeSocket {
    pub(super) fn new(presence_dir: PresenceDir, runtime: Handle) -> Self {
        // Without a sender socket, waiters rely on polling.
        let sender =
            UnixDatagram::unbound().ok().filter(|sender| sender.set_nonblocking(true).is_ok());
        let (grants, waiters) = (Arc::default(), Arc::default());
        let (subscribing, socket) = (Mutex::default(), OnceLock::new());
        Self { presence_dir, grants, runtime, waiters, subscribing, socket, sender }
    }

    /// Whether the caller must bind the socket, since nobody has.
    pub(super) fn is_to_subscribe(&self) -> bool {
        let mut subscribing = self.subscribing.lock();
        let first = !*subscribing && self.socket.get().is_none();
        *subscribing |= first;
        first
    }

    /// Binds the socket if a lock is still held. Returns the owners of held grants: earlier breaks are unknown here. Waits
    /// for the disk.
    pub(super) fn subscribe(&self) -> Vec<OwnerId> {
        {
            // Checked under the lock, so that the next grant after that subscribes again.
            let mut subscribing = self.subscribing.lock();
            if self.grants.owners().is_empty() {
                *subscribing = false;
                return Vec::new();
            }
        }
        self.socket.get_or_init(|| self.bind());
        *self.subscribing.lock() = false;
        self.grants.owners()
    }

    /// Notifies the client that has the grant of `owner`. Returns how many clients were reached, whether or not one of them
    /// has it.
    pub(super) fn notify_broken(&self, owner: OwnerId) -> usize {
        if self.grants.renew_now(|known, ()| *known == owner) {
            return 1;
        }
        let ours = self.socket.get().and_then(Option::as_deref);
        let message = owner.bits().to_be_bytes();
        let names = self.presence_dir.names();
        let others = names.iter().filter(|name| Some(&***name) != ours);
        others.filter(|name| self.send(&message, name)).count()
    }

    fn send(&self, message: &[u8], name: &str) -> bool {
        let (Some(sender), Some(socket)) = (&self.sender, Socket::find(&self.presence_dir, name))
        else {
            return false;
        };
        sender.send_to(message, socket.path()).is_ok()
    }

    /// Registers one wait. It can be notified from then on, so no notification is missed between enqueueing and
    /// listening.
    pub(super) fn register(self: &Arc<Self>) -> RegisteredWaiter {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let notify = Arc::new(Notify::new());
        self.waiters.lock().insert(id, Arc::clone(&notify));
        let socket = self.socket.get_or_init(|| self.bind()).clone();
        let address = Address { socket: socket.unwrap_or_else(|| "".into()), waiter_id: id };
        RegisteredWaiter { address, notify, wake_socket: Arc::clone(self) }
    }

    fn bind(&self) -> Option<Arc<str>> {
        let name = format!("w-{:016x}", u64::from_ne_bytes(random::bytes().ok()?));
        let path = path_of(self.presence_dir.ensure().ok()?, &name);
        let socket = UnixDatagram::bind(&path).ok()?;
        // Whatever the umask: the other users of the store send to it.
        let bound = Socket::find(&self.presence_dir, &name)?;
        rustix::fs::chmod(bound.path(), self.presence_dir.access().file_mode()).ok()?;
        socket.set_nonblocking(true).ok()?;
        let _inside = self.runtime.enter();
        let socket = tokio::net::UnixDatagram::from_std(socket).ok()?;
        let (waiters, grants) = (Arc::clone(&self.waiters), Arc::clone(&self.grants));
        self.runtime.spawn(async move {
            // One byte more than our longest message: a longer one is not ours.
            let mut message = [0; 17];
            while let Ok(length) = socket.recv(&mut message).await {
                let message = &message[..length];
                let owner = message.try_into().map(u128::from_be_bytes);
                match (message.try_into().map(u64::from_le_bytes), owner) {
                    (Ok(waiter), _) => notify(&waiters, waiter),
                    (_, Ok(owner)) => {
                        let owner = OwnerId::from_bits(owner);
                        grants.renew_now(|known, ()| *known == owner);
                    }
                    _ => {}
                }
            }
        });
        Some(name.into())
    }

    /// Wakes the waiter at `address`, in this client or in another process.
    pub(super) fn notify(&self, address: &Address) {
        if self.socket.get().is_some_and(|ours| ours.as_ref() == Some(&address.socket)) {
            notify(&self.waiters, address.waiter_id);
        } else {
            // A full or missing socket is no error: its owner polls.
            self.send(&address.waiter_id.to_le_bytes(), &address.socket);
        }
    }
}

impl Drop for WakeSocket {
    fn drop(&mut self) {
        if let Some(Some(name)) = self.socket.get() {
            self.presence_dir.remove(name);
        }
    }
}

fn notify(waiters: &Waiters, id: u64) {
    if let Some(waiter) = waiters.lock().get(&id) {
        waiter.notify_one();
    }
}

/// One registered wait. Dropping it removes it.
pub(super) struct RegisteredWaiter {
    pub(super) address: Address,
    notify: Arc<Notify>,
    wake_socket: Arc<WakeSocket>,
}

impl RegisteredWaiter {
    pub(super) async fn notified(&self) {
        self.notify.notified().await;
    }
}

impl Drop for RegisteredWaiter {
    fn drop(&mut self) {
        let mut waiters = self.wake_socket.waiters.lock();
        waiters.remove(&self.address.waiter_id);
    }
}

/// Whether no process listens at that socket any more.
pub(super) fn is_dead(presence_dir: &PresenceDir, name: &str) -> bool {
    let Some(found) = Socket::find(presence_dir, name) else { return false };
    let asked = UnixDatagram::unbound().and_then(|socket| socket.connect(found.path()));
    asked.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// A socket of the store, opened by its file and not by its name: another user may write or own the directory, and
/// could put a link there.
struct Socket(OwnedFd);

impl Socket {
    fn find(presence_dir: &PresenceDir, name: &str) -> Option<Self> {
        let directory = presence_dir.directory().filter(|_| is_name(name))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        presence_dir.access().is_own_socket(&stat).then_some(Self(file))
    }

    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

/// Checks that this is the name of one of our sockets: a name in a row or in the directory may be anything.
fn is_name(name: &str) -> bool {
    name.strip_prefix("w-")
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// A path through the open directory, since a socket's path may have at most 107 bytes.
fn path_of(directory: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}
