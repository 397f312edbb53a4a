//! Wakes a waiter in another process, and notifies a holder whose grant was broken: a datagram to a Unix socket.
//!
//! A client that waits, or has held a lock for a moment, binds one socket beside the database.
//!
//! *Waiters:* the row of a waiter has the socket's name and a number for each wait. Whoever frees the lock sends that
//! number there, eight bytes, after the commit. A datagram that gets lost costs the waiter its next look, a quarter of
//! a second at most.
//! *Holders:* a break sends the broken grant's owner, 16 bytes, to every socket of the store: the one client that knows
//! that owner renews its grant, and so learns that it is gone. No row names the holder's socket, so a grant costs
//! nothing more; breaks are rare. A datagram that gets lost costs the holder its next renewal.

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

use super::presence::Marks;
use crate::backend::LossSignal;

/// Where a waiter can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The socket's file name.
    pub(super) socket: Arc<str>,
    /// Which of the client's waits.
    pub(super) bell: u64,
}

/// The bells of one client, and the grants of which it is to be notified.
pub(super) struct Post {
    pub(super) marks: Marks,
    runtime: Handle,
    bells: Arc<Bells>,
    holders: Arc<Mutex<Holders>>,
    socket: OnceLock<Option<Arc<str>>>,
    sender: Option<UnixDatagram>,
}

type Bells = Mutex<HashMap<u64, Arc<Notify>>>;

/// Those of this client who hold a lock, or are about to.
#[derive(Default)]
struct Holders {
    signals: HashMap<OwnerId, LossSignal>,
    /// How many there may be before those are dropped that nobody hears.
    room: usize,
    /// Somebody sees to it that the socket is bound.
    subscribing: bool,
}

impl Holders {
    fn drop_unheard(&mut self) {
        self.signals.retain(|_, signal| signal.is_heard());
        self.room = 64 + 2 * self.signals.len();
    }
}

impl Post {
    pub(super) fn new(marks: Marks, runtime: Handle) -> Self {
        // Without a sender, waiters find out by looking.
        let sender =
            UnixDatagram::unbound().ok().filter(|sender| sender.set_nonblocking(true).is_ok());
        let (bells, holders) = (Arc::default(), Arc::default());
        Self { marks, runtime, bells, holders, socket: OnceLock::new(), sender }
    }

    /// `owner` asks for a lock: `signal` is for a break of its grant.
    pub(super) fn know(&self, owner: OwnerId, signal: LossSignal) {
        let mut holders = self.holders.lock();
        if holders.signals.len() >= holders.room {
            holders.drop_unheard();
        }
        holders.signals.insert(owner, signal);
    }

    pub(super) fn forget(&self, owner: OwnerId) {
        self.holders.lock().signals.remove(&owner);
    }

    /// Whether the caller is the one to bind the socket, since nobody has.
    pub(super) fn is_to_subscribe(&self) -> bool {
        let mut holders = self.holders.lock();
        let first = !holders.subscribing && self.socket.get().is_none();
        holders.subscribing |= first;
        first
    }

    /// Binds the socket if anybody still holds a lock. Gives those who do: what was broken before is not known here.
    /// Waits for the disk.
    pub(super) fn subscribe(&self) -> Vec<OwnerId> {
        {
            let mut holders = self.holders.lock();
            holders.drop_unheard();
            if holders.signals.is_empty() {
                holders.subscribing = false;
                return Vec::new();
            }
        }
        self.socket.get_or_init(|| self.bind());
        let mut holders = self.holders.lock();
        holders.subscribing = false;
        holders.signals.keys().copied().collect()
    }

    /// Has the grant of `owner` renewed, if it is one of this client's.
    pub(super) fn renew_now(&self, owner: OwnerId) -> bool {
        renew_now(&self.holders, owner)
    }

    /// Notifies the client that has the grant of `owner`. Gives how many clients were reached: it may be one of them.
    pub(super) fn notify_broken(&self, owner: OwnerId) -> usize {
        if self.renew_now(owner) {
            return 1;
        }
        let ours = self.socket.get().and_then(Option::as_deref);
        let message = owner.bits().to_be_bytes();
        let names = self.marks.names();
        let others = names.iter().filter(|name| Some(&***name) != ours);
        others.filter(|name| self.send(&message, name)).count()
    }

    fn send(&self, message: &[u8], name: &str) -> bool {
        let (Some(sender), Some(socket)) = (&self.sender, Socket::find(&self.marks, name)) else {
            return false;
        };
        sender.send_to(message, socket.path()).is_ok()
    }

    /// A bell for one wait. It rings from the moment it is made, so no wake-up falls between enqueueing
    /// and listening.
    pub(super) fn bell(self: &Arc<Self>) -> Bell {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let rung = Arc::new(Notify::new());
        self.bells.lock().insert(id, Arc::clone(&rung));
        let socket = self.socket.get_or_init(|| self.bind()).clone();
        let address = Address { socket: socket.unwrap_or_else(|| "".into()), bell: id };
        Bell { address, rung, post: Arc::clone(self) }
    }

    fn bind(&self) -> Option<Arc<str>> {
        let name = format!("w-{:016x}", getrandom::u64().ok()?);
        let path = path_of(self.marks.ensure().ok()?, &name);
        let socket = UnixDatagram::bind(&path).ok()?;
        // Whatever the umask: those who share the store send to it.
        let bound = Socket::find(&self.marks, &name)?;
        rustix::fs::chmod(bound.path(), self.marks.access().file_mode()).ok()?;
        socket.set_nonblocking(true).ok()?;
        let _inside = self.runtime.enter();
        let socket = tokio::net::UnixDatagram::from_std(socket).ok()?;
        let (bells, holders) = (Arc::clone(&self.bells), Arc::clone(&self.holders));
        self.runtime.spawn(async move {
            // One byte more than the longest: what is longer is none of ours.
            let mut message = [0; 17];
            while let Ok(length) = socket.recv(&mut message).await {
                let message = &message[..length];
                let owner = message.try_into().map(u128::from_be_bytes);
                match (message.try_into().map(u64::from_le_bytes), owner) {
                    (Ok(bell), _) => ring(&bells, bell),
                    (_, Ok(owner)) => {
                        renew_now(&holders, OwnerId::from_bits(owner));
                    }
                    _ => {}
                }
            }
        });
        Some(name.into())
    }

    /// Wakes the one who waits at `address`, in this client or in another process.
    pub(super) fn ring(&self, address: &Address) {
        if self.socket.get().is_some_and(|ours| ours.as_ref() == Some(&address.socket)) {
            ring(&self.bells, address.bell);
        } else {
            // A full or vanished socket is no error: its owner looks for itself.
            self.send(&address.bell.to_le_bytes(), &address.socket);
        }
    }
}

impl Drop for Post {
    fn drop(&mut self) {
        if let Some(Some(name)) = self.socket.get() {
            self.marks.remove(name);
        }
    }
}

fn ring(bells: &Bells, id: u64) {
    if let Some(bell) = bells.lock().get(&id) {
        bell.notify_one();
    }
}

fn renew_now(holders: &Mutex<Holders>, owner: OwnerId) -> bool {
    let holders = holders.lock();
    let signal = holders.signals.get(&owner).filter(|signal| signal.is_heard()).cloned();
    drop(holders);
    signal.is_some_and(|signal| {
        signal.renew_now();
        true
    })
}

/// One wait's bell. Dropping it takes it down.
pub(super) struct Bell {
    pub(super) address: Address,
    rung: Arc<Notify>,
    post: Arc<Post>,
}

impl Bell {
    pub(super) async fn rung(&self) {
        self.rung.notified().await;
    }
}

impl Drop for Bell {
    fn drop(&mut self) {
        let mut bells = self.post.bells.lock();
        bells.remove(&self.address.bell);
    }
}

/// Whether nobody listens at that socket any more.
pub(super) fn is_dead(marks: &Marks, name: &str) -> bool {
    let Some(found) = Socket::find(marks, name) else { return false };
    let asked = UnixDatagram::unbound().and_then(|socket| socket.connect(found.path()));
    asked.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// A socket of the store, whatever its name means from now on: another user may write the directory, or own it, and a
/// link there would lead elsewhere.
struct Socket(OwnedFd);

impl Socket {
    fn find(marks: &Marks, name: &str) -> Option<Self> {
        let directory = marks.directory().filter(|_| is_name(name))?;
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, name, flags, Mode::empty()).ok()?;
        let stat = rustix::fs::fstat(&file).ok()?;
        marks.access().is_own_socket(&stat).then_some(Self(file))
    }

    fn path(&self) -> String {
        format!("/proc/self/fd/{}", self.0.as_raw_fd())
    }
}

/// The name of a socket of ours: one in a row or in the directory may be anything.
fn is_name(name: &str) -> bool {
    name.strip_prefix("w-")
        .is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_alphanumeric()))
}

/// By way of the open directory, since a socket's path may have 107 bytes at most.
fn path_of(directory: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}
