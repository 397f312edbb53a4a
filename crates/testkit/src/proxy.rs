//! A TCP proxy that breaks connections on purpose. It knows no protocol, so it serves every backend.
//!
//! ```text
//! client under test  --requests-->  proxy  --requests-->  server
//!                    <--answers---         <--answers---
//! ```
//!
//! What must hold:
//!
//! - When a call returns, it has taken effect. After [`set_mode`](Proxy::set_mode) no byte passes that the mode
//!   forbids; after [`close_all`](Proxy::close_all) the connections are closed.
//! - A silent network passes nothing: no data, and not the close of either end. Held-back data is kept in order and passed
//!   on when the mode allows it, as TCP would retransmit it.
//! - A cut is a reset (RST): both ends notice at once, and nothing waits in a closed socket.

mod arrivals;
mod listen;
mod one_way_stream;
mod proxied_connection;
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

/// What the network does with present and new connections.
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
    /// Starts a proxy to this server, which need not run yet: a client that cannot be connected is reset.
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
        // From here on a failure drops the proxy, and its thread with it.
        let proxy = Self { shared, address, thread: Some(thread) };
        start.recv().map_err(|_| io::Error::other("the proxy's thread ended"))??;
        Ok(proxy)
    }

    /// The address for clients.
    #[must_use]
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The port for clients.
    #[must_use]
    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Changes the network's mode from now on.
    pub fn set_mode(&self, mode: Mode) {
        self.shared.set_mode(mode);
        if mode == Mode::Refuse {
            self.close_all();
        }
    }

    /// Resets every present connection, even one that the proxy has not accepted yet.
    pub fn close_all(&self) {
        self.shared.close_all();
    }

    /// Cuts one connection, when the trigger matches. Several triggers can wait; the first that matches fires.
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
