//! A TCP proxy that breaks connections on purpose. It knows no protocol, so it serves every backend.
//!
//! ```text
//! client under test  --requests-->  proxy  --requests-->  server
//!                    <--answers---         <--answers---
//! ```
//!
//! What must hold:
//!
//! - When a call returns, it has happened. After [`set_mode`](Proxy::set_mode) no byte passes that the mode
//!   forbids; after [`close_all`](Proxy::close_all) the connections are closed.
//! - A network that is silent tells nothing: not data, and not that the other end has closed either. What is
//!   held back is kept in order and passed on when the mode allows it, as TCP would send it again.
//! - A cut is a reset (RST): both ends learn of it at once, and nothing waits in a closed socket.

mod lane;
mod link;
mod listen;
mod state;
mod triggers;

use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::thread::JoinHandle;
use std::time::Duration;

pub use triggers::Trigger;

use state::Shared;

/// What the network does, to connections that exist and to new ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Mode {
    /// Everything passes.
    #[default]
    Pass,
    /// Connections stay open and new ones are accepted, but nothing passes. It is kept, and passes later.
    Silent,
    /// Connections are reset, and new ones too, as soon as they are accepted.
    Refuse,
    /// Whatever arrives passes this much later, in order, in both directions.
    Delay(Duration),
    /// Requests reach the server; answers are kept, and pass later.
    DropAnswers,
    /// Answers reach the client; requests are kept, and pass later.
    DropRequests,
}

/// A proxy on a loopback port of its own. Dropping it closes everything.
#[derive(Debug)]
pub struct Proxy {
    shared: Arc<Shared>,
    address: SocketAddr,
    thread: Option<JoinHandle<()>>,
}

impl Proxy {
    /// Starts a proxy to this server. The server need not run yet: a client whose connection can not be made
    /// is reset.
    pub fn to(upstream: SocketAddr) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        listener.set_nonblocking(true)?;
        let address = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let (started, start) = channel();
        let thread = std::thread::Builder::new().name("testkit-proxy".into()).spawn({
            let shared = Arc::clone(&shared);
            move || listen::run(&listener, upstream, &shared, &started)
        })?;
        // From here on a failure drops the proxy, and with it the thread.
        let proxy = Self { shared, address, thread: Some(thread) };
        start.recv().map_err(|_| io::Error::other("the proxy's thread ended"))??;
        Ok(proxy)
    }

    /// Where clients connect.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port where clients connect.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Changes what the network does, from now on.
    pub fn set_mode(&self, mode: Mode) {
        self.shared.set_mode(mode);
        if mode == Mode::Refuse {
            self.close_all();
        }
    }

    /// Resets every connection that exists now, also one that the proxy has not come to accept yet.
    pub fn close_all(&self) {
        self.shared.close_all();
    }

    /// Cuts a connection once, when the trigger says. Several can wait; the first that matches fires.
    pub fn cut_on(&self, trigger: Trigger) {
        self.shared.cut_on(trigger);
    }

    /// How many triggers have fired, that is, how many connections they have cut.
    #[must_use]
    pub fn fired(&self) -> usize {
        self.shared.count(|state| state.fired)
    }

    /// How many connections there are. One whose end is held back by the mode still counts.
    #[must_use]
    pub fn connections(&self) -> usize {
        self.shared.count(|state| state.open.len())
    }

    /// How many connections were accepted since the start, those that were refused included.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.shared.count(|state| state.accepted)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.shared.end();
        if let Some(thread) = self.thread.take() {
            // A panic of the proxy's thread was printed when it happened.
            let _ = thread.join();
        }
    }
}
