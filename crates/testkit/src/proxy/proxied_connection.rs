//! One connection: its client, its server, and a stream for each direction.
//!
//! A task reads both sides, passes on what the mode allows, and waits for the next event. If a trigger was taken for a request
//! and the connection ends before it fires, it is returned to the others.

use std::net::SocketAddr;
use std::time::Instant;

use tokio::net::TcpStream;
use tokio::sync::watch;

use super::listen::reset;
use super::one_way_stream::{Direction, Halt, OneWayStream, Verdict};
use super::state::{Admission, State};
use super::triggers::{Trigger, Window};
use crate::wait::sleep_until;

/// Runs a connection from its acceptance to its end.
pub(super) async fn serve(admission: Admission, client: TcpStream, upstream: SocketAddr) {
    let mut changes = admission.shared.changes();
    let connected = tokio::select! {
        connected = TcpStream::connect(upstream) => connected,
        () = until(&mut changes, || admission.is_doomed()) => return reset(client),
    };
    let Ok(server) = connected else {
        // That the server is down is a result too.
        let may_reset = || {
            let state = admission.shared.lock();
            state.mode.lets_answers_pass() || state.is_doomed(admission.connection)
        };
        until(&mut changes, may_reset).await;
        return reset(client);
    };
    // Bytes are passed on at once; otherwise TCP might delay small ones.
    let _ = client.set_nodelay(true);
    let _ = server.set_nodelay(true);
    if ProxiedConnection::new().run(&admission, &client, &server).await == Close::Reset {
        reset(client);
        reset(server);
    }
}

/// Waits until the condition holds. It is checked at each change of the shared state.
async fn until(changes: &mut watch::Receiver<()>, holds: impl Fn() -> bool) {
    loop {
        changes.borrow_and_update();
        if holds() || changes.changed().await.is_err() {
            return;
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Close {
    Quietly,
    Reset,
}

/// What to wait for when nothing can be passed on, besides arrivals and changes.
#[derive(Default)]
struct Pending {
    client_takes_more: bool,
    server_takes_more: bool,
    due: Option<Instant>,
}

struct ProxiedConnection {
    requests: OneWayStream,
    answers: OneWayStream,
    window: Window,
    /// The trigger that fires on the reply to its request.
    taken: Option<Trigger>,
    /// The number of replies from the server when that request passed.
    passed_at: Option<usize>,
}

impl ProxiedConnection {
    fn new() -> Self {
        Self {
            requests: OneWayStream::new(Direction::Requests),
            answers: OneWayStream::new(Direction::Answers),
            window: Window::default(),
            taken: None,
            passed_at: None,
        }
    }

    async fn run(
        &mut self,
        admission: &Admission,
        client: &TcpStream,
        server: &TcpStream,
    ) -> Close {
        let mut changes = admission.shared.changes();
        loop {
            changes.borrow_and_update();
            self.answers.fill(server);
            self.requests.fill(client);
            let pending = {
                // Locked throughout, so that a mode that is set later finds a consistent state.
                let state = &mut *admission.shared.lock();
                if state.is_doomed(admission.connection) {
                    Err(Close::Reset)
                } else {
                    self.pass(state, client, server)
                }
                .inspect_err(|_| state.triggers.extend(self.taken.take()))
            };
            let pending = match pending {
                Ok(pending) => pending,
                Err(close) => return close,
            };
            let due = async {
                match pending.due {
                    Some(at) => sleep_until(at).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                _ = changes.changed() => {}
                _ = client.readable(), if self.requests.wants_more() => {}
                _ = server.readable(), if self.answers.wants_more() => {}
                _ = client.writable(), if pending.client_takes_more => {}
                _ = server.writable(), if pending.server_takes_more => {}
                () = due => {}
            }
        }
    }

    /// Passes on what may pass, or reports that the connection is over.
    fn pass(
        &mut self,
        state: &mut State,
        client: &TcpStream,
        server: &TcpStream,
    ) -> Result<Pending, Close> {
        let mut pending = Pending::default();
        if let Some(seen) = self.passed_at {
            if self.answers.replies() > seen {
                self.taken = None;
                state.fired += 1;
                return Err(Close::Reset);
            }
            if !self.answers.is_drained() {
                return Ok(pending);
            }
            // The server closed without a reply: what it did is unknown.
            state.triggers.extend(self.taken.take());
            self.passed_at = None;
        }
        match self.answers.pass(state.mode, client, |_| Verdict::Pass) {
            Halt::Idle | Halt::Paused => {}
            Halt::Until(at) => pending.due = Some(at),
            Halt::Full => pending.client_takes_more = true,
            Halt::Cut => return Err(Close::Reset),
        }
        let halt = self.requests.pass(state.mode, server, |bytes| {
            match self.window.take(&mut state.triggers, bytes) {
                None => Verdict::Pass,
                Some(Trigger::BeforeRequest(_)) => {
                    state.fired += 1;
                    Verdict::Cut
                }
                Some(after) => {
                    self.taken = Some(after);
                    Verdict::PassAndPause
                }
            }
        });
        match halt {
            Halt::Idle => {}
            Halt::Paused => self.passed_at = Some(self.answers.replies()),
            Halt::Until(at) => pending.due = Some(pending.due.map_or(at, |due| due.min(at))),
            Halt::Full => pending.server_takes_more = true,
            Halt::Cut => return Err(Close::Reset),
        }
        let requests_over = self.requests.finished || self.requests.lost;
        let answers_over = self.answers.finished || self.answers.lost;
        if requests_over && answers_over {
            let broke = self.requests.lost || self.answers.lost;
            return Err(if broke { Close::Reset } else { Close::Quietly });
        }
        Ok(pending)
    }
}
