//! The proxy's thread: it accepts connections and runs them.
//!
//! Everything happens on this one thread with its own runtime, so there is one order of events, and the test's runtime does
//! not matter.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::net::TcpStream;

use super::proxied_connection::serve;
use super::state::Shared;
use crate::wait::{now, sleep_until};

/// Runs the proxy until it is ended. Reports through `started` whether it could start.
pub(super) fn run(
    listener: &TcpListener,
    upstream: SocketAddr,
    shared: &Arc<Shared>,
    started: &Sender<io::Result<()>>,
) {
    // However this thread ends, no caller may keep waiting for it.
    let _ending = Ending(shared);
    let runtime = match tokio::runtime::Builder::new_current_thread().enable_all().build() {
        Ok(runtime) => runtime,
        Err(error) => return drop(started.send(Err(error))),
    };
    runtime.block_on(async {
        match listener.try_clone().and_then(tokio::net::TcpListener::from_std) {
            Ok(arrivals) => {
                let _ = started.send(Ok(()));
                accept(listener, &arrivals, upstream, shared).await;
            }
            Err(error) => drop(started.send(Err(error))),
        }
    });
    // Dropping the runtime drops the tasks, and they close their sockets.
}

struct Ending<'a>(&'a Shared);

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        self.0.end();
    }
}

/// Accepts connections. The runtime's listener wakes this; the plain one asks the kernel whether more are waiting.
async fn accept(
    listener: &TcpListener,
    arrivals: &tokio::net::TcpListener,
    upstream: SocketAddr,
    shared: &Arc<Shared>,
) {
    let mut changes = shared.changes();
    loop {
        changes.borrow_and_update();
        if shared.lock().ended {
            return;
        }
        let failed = accept_waiting(listener, upstream, shared).is_err();
        // Accepted first, so that a connection that its client already has is closed as well.
        shared.begin_closing();
        if failed {
            // Usually out of file descriptors; the kernel's queue keeps the connections.
            sleep_until(now() + Duration::from_millis(10)).await;
            continue;
        }
        tokio::select! {
            _ = changes.changed() => {}
            accepted = arrivals.accept() => if let Ok((client, _)) = accepted {
                admit(client, upstream, shared);
            },
        }
    }
}

/// Accepts every connection that waits for it.
fn accept_waiting(
    listener: &TcpListener,
    upstream: SocketAddr,
    shared: &Arc<Shared>,
) -> io::Result<()> {
    loop {
        let client = match listener.accept() {
            Ok((client, _)) => client,
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => continue,
            Err(error) => return Err(error),
        };
        client.set_nonblocking(true)?;
        admit(TcpStream::from_std(client)?, upstream, shared);
    }
}

fn admit(client: TcpStream, upstream: SocketAddr, shared: &Arc<Shared>) {
    match shared.admit() {
        Some(admission) => drop(tokio::spawn(serve(admission, client, upstream))),
        None => reset(client),
    }
}

/// Closes with a reset: nothing more is delivered, and the other end notices at once.
pub(super) fn reset(stream: TcpStream) {
    // If the option cannot be set the connection is closed all the same.
    let _ = stream.set_zero_linger();
    drop(stream);
}
