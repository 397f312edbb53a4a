//! A connection to a server on which requests can be held back and delivered after the client has gone.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};

/// The valve. Its threads end with the test process.
pub struct Valve {
    /// Where clients connect to.
    pub address: SocketAddr,
    shared: Arc<Shared>,
}

#[derive(Default)]
struct Shared {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    accepted: usize,
    /// Requests of connections below this number are held back.
    shut_below: usize,
    refuses: bool,
    held_scripts: usize,
    answers: usize,
    clients: Vec<TcpStream>,
}

enum Passed {
    Yes,
    No,
    /// The requests that were held back; nothing that followed them.
    Last,
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Holds a script back while its connection is shut.
    fn pass(&self, number: usize, request: &[u8]) -> Passed {
        let mut state = self.lock();
        if number >= state.shut_below {
            return Passed::Yes;
        }
        if !request.windows(7).any(|word| word == b"EVALSHA") {
            return Passed::No;
        }
        state.held_scripts += 1;
        while number < state.shut_below {
            self.changed.wait(&mut state);
        }
        Passed::Last
    }
}

impl Valve {
    /// An open valve in front of this server.
    #[must_use]
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let shared = Arc::new(Shared::default());
        let all = Arc::clone(&shared);
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let mut state = all.lock();
                if state.refuses {
                    continue;
                }
                let Ok(server) = TcpStream::connect(server) else { continue };
                let number = state.accepted;
                state.accepted += 1;
                state.clients.push(client.try_clone().unwrap());
                drop(state);
                let (mut from, mut to) = (client.try_clone().unwrap(), server.try_clone().unwrap());
                let requests = Arc::clone(&all);
                std::thread::spawn(move || {
                    let mut bytes = [0; 1 << 13];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        let passed = requests.pass(number, &bytes[..count]);
                        if !matches!(passed, Passed::No) && to.write_all(&bytes[..count]).is_err() {
                            return;
                        }
                        if matches!(passed, Passed::Last) {
                            break;
                        }
                    }
                    let _ = to.shutdown(Shutdown::Write);
                });
                let (mut from, mut to, answers) = (server, client, Arc::clone(&all));
                std::thread::spawn(move || {
                    let mut bytes = [0; 1 << 13];
                    while let Ok(count @ 1..) = from.read(&mut bytes) {
                        answers.lock().answers += 1;
                        // The client may be gone.
                        let _ = to.write_all(&bytes[..count]);
                    }
                });
            }
        });
        Self { address, shared }
    }

    /// How many connections were accepted.
    #[must_use]
    pub fn accepted(&self) -> usize {
        self.shared.lock().accepted
    }

    /// Holds back the next script on each present connection, and drops everything else sent on it.
    pub fn shut(&self) {
        let mut state = self.shared.lock();
        state.shut_below = state.accepted;
    }

    /// How many scripts were held back.
    #[must_use]
    pub fn held_scripts(&self) -> usize {
        self.shared.lock().held_scripts
    }

    /// Disconnects the clients and refuses new ones. What is held back stays.
    pub fn cut(&self) {
        let mut state = self.shared.lock();
        state.refuses = true;
        for client in state.clients.drain(..) {
            let _ = client.shutdown(Shutdown::Both);
        }
    }

    /// Ends the outage for new connections.
    pub fn heal(&self) {
        self.shared.lock().refuses = false;
    }

    /// Delivers what was held back. Returns the number of replies so far.
    #[must_use]
    pub fn open(&self) -> usize {
        let mut state = self.shared.lock();
        state.shut_below = 0;
        self.shared.changed.notify_all();
        state.answers
    }

    /// How many replies came back.
    #[must_use]
    pub fn answers(&self) -> usize {
        self.shared.lock().answers
    }
}
