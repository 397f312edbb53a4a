//! Finds a server that answers, and does the handshake.

use std::future::poll_fn;
use std::io;
use std::sync::Arc;
use std::task::{Poll, ready};
use std::time::Duration;

use fencepost_core::Moment;

use super::conn::AUTH_NUMBER;
use super::frame_stream::FrameStream;
use super::protocol::AUTH;
use super::wire::{ConnectRequest, ConnectResponse, Out};
use crate::backend::{StoreError, short};
use crate::backends::zookeeper::error::{Code, malformed};
use crate::clock::Clock;
use crate::race::{First, race};
use crate::random;
use crate::tls::Tls;
use crate::url::Host;

/// How long a server may take to accept a connection.
const ACCEPT_TIMEOUT: Duration = Duration::from_secs(1);
/// How long the handshake may take. A new session is a write, which waits for the quorum and its disks.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(2);

/// The servers of one URL, and our credentials.
pub(crate) struct Servers {
    pub(crate) hosts: Vec<Host>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) tls: Option<Tls>,
    pub(crate) credentials: Option<String>,
}

/// A connection after its handshake.
pub(super) struct Connected {
    pub(super) frame_stream: FrameStream,
    pub(super) connect_response: ConnectResponse,
    /// When the connect request left.
    pub(super) sent: Moment,
}

/// Why there is no connection.
pub(super) enum ConnectError {
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

    /// The first server that a session tries: not the same one for all sessions.
    pub(super) fn somewhere(&self) -> usize {
        random::below(self.hosts.len())
    }

    /// Connects to one server. [`Code::SessionGone`] if it says that the session has ended.
    pub(super) async fn connect(
        &self,
        host: &Host,
        connect_request: &ConnectRequest<'_>,
        adaptive_timeout: Duration,
    ) -> Result<Connected, ConnectError> {
        let broken = |error: &io::Error| match error.kind() {
            // A server does this if it has no quorum, has too many connections of ours, or is behind what this
            // session has seen.
            io::ErrorKind::UnexpectedEof | io::ErrorKind::ConnectionReset => {
                let older = match connect_request.last_zxid {
                    0 => "",
                    _ => ", or data that is older than what this session has seen (restored?)",
                };
                ConnectError::Failed(StoreError::unavailable(format!(
                    "no connection to {host}: it closed the connection: it may have no quorum, or too \
                     many connections (maxClientCnxns){older}"
                )))
            }
            _ => ConnectError::Failed(StoreError::unavailable(format!(
                "no connection to {host}: {error}"
            ))),
        };
        let late =
            |what: &str, limit: Duration| format!("{host} did not {what} within {}", short(limit));
        let timeout = Duration::from_millis(u64::from(connect_request.timeout_ms.unsigned_abs()));
        let open = FrameStream::open(host, self.tls.as_ref());
        // TLS has a handshake of its own, which is slow on a server that has just started.
        let limit = if self.tls.is_some() {
            ACCEPT_TIMEOUT + HANDSHAKE_TIMEOUT
        } else {
            (timeout / 6)
                .clamp(Duration::from_millis(100), ACCEPT_TIMEOUT)
                .max((adaptive_timeout / 2).min(ACCEPT_TIMEOUT * 3))
        };
        let mut frame_stream = match race(open, self.clock.alarm(self.clock.now() + limit)).await {
            First::Left(opened) => opened.map_err(|error| broken(&error))?,
            First::Right(()) => return Err(ConnectError::Late(late("accept a connection", limit))),
        };
        let sent = self.clock.now();
        frame_stream.put(&[&connect_request.bytes()]);
        let limit = if connect_request.session == 0 {
            HANDSHAKE_TIMEOUT
        } else {
            (timeout / 4).clamp(Duration::from_millis(250), HANDSHAKE_TIMEOUT)
        };
        let limit = limit.max(adaptive_timeout);
        let handshake = poll_fn(|context| {
            ready!(frame_stream.poll_flush(context))?;
            loop {
                let connect_response = frame_stream
                    .next()
                    .and_then(|frame| frame.map(ConnectResponse::read).transpose());
                if let Some(connect_response) = connect_response.transpose() {
                    return Poll::Ready(Ok(
                        connect_response.map_err(|_| malformed(&host.to_string()))
                    ));
                }
                ready!(frame_stream.poll_fill(context))?;
            }
        });
        let connect_response = match race(handshake, self.clock.alarm(sent + limit)).await {
            First::Left(Ok(connect_response)) => connect_response.map_err(ConnectError::Failed)?,
            First::Left(Err(error)) => return Err(broken(&error)),
            First::Right(()) => {
                return Err(ConnectError::Late(late("complete the handshake", limit)));
            }
        };
        let another =
            connect_request.session != 0 && connect_response.session != connect_request.session;
        if connect_response.timeout_ms <= 0 || connect_response.session == 0 || another {
            return Err(ConnectError::Failed(Code::SessionGone.into()));
        }
        if let Some(credentials) = &self.credentials {
            let auth = Out::default().i32(AUTH_NUMBER).i32(AUTH).i32(0);
            frame_stream.put(&[&auth.string("digest").string(credentials).0]);
        }
        Ok(Connected { frame_stream, connect_response, sent })
    }
}
