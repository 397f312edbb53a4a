//! The service behind the gateway: a pool of connections, one request at a time on each.
//!
//! What must hold: a request is sent at most once. [`UpstreamError::NotSent`] means that no byte of it left. Only then is
//! it tried again, and its name free at once. A connection that the upstream closed while it was idle is detected before
//! use, as far as this machine knows of the close.
//! A response counts only if the whole request was sent. A refusal that comes earlier is passed on, and marked as early.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use fencepost_core::Moment;
use parking_lot::Mutex;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use crate::config::Config;
use crate::message::body::{Decoder, Framing};
use crate::message::head::{HeadFinder, Malformed, Response, response};
use crate::spool::{Spool, SpoolSpace};
use crate::time::{TimedOut, Timer, now};

/// The most idle connections per thread.
const MAX_IDLE: usize = 256;
/// The largest head of a response.
const MAX_HEAD: usize = 256 * 1024;
/// Bodies up to this size are sent together with their head.
const MAX_HEAD_WITH_BODY: usize = 64 * 1024;
/// How long an upstream that has responded may read nothing more of the request.
const STALL_TIMEOUT: Duration = Duration::from_secs(2);

/// Why there is no response.
#[derive(Debug)]
pub(crate) enum UpstreamError {
    /// Nothing of the request was sent.
    NotSent(String),
    /// The upstream may have received it, and may still be working on it.
    OutcomeUnknown(String),
}

impl UpstreamError {
    pub(crate) fn failed(error: &io::Error) -> Self {
        Self::OutcomeUnknown(format!("the upstream failed: {error}"))
    }
}

/// A response body that was read to its end, or why it could not be buffered.
pub(crate) type Read = Result<Spool, String>;

/// Where the upstream is.
pub(crate) struct Upstream {
    /// As in `Host`.
    pub(crate) authority: String,
    host: String,
    port: u16,
    idle: Duration,
}

/// The idle connections of one thread.
#[derive(Default)]
pub(crate) struct Pool(Mutex<Vec<Connection>>);

/// A connection.
struct Connection {
    io: TcpStream,
    read: BytesMut,
    /// Until when it may be reused.
    until: Moment,
}

/// A response whose body is still to be read.
pub(crate) struct Reply {
    pub(crate) head: Response,
    pub(crate) framing: Framing,
    /// It refuses the request, and came before all of it was sent.
    pub(crate) is_early: bool,
    connection: Connection,
    decoder: Decoder,
    reusable: bool,
}

/// The rest of a request.
pub(crate) struct Unsent<'a> {
    /// With the body, if that is small.
    head: Vec<u8>,
    sent: usize,
    body: Option<&'a Spool>,
    /// How much of the body was read, and the part of it that was not sent yet.
    at: u64,
    piece: Bytes,
}

impl Upstream {
    pub(crate) fn new(config: &Config) -> Self {
        let authority = config.upstream.to_string().replacen("http://", "", 1);
        let crate::config::Address { host, port } = config.upstream.clone();
        Self { authority, host, port, idle: config.upstream_idle }
    }

    /// Sends a request and reads the head of the response. Interim responses (1xx) are skipped. An upstream may respond
    /// before it has the whole request; then its rest is returned too, for [`Reply::whole`] to send.
    pub(crate) async fn send<'a>(
        &self,
        pool: &Pool,
        method: &str,
        mut head: Vec<u8>,
        body: &'a Spool,
    ) -> Result<(Reply, Option<Unsent<'a>>), UpstreamError> {
        let whole = body.in_memory().filter(|body| body.len() <= MAX_HEAD_WITH_BODY);
        head.extend_from_slice(whole.unwrap_or_default());
        let body = if whole.is_some() { None } else { Some(body) };
        let mut rest = Unsent { head, sent: 0, body, at: 0, piece: Bytes::new() };
        while let Some(connection) = pool.take() {
            match self.exchange(connection, method, rest).await {
                // Closed between our check and our write.
                Err((UpstreamError::NotSent(_), Some(unsent))) => rest = unsent,
                done => return done.map_err(|(error, _)| error),
            }
        }
        let io = TcpStream::connect((self.host.as_str(), self.port)).await;
        let io = io.and_then(|io| io.set_nodelay(true).map(|()| io)).map_err(|error| {
            UpstreamError::NotSent(format!("cannot connect to the upstream: {error}"))
        })?;
        let connection = Connection { io, read: BytesMut::new(), until: now() };
        self.exchange(connection, method, rest).await.map_err(|(error, _)| error)
    }

    /// Returns the request if none of it was sent.
    async fn exchange<'a>(
        &self,
        mut connection: Connection,
        method: &str,
        mut rest: Unsent<'a>,
    ) -> Result<(Reply, Option<Unsent<'a>>), (UpstreamError, Option<Unsent<'a>>)> {
        match connection.io.write(&rest.head).await {
            Ok(written) => rest.sent = written,
            Err(error) => {
                let why = format!("the upstream closed the connection: {error}");
                return Err((UpstreamError::NotSent(why), Some(rest)));
            }
        }
        let failed = |error: io::Error| (UpstreamError::failed(&error), None);
        // An upstream can respond early and stop reading, so write and read at once.
        let (head, sent) = {
            let (mut read, mut write) = connection.io.split();
            if rest.is_sent() {
                (read_head(&mut read, &mut connection.read).await.map_err(failed)?, Some(Ok(())))
            } else {
                let mut answer = std::pin::pin!(read_head(&mut read, &mut connection.read));
                tokio::select! {
                    biased;
                    sent = rest.write(&mut write) => (answer.await.map_err(failed)?, Some(sent)),
                    head = &mut answer => (head.map_err(failed)?, None),
                }
            }
        };
        let framing = head.framing(method).map_err(malformed).map_err(failed)?;
        let keeps = head.keeps_alive() && framing != Framing::UntilClose;
        connection.until = now() + self.kept_for(&head);
        let sent_all = matches!(sent, Some(Ok(())));
        let decoder = Decoder::new(framing);
        let is_early = !sent_all && head.status >= 400;
        let reply =
            Reply { head, framing, is_early, connection, decoder, reusable: keeps && sent_all };
        match sent {
            Some(Err(_)) => check_partial_request(reply.head.status).map_err(failed)?,
            Some(Ok(())) => {}
            None => return Ok((reply, Some(rest))),
        }
        Ok((reply, None))
    }

    /// How long the connection may be idle: a second less than the upstream's `Keep-Alive` allows, if it says so.
    fn kept_for(&self, head: &Response) -> Duration {
        let said = head.fields.first("keep-alive").and_then(|value| {
            let text = std::str::from_utf8(value).ok()?;
            let seconds = text.split(',').find_map(|part| part.trim().strip_prefix("timeout="))?;
            seconds.parse::<u64>().ok()
        });
        let theirs = said.map(|said| Duration::from_secs(said.saturating_sub(1)));
        theirs.map_or(self.idle, |theirs| theirs.min(self.idle))
    }
}

impl Unsent<'_> {
    fn is_sent(&self) -> bool {
        let left = |body: &Spool| self.at < body.len() || !self.piece.is_empty();
        self.sent == self.head.len() && !self.body.is_some_and(left)
    }

    /// Sends the rest while the upstream reads it. Returns whether all was sent.
    async fn write_while_taken(&mut self, write: &mut WriteHalf<'_>) -> bool {
        let mut timer = Timer::default();
        loop {
            let before = (self.sent, self.at, self.piece.len());
            match timer.until(now() + STALL_TIMEOUT, self.write(write)).await {
                Ok(done) => return done.is_ok(),
                Err(TimedOut) if (self.sent, self.at, self.piece.len()) == before => return false,
                Err(TimedOut) => {}
            }
        }
    }

    /// Sends the rest. May be dropped, and called again.
    async fn write(&mut self, write: &mut WriteHalf<'_>) -> io::Result<()> {
        while self.sent < self.head.len() {
            self.sent += nonzero(write.write(&self.head[self.sent..]).await?)?;
        }
        let Some(body) = self.body else { return Ok(()) };
        loop {
            while !self.piece.is_empty() {
                self.piece.advance(nonzero(write.write(&self.piece).await?)?);
            }
            // Known by the length. Another read would give the response time to come first.
            if self.at >= body.len() {
                return Ok(());
            }
            let Some(piece) = body.piece(self.at).await? else { return Ok(()) };
            self.at += piece.len() as u64;
            self.piece = piece;
        }
    }
}

fn malformed(Malformed(why): Malformed) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("its response {why}"))
}

/// Zero bytes written is an error, or the writer would loop.
pub(crate) fn nonzero(written: usize) -> io::Result<usize> {
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

/// The head of the final response.
async fn read_head(read: &mut ReadHalf<'_>, buffer: &mut BytesMut) -> io::Result<Response> {
    let mut finder = HeadFinder::default();
    loop {
        if let Some(end) = finder.end(buffer).map_err(malformed)? {
            let head = response(&buffer[..end]).map_err(malformed)?;
            buffer.advance(end);
            match head.status {
                101 => {
                    return Err(malformed(Malformed("switches protocols unasked")));
                }
                100..200 => finder = HeadFinder::default(),
                _ => return Ok(head),
            }
            continue;
        }
        if buffer.len() > MAX_HEAD {
            return Err(malformed(Malformed("has a head that is too large")));
        }
        buffer.reserve(8192);
        if read.read_buf(buffer).await? == 0 {
            let message = "it closed the connection before its response";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
    }
}

impl Reply {
    /// The next piece of the body; none at its end.
    pub(crate) async fn piece(&mut self) -> io::Result<Option<Bytes>> {
        next_piece(&mut self.connection.io.split().0, &mut self.connection.read, &mut self.decoder)
            .await
    }

    /// Reads the whole body, and sends the rest of the request meanwhile. An error means that the outcome is unknown.
    pub(crate) async fn whole(
        &mut self,
        rest: Option<Unsent<'_>>,
        limit: u64,
        room: &Arc<SpoolSpace>,
    ) -> io::Result<Read> {
        let (mut read, mut write) = self.connection.io.split();
        let buffer = &mut self.connection.read;
        let reading = read_whole(&mut read, buffer, &mut self.decoder, limit, room);
        let Some(mut rest) = rest else { return reading.await };
        let mut reading = std::pin::pin!(reading);
        let (sent, body) = tokio::select! {
            biased;
            sent = rest.write(&mut write) => (sent.is_ok(), reading.await?),
            body = &mut reading => {
                let goes_on = self.head.status < 400 && rest.write_while_taken(&mut write).await;
                (goes_on, body?)
            }
        };
        if !sent {
            check_partial_request(self.head.status)?;
        }
        Ok(body)
    }

    /// Returns the connection to the pool, if it can be reused.
    pub(crate) fn give_back(self, pool: &Pool) {
        if self.reusable && self.decoder.is_done() && self.connection.read.is_empty() {
            pool.put(self.connection);
        }
    }
}

/// The upstream has responded and does not read the whole request. A refusal is passed on. After a success, what the
/// upstream does with the part that it has is unknown.
fn check_partial_request(status: u16) -> io::Result<()> {
    if status >= 400 {
        return Ok(());
    }
    Err(io::Error::other(format!("it answered {status} before it had the whole request")))
}

/// Reads a body to its end, even one that cannot be buffered: then the request has ended all the same.
async fn read_whole(
    read: &mut ReadHalf<'_>,
    buffer: &mut BytesMut,
    decoder: &mut Decoder,
    limit: u64,
    room: &Arc<SpoolSpace>,
) -> io::Result<Read> {
    let mut kept: Read = Ok(Spool::default());
    while let Some(piece) = next_piece(read, buffer, decoder).await? {
        if let Ok(spool) = &mut kept {
            if let Err(error) = spool.push(&piece, room).await {
                kept = Err(error.to_string());
            } else if spool.len() > limit {
                kept = Err(format!("it exceeds {limit} bytes (--max-response)"));
            }
        }
    }
    Ok(kept)
}

/// The next piece of a body; none at its end.
async fn next_piece(
    read: &mut ReadHalf<'_>,
    buffer: &mut BytesMut,
    decoder: &mut Decoder,
) -> io::Result<Option<Bytes>> {
    loop {
        let step = decoder.step(buffer).map_err(malformed)?;
        if !step.data.is_empty() {
            buffer.advance(step.data.start);
            let data = buffer.split_to(step.data.len()).freeze();
            buffer.advance(step.used - step.data.end);
            return Ok(Some(data));
        }
        buffer.advance(step.used);
        if step.end {
            return Ok(None);
        }
        if step.used > 0 {
            continue;
        }
        buffer.reserve(16 * 1024);
        if read.read_buf(buffer).await? == 0 {
            if decoder.ends_with_connection() {
                return Ok(None);
            }
            let message = "it closed the connection in the middle of its response";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
    }
}

impl Pool {
    /// The most recently used connection that is still open.
    fn take(&self) -> Option<Connection> {
        loop {
            let connection = self.0.lock().pop()?;
            // An idle connection has nothing to read. If it has, the upstream closed it or broke the protocol. A close that
            // this machine does not know of yet makes the write fail, or the outcome unknown.
            let quiet = matches!(
                connection.io.try_read(&mut [0]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock
            );
            if quiet && now() < connection.until {
                return Some(connection);
            }
        }
    }

    fn put(&self, connection: Connection) {
        let mut idle = self.0.lock();
        if idle.len() >= MAX_IDLE {
            idle.remove(0);
        }
        idle.push(connection);
    }

    /// Closes connections that were idle for too long.
    pub(crate) fn close_idle(&self) {
        let now = now();
        self.0.lock().retain(|connection| now < connection.until);
    }
}
