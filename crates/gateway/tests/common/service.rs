//! A small HTTP service that stores what is PUT, records every request, and can misbehave on command.

use std::collections::{HashMap, HashSet};
use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};

/// What to do with requests for a path.
#[derive(Clone, Debug)]
pub(crate) enum Behavior {
    /// Apply and answer when [`Service::release_all`] is called; apply even if nobody waits for the response.
    Hang,
    /// Apply, then close the connection without a response.
    Cut,
    /// Send these bytes, then close the connection.
    Respond(Vec<u8>),
}

/// A request as received.
#[derive(Clone, Debug)]
pub(crate) struct Message {
    pub(crate) head: String,
    pub(crate) body: Vec<u8>,
}

#[derive(Default)]
struct State {
    files: HashMap<String, Vec<u8>>,
    behaviors: HashMap<String, Behavior>,
    requests: Vec<Message>,
    /// The bytes of all connections.
    bytes: u64,
    connections: usize,
    hanging: usize,
    /// How many requests have ever hung, and which of them may continue.
    hung: usize,
    free: HashSet<usize>,
    release_all: bool,
}

/// The service. Its threads end with the test.
#[derive(Clone)]
pub(crate) struct Service {
    address: SocketAddr,
    shared: Arc<(Mutex<State>, Condvar)>,
}

impl Service {
    pub(crate) fn start() -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let shared = Arc::new((Mutex::new(State::default()), Condvar::new()));
        let service = Self { address: listener.local_addr().unwrap(), shared };
        let theirs = service.clone();
        std::thread::spawn(move || {
            for io in listener.incoming() {
                let (Ok(io), service) = (io, theirs.clone()) else { continue };
                std::thread::spawn(move || service.serve(io));
            }
        });
        service
    }

    pub(crate) fn address(&self) -> SocketAddr {
        self.address
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.shared.0.lock().unwrap()
    }

    pub(crate) fn behave(&self, path: &str, behavior: Behavior) {
        self.state().behaviors.insert(path.to_owned(), behavior);
    }

    /// Serves the next requests for the path at once; those that hang keep hanging.
    pub(crate) fn behave_normally(&self, path: &str) {
        self.state().behaviors.remove(path);
    }

    pub(crate) fn file(&self, path: &str) -> Option<String> {
        self.state().files.get(path).map(|data| String::from_utf8_lossy(data).into_owned())
    }

    pub(crate) fn put(&self, path: &str, data: &[u8]) {
        self.state().files.insert(path.to_owned(), data.to_vec());
    }

    pub(crate) fn requests(&self) -> Vec<Message> {
        self.state().requests.clone()
    }

    /// The requests since the last call.
    pub(crate) fn take_requests(&self) -> Vec<Message> {
        std::mem::take(&mut self.state().requests)
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.state().bytes
    }

    pub(crate) fn connections(&self) -> usize {
        self.state().connections
    }

    /// How many requests hang now.
    pub(crate) fn hanging(&self) -> usize {
        self.state().hanging
    }

    /// Continues the request that was the `number`th to hang.
    pub(crate) fn release_one(&self, number: usize) {
        self.state().free.insert(number);
        self.shared.1.notify_all();
    }

    /// Continues all requests that hang, and lets no more hang.
    pub(crate) fn release_all(&self) {
        let mut state = self.state();
        state.release_all = true;
        state.behaviors.clear();
        self.shared.1.notify_all();
    }

    fn serve(&self, mut io: TcpStream) {
        self.state().connections += 1;
        let _ = io.set_nodelay(true);
        while let Ok(Some(message)) = self.read(&mut io) {
            let mut words = message.head.split(' ');
            let (method, target) =
                (words.next().unwrap().to_owned(), words.next().unwrap().to_owned());
            let path = target.split('?').next().unwrap().to_owned();
            let behavior = {
                let mut state = self.state();
                state.requests.push(message.clone());
                state.behaviors.get(&path).cloned()
            };
            match behavior {
                Some(Behavior::Respond(bytes)) => {
                    let _ = io.write_all(&bytes);
                    return;
                }
                Some(Behavior::Cut) => {
                    self.apply(&method, &path, &message.body);
                    return;
                }
                Some(Behavior::Hang) => {
                    let mut state = self.state();
                    let mine = state.hung;
                    (state.hung, state.hanging) = (mine + 1, state.hanging + 1);
                    let waits =
                        |state: &mut State| !state.release_all && !state.free.contains(&mine);
                    drop(self.shared.1.wait_while(state, waits).unwrap());
                    self.state().hanging -= 1;
                }
                None => {}
            }
            let (status, body) = self.apply(&method, &path, &message.body);
            let mut answer = format!("HTTP/1.1 {status} X\r\nServer: mine\r\n").into_bytes();
            if status != 204 {
                write!(answer, "Content-Length: {}\r\n", body.len()).unwrap();
            }
            answer.extend_from_slice(b"\r\n");
            if method != "HEAD" {
                answer.extend_from_slice(&body);
            }
            if io.write_all(&answer).is_err() {
                return;
            }
        }
    }

    fn apply(&self, method: &str, path: &str, body: &[u8]) -> (u16, Vec<u8>) {
        let files = &mut self.state().files;
        match method {
            "PUT" | "POST" => match files.insert(path.to_owned(), body.to_vec()) {
                Some(_) => (204, Vec::new()),
                None => (201, b"made\n".to_vec()),
            },
            "DELETE" => match files.remove(path) {
                Some(_) => (204, Vec::new()),
                None => (404, b"nothing there\n".to_vec()),
            },
            _ => match files.get(path) {
                Some(data) => (200, data.clone()),
                None => (404, b"nothing there\n".to_vec()),
            },
        }
    }

    fn read(&self, io: &mut TcpStream) -> io::Result<Option<Message>> {
        struct Counted<'a>(&'a mut TcpStream, &'a Service);
        impl Read for Counted<'_> {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let read = self.0.read(buffer)?;
                self.1.state().bytes += read as u64;
                Ok(read)
            }
        }
        read_message(&mut Counted(io, self), false)
    }
}

/// A header's value.
pub(crate) fn header(head: &str, name: &str) -> Option<String> {
    let lines = head.lines().filter_map(|line| line.split_once(':'));
    let mut found = lines.filter(|(key, _)| key.eq_ignore_ascii_case(name));
    found.next().map(|(_, value)| value.trim().to_owned())
}

/// Reads one message. Reads the head byte by byte, so that nothing after it is lost.
pub(crate) fn read_message(io: &mut impl Read, head_only: bool) -> io::Result<Option<Message>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        if io.read(&mut byte)? == 0 {
            return if head.is_empty() {
                Ok(None)
            } else {
                Err(io::ErrorKind::UnexpectedEof.into())
            };
        }
        head.push(byte[0]);
    }
    let head = String::from_utf8_lossy(&head).into_owned();
    let mut body = Vec::new();
    let status_without = head.starts_with("HTTP/1.1 204") || head.starts_with("HTTP/1.1 304");
    if head_only || status_without {
        return Ok(Some(Message { head, body }));
    }
    if let Some(length) = header(&head, "content-length") {
        body.resize(length.parse().map_err(io::Error::other)?, 0);
        io.read_exact(&mut body)?;
    } else if header(&head, "transfer-encoding").is_some() {
        loop {
            let mut line = Vec::new();
            while !line.ends_with(b"\r\n") {
                let mut byte = [0];
                io.read_exact(&mut byte)?;
                line.push(byte[0]);
            }
            let text = String::from_utf8_lossy(&line);
            let size = usize::from_str_radix(text.trim(), 16).map_err(io::Error::other)?;
            let mut chunk = vec![0; size + 2];
            io.read_exact(&mut chunk)?;
            if size == 0 {
                break;
            }
            body.extend_from_slice(&chunk[..size]);
        }
    } else if head.starts_with("HTTP/") {
        io.read_to_end(&mut body)?;
    }
    Ok(Some(Message { head, body }))
}
