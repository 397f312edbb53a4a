//! Wakes a waiter in another process: a datagram to its Unix socket.
//!
//! A client that waits binds one socket beside the database and writes its name, with a number for each
//! wait, into the waiter's row. Whoever frees the lock sends that number there, eight bytes, after the
//! commit. A datagram that gets lost costs the waiter its next look, a quarter of a second at most.

use std::collections::HashMap;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Where a waiter can be reached.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    /// The socket's file name.
    pub(super) socket: Arc<str>,
    /// Which of the client's waits.
    pub(super) bell: u64,
}

/// The bells of one client.
pub(super) struct Post {
    marks: Arc<super::presence::Marks>,
    runtime: Handle,
    bells: Arc<Bells>,
    socket: OnceLock<Option<Arc<str>>>,
    sender: Option<UnixDatagram>,
}

type Bells = Mutex<HashMap<u64, Arc<Notify>>>;

impl Post {
    pub(super) fn new(marks: Arc<super::presence::Marks>, runtime: Handle) -> Self {
        // Without a sender, waiters find out by looking.
        let sender =
            UnixDatagram::unbound().ok().filter(|sender| sender.set_nonblocking(true).is_ok());
        Self { marks, runtime, bells: Arc::default(), socket: OnceLock::new(), sender }
    }

    /// A bell for one wait. It rings from the moment it is made, so no wake-up falls between enqueueing
    /// and listening.
    pub(super) fn bell(self: &Arc<Self>) -> Bell {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let rung = Arc::new(Notify::new());
        self.bells.lock().unwrap_or_else(PoisonError::into_inner).insert(id, Arc::clone(&rung));
        let socket = self.socket.get_or_init(|| self.bind()).clone();
        let address = Address { socket: socket.unwrap_or_else(|| "".into()), bell: id };
        Bell { address, rung, post: Arc::clone(self) }
    }

    fn bind(&self) -> Option<Arc<str>> {
        let mut bits = [0; 8];
        getrandom::fill(&mut bits).ok()?;
        let name = format!("w-{:016x}", u64::from_ne_bytes(bits));
        let socket = UnixDatagram::bind(path_of(self.marks.directory(), &name)).ok()?;
        socket.set_nonblocking(true).ok()?;
        let _inside = self.runtime.enter();
        let socket = tokio::net::UnixDatagram::from_std(socket).ok()?;
        let bells = Arc::clone(&self.bells);
        self.runtime.spawn(async move {
            let mut message = [0; 8];
            while let Ok(length) = socket.recv(&mut message).await {
                if length == message.len() {
                    ring(&bells, u64::from_le_bytes(message));
                }
            }
        });
        Some(name.into())
    }

    /// Wakes the one who waits at `address`, in this client or in another process.
    pub(super) fn ring(&self, address: &Address) {
        if self.socket.get().is_some_and(|ours| ours.as_ref() == Some(&address.socket)) {
            ring(&self.bells, address.bell);
        } else if let Some(sender) = &self.sender
            && !address.socket.is_empty()
        {
            let path = path_of(self.marks.directory(), &address.socket);
            // A full or vanished socket is no error: its owner looks for itself.
            let _ = sender.send_to(&address.bell.to_le_bytes(), path);
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
    if let Some(bell) = bells.lock().unwrap_or_else(PoisonError::into_inner).get(&id) {
        bell.notify_one();
    }
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
        let mut bells = self.post.bells.lock().unwrap_or_else(PoisonError::into_inner);
        bells.remove(&self.address.bell);
    }
}

/// Whether nobody listens at that socket any more.
pub(super) fn is_dead(directory: &OwnedFd, name: &str) -> bool {
    let asked = UnixDatagram::unbound().and_then(|socket| socket.connect(path_of(directory, name)));
    asked.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused)
}

/// By way of the open directory, since a socket's path may have 107 bytes at most.
fn path_of(directory: &OwnedFd, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", directory.as_raw_fd()))
}
