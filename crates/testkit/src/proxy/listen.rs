//! The proxy's thread: it accepts connections and runs them.
//!
//! Everything the proxy does is done on this one thread, on a runtime of its own, so there is one order of
//! events, and the runtime of the test does not matter.

use std::io;
use std::net::{SocketAddr, TcpListener};
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::Duration;

use tokio::net::TcpStream;

use super::link::serve;
use super::state::Shared;
use crate::wait::{now, sleep_until};

/// Runs the proxy until it is ended. Says through `started` whether it could start.
pub(super) fn run(
    listener: &TcpListener,
    upstream: SocketAddr,
    shared: &Arc<Shared>,
    started: &Sender<io::Result<()>>,
) {
    // However this thread ends, nobody is left waiting for it.
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

/// Accepts connections as they come. The runtime's listener says when; what waits at any other moment the
/// plain one knows better, because it asks the kernel.
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
        // After that, so that a connection which its client has already is closed as well.
        shared.begin_closing();
        if failed {
            // Most likely out of file descriptors; what waits in the kernel's queue goes on waiting.
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

/// Closes with a reset: nothing is delivered any more, and the other end learns of it at once.
pub(super) fn reset(stream: TcpStream) {
    // If the option can not be set the connection is closed all the same.
    let _ = stream.set_zero_linger();
    drop(stream);
}
