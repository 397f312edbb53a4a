//! An HTTP proxy in front of a server: it knows requests, so it can act between one and its response.
//!
//! The testkit's proxy knows bytes only. Here the action depends on the request, and a test's own code runs at that very
//! moment. Each connection carries one request.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use parking_lot::Mutex;

type Hook = Box<dyn FnOnce() + Send>;

/// What happens to a request.
pub enum Act {
    /// The hook runs, and the request passes.
    Before(Hook),
    /// The request passes, the hook runs, and the connection is closed without a response.
    LoseAnswer(Hook),
    /// The same, and the connection is reset.
    ResetAfter(Hook),
    /// The hook runs, and the connection is closed. The server never sees the request.
    LoseRequest(Hook),
    /// The server never sees the request, and the connection is reset.
    ResetBefore,
    /// The server never sees the request; the client gets this response: the status line, and more headers if any.
    Instead(&'static str),
    /// The same, but the request is kept: the server sees it when [`Gate::deliver`] is called.
    GiveUp(&'static str),
}

struct Rule {
    method: &'static str,
    path: String,
    act: Act,
}

/// The gate. Its threads end with the test process.
pub struct Gate {
    address: SocketAddr,
    server: SocketAddr,
    rules: Arc<Mutex<Vec<Rule>>>,
    given_up: Arc<GivenUp>,
}

/// Requests that were held back: head and body.
type GivenUp = Mutex<Vec<(String, Vec<u8>)>>;

impl Gate {
    /// A gate in front of this server that lets everything pass.
    #[must_use]
    pub fn to(server: SocketAddr) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap();
        let rules = Arc::new(Mutex::new(Vec::new()));
        let given_up = Arc::new(GivenUp::default());
        let known = (Arc::clone(&rules), Arc::clone(&given_up));
        std::thread::spawn(move || {
            for client in listener.incoming().flatten() {
                let (rules, given_up) = known.clone();
                // A client may disconnect.
                std::thread::spawn(move || serve(client, server, &rules, &given_up));
            }
        });
        Self { address, server, rules, given_up }
    }

    /// Delivers the requests that were held back. Returns the first lines of the responses.
    pub fn deliver(&self) -> io::Result<Vec<String>> {
        let given_up = std::mem::take(&mut *self.given_up.lock());
        let deliver = |(request, body): &(String, Vec<u8>)| {
            let answer = carried_out(self.server, request, body)?;
            let text = String::from_utf8_lossy(&answer);
            Ok(text.lines().next().unwrap_or_default().to_owned())
        };
        given_up.iter().map(deliver).collect()
    }

    /// Forgets the rules that are left.
    pub fn open_up(&self) {
        self.rules.lock().clear();
    }

    /// The URL for clients.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Acts once, on a request with this method whose path contains this.
    pub fn once(&self, method: &'static str, path: impl Into<String>, act: Act) {
        let rule = Rule { method, path: path.into(), act };
        self.rules.lock().push(rule);
    }

    /// How many rules have not fired yet.
    #[must_use]
    pub fn waiting(&self) -> usize {
        self.rules.lock().len()
    }
}

fn serve(
    mut client: TcpStream,
    server: SocketAddr,
    rules: &Mutex<Vec<Rule>>,
    given_up: &GivenUp,
) -> io::Result<()> {
    let Some((request, body)) = read_request(&mut client)? else { return Ok(()) };
    let act = {
        let mut rules = rules.lock();
        let line = request.lines().next().unwrap_or_default();
        let fits = |rule: &Rule| line.starts_with(rule.method) && line.contains(&rule.path);
        rules.iter().position(fits).map(|place| rules.remove(place).act)
    };
    match act {
        None => {}
        Some(Act::Before(hook)) => hook(),
        Some(Act::LoseAnswer(hook)) => {
            carried_out(server, &request, &body)?;
            hook();
            return client.shutdown(Shutdown::Both);
        }
        Some(Act::ResetAfter(hook)) => {
            carried_out(server, &request, &body)?;
            hook();
            return reset(&client);
        }
        Some(Act::ResetBefore) => return reset(&client),
        Some(Act::Instead(answer)) => return instead(&mut client, answer),
        Some(Act::GiveUp(answer)) => {
            given_up.lock().push((request, body));
            return instead(&mut client, answer);
        }
        Some(Act::LoseRequest(hook)) => {
            hook();
            return client.shutdown(Shutdown::Both);
        }
    }
    let answer = carried_out(server, &request, &body)?;
    client.write_all(&answer)
}

fn instead(client: &mut TcpStream, answer: &str) -> io::Result<()> {
    write!(client, "HTTP/1.1 {answer}\r\nConnection: close\r\n\r\n")
}

/// Makes the drop of the connection reset it.
fn reset(client: &TcpStream) -> io::Result<()> {
    let at_once = Some(std::time::Duration::ZERO);
    Ok(rustix::net::sockopt::set_socket_linger(client, at_once)?)
}

/// The head of a request, and its body.
fn read_request(client: &mut TcpStream) -> io::Result<Option<(String, Vec<u8>)>> {
    let (mut read, mut buffer) = (Vec::new(), [0; 16 * 1024]);
    let head = loop {
        if let Some(end) = read.windows(4).position(|window| window == b"\r\n\r\n") {
            break end + 4;
        }
        match client.read(&mut buffer)? {
            0 => return Ok(None),
            count => read.extend_from_slice(&buffer[..count]),
        }
    };
    let mut body = read.split_off(head);
    let head = String::from_utf8_lossy(&read).into_owned();
    assert!(!head.to_lowercase().contains("transfer-encoding"), "{head}");
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse().ok())?
    });
    let missing = length.unwrap_or(0_usize).saturating_sub(body.len());
    let start = body.len();
    body.resize(start + missing, 0);
    client.read_exact(&mut body[start..])?;
    Ok(Some((head, body)))
}

/// The server's answer, whole.
fn carried_out(server: SocketAddr, request: &str, body: &[u8]) -> io::Result<Vec<u8>> {
    let mut stream = TcpStream::connect(server)?;
    let (line, rest) = request.split_once("\r\n").unwrap_or((request, "\r\n"));
    write!(stream, "{line}\r\nConnection: close\r\n{rest}")?;
    stream.write_all(body)?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer)?;
    Ok(answer)
}
