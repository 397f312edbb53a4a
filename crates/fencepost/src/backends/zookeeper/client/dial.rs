//! Finds a server that answers, and shakes hands with it.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use fencepost_core::Moment;

use super::conn::AUTH_NUMBER;
use super::ops::AUTH;
use super::pipe::Pipe;
use super::wire::{Hello, Out, Welcome};
use crate::backend::{StoreError, short};
use crate::backends::zookeeper::error::{Code, malformed};
use crate::clock::Clock;
use crate::race::{First, race};
use crate::tls::Tls;
use crate::url::Host;

/// How long a server may take to accept a connection.
const ACCEPT: Duration = Duration::from_secs(1);
/// How long it may take to greet. A new session is a write, which waits for the quorum and its disks.
const GREET: Duration = Duration::from_secs(2);

/// The servers of one URL, and who we are to them.
pub(crate) struct Servers {
    pub(crate) hosts: Vec<Host>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tls: Option<Tls>,
    pub(crate) credentials: Option<String>,
}

/// A connection that is greeted.
pub(super) struct Greeted {
    pub(super) pipe: Pipe,
    pub(super) welcome: Welcome,
    /// When the hello left.
    pub(super) sent: Moment,
}

/// Why there is none.
pub(super) enum Greeting {
    /// It did not answer in time.
    Late(String),
    Failed(StoreError),
}

impl Servers {
    /// All of them, for people.
    pub(crate) fn shown(&self) -> String {
        let hosts: Vec<String> = self.hosts.iter().map(ToString::to_string).collect();
        hosts.join(", ")
    }

    /// Where a session begins to look: not all at the same server.
    pub(super) fn somewhere(&self) -> usize {
        let mut bits = [0; 4];
        // Without random numbers it is the first one.
        let _ = getrandom::fill(&mut bits);
        u32::from_ne_bytes(bits) as usize % self.hosts.len().max(1)
    }

    /// Connects to one server. [`Code::SessionGone`] if it says that the session has ended.
    pub(super) async fn greet(
        &self,
        host: &Host,
        hello: &Hello<'_>,
        patience: Duration,
    ) -> Result<Greeted, Greeting> {
        let broken = |error: &io::Error| match error.kind() {
            // What a server does that has no quorum, or too many connections of ours, or is behind what this
            // session has seen.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                let older = match hello.last_zxid {
                    0 => "",
                    _ => ", or data that is older than what this session has seen (restored?)",
                };
                Greeting::Failed(StoreError::unavailable(format!(
                    "no connection to {host}: it closed the connection: it may have no quorum, or too \
                     many connections (maxClientCnxns){older}"
                )))
            }
            _ => Greeting::Failed(StoreError::unavailable(format!(
                "no connection to {host}: {error}"
            ))),
        };
        let late =
            |what: &str, limit: Duration| format!("{host} did not {what} within {}", short(limit));
        let timeout = Duration::from_millis(u64::from(hello.timeout_ms.unsigned_abs()));
        let open = Pipe::open(host, self.tls.as_ref());
        // Encryption is a greeting of its own, and slow on a server that has just started.
        let limit = if self.tls.is_some() {
            ACCEPT + GREET
        } else {
            (timeout / 6)
                .clamp(Duration::from_millis(100), ACCEPT)
                .max((patience / 2).min(ACCEPT * 3))
        };
        let mut pipe = match race(open, self.clock.alarm(self.clock.now() + limit)).await {
            First::Left(opened) => opened.map_err(|error| broken(&error))?,
            First::Right(()) => return Err(Greeting::Late(late("accept a connection", limit))),
        };
        let sent = self.clock.now();
        pipe.put(&[&hello.bytes()]);
        let limit = if hello.session == 0 {
            GREET
        } else {
            (timeout / 4).clamp(Duration::from_millis(250), GREET)
        };
        let limit = limit.max(patience);
        let greeting = poll_fn(|context| {
            ready!(pipe.poll_flush(context))?;
            loop {
                let welcome = match pipe.next() {
                    Ok(Some(frame)) => Some(Welcome::read(frame)),
                    Ok(None) => None,
                    Err(error) => Some(Err(error)),
                };
                if let Some(welcome) = welcome {
                    return Poll::Ready(Ok(welcome.map_err(|_| malformed(&host.to_string()))));
                }
                ready!(pipe.poll_fill(context))?;
            }
        });
        let welcome = match race(greeting, self.clock.alarm(sent + limit)).await {
            First::Left(Ok(welcome)) => welcome.map_err(Greeting::Failed)?,
            First::Left(Err(error)) => return Err(broken(&error)),
            First::Right(()) => return Err(Greeting::Late(late("greet us", limit))),
        };
        let another = hello.session != 0 && welcome.session != hello.session;
        if welcome.timeout_ms <= 0 || welcome.session == 0 || another {
            return Err(Greeting::Failed(Code::SessionGone.into()));
        }
        if let Some(credentials) = &self.credentials {
            let auth = Out::default().i32(AUTH_NUMBER).i32(AUTH).i32(0);
            pipe.put(&[&auth.string("digest").string(credentials).0]);
        }
        Ok(Greeted { pipe, welcome, sent })
    }
}
