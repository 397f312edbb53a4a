//! The service behind the proxy: connections to it, kept open, and one request and its answer.
//!
//! What must hold: a request is sent at most once. Whether it *was* sent is told apart with care: a [`Fault`] that is
//! `NotSent` means that not a byte of it left us. Only then may it be tried again, and only then is its name free at
//! once. A connection that was closed while it was idle is found out before it is used, as far as the news of it has come.
//! An answer counts only if the whole request was sent; one that refuses the request earlier is passed on, and marked.

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
use crate::message::head::{Bad, Finder, Response, response};
use crate::spool::{Room, Spool};
use crate::time::{Late, Watch, now};

/// The most idle connections that a thread keeps.
const MAX_IDLE: usize = 256;
/// The largest head of an answer.
const MAX_HEAD: usize = 256 * 1024;
/// A body up to this size leaves in one piece with its head.
const ONE_PIECE: usize = 64 * 1024;
/// How long an upstream that has answered may take nothing more of the request.
const TAKES: Duration = Duration::from_secs(2);

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Nothing of the request left us.
    NotSent(String),
    /// It may have been received, and may still be running.
    InDoubt(String),
}

/// The body of an answer that came to its end, or why it could not be kept.
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
pub(crate) struct Pool(Mutex<Vec<Link>>);

/// A connection.
struct Link {
    io: TcpStream,
    read: BytesMut,
    /// Until when it may be used again.
    until: Moment,
}

/// An answer whose body is still to come.
pub(crate) struct Reply {
    pub(crate) head: Response,
    pub(crate) framing: Framing,
    /// It refuses the request, and came before all of it was sent.
    pub(crate) is_early: bool,
    link: Link,
    decoder: Decoder,
    reusable: bool,
}

/// What is still to be sent of a request.
pub(crate) struct Rest<'a> {
    /// With the body, if that is small.
    head: Vec<u8>,
    sent: usize,
    body: Option<&'a Spool>,
    /// How much of it has been taken, and the piece of that which was not sent yet.
    at: u64,
    piece: Bytes,
}

impl Upstream {
    pub(crate) fn new(config: &Config) -> Self {
        let authority = config.upstream.to_string().replacen("http://", "", 1);
        let crate::config::Address { host, port } = config.upstream.clone();
        Self { authority, host, port, idle: config.upstream_idle }
    }

    /// Sends a request and reads the head of its answer. Interim answers (1xx) are read over. An upstream may answer
    /// before it has the whole request: then the rest of it comes with the answer, for [`Reply::whole`] to send.
    pub(crate) async fn send<'a>(
        &self,
        pool: &Pool,
        method: &str,
        mut head: Vec<u8>,
        body: &'a Spool,
    ) -> Result<(Reply, Option<Rest<'a>>), Fault> {
        let whole = body.in_memory().filter(|body| body.len() <= ONE_PIECE);
        head.extend_from_slice(whole.unwrap_or_default());
        let body = if whole.is_some() { None } else { Some(body) };
        let mut rest = Rest { head, sent: 0, body, at: 0, piece: Bytes::new() };
        while let Some(link) = pool.take() {
            match self.exchange(link, method, rest).await {
                // Closed in the moment between our look and our write.
                Err((Fault::NotSent(_), Some(unsent))) => rest = unsent,
                done => return done.map_err(|(fault, _)| fault),
            }
        }
        let io = TcpStream::connect((self.host.as_str(), self.port)).await;
        let io = io
            .and_then(|io| io.set_nodelay(true).map(|()| io))
            .map_err(|error| Fault::NotSent(format!("can not connect to the upstream: {error}")))?;
        let link = Link { io, read: BytesMut::new(), until: now() };
        self.exchange(link, method, rest).await.map_err(|(fault, _)| fault)
    }

    /// What was not sent at all comes back.
    async fn exchange<'a>(
        &self,
        mut link: Link,
        method: &str,
        mut rest: Rest<'a>,
    ) -> Result<(Reply, Option<Rest<'a>>), (Fault, Option<Rest<'a>>)> {
        match link.io.write(&rest.head).await {
            Ok(written) => rest.sent = written,
            Err(error) => {
                let why = format!("the upstream closed the connection: {error}");
                return Err((Fault::NotSent(why), Some(rest)));
            }
        }
        let doubt = |why: String| (Fault::InDoubt(why), None);
        let failed = |error: io::Error| doubt(format!("the upstream failed: {error}"));
        // An upstream that has heard enough answers early, and may read no more: so both at once.
        let (head, sent) = {
            let (mut read, mut write) = link.io.split();
            if rest.is_sent() {
                (read_head(&mut read, &mut link.read).await.map_err(failed)?, Some(Ok(())))
            } else {
                let mut answer = std::pin::pin!(read_head(&mut read, &mut link.read));
                tokio::select! {
                    biased;
                    sent = rest.write(&mut write) => (answer.await.map_err(failed)?, Some(sent)),
                    head = &mut answer => (head.map_err(failed)?, None),
                }
            }
        };
        let bad = |Bad(why): Bad| doubt(format!("the upstream's answer {why}"));
        let framing = head.framing(method).map_err(bad)?;
        let keeps = head.keeps_alive() && framing != Framing::UntilClose;
        link.until = now() + self.kept_for(&head);
        let sent_all = matches!(sent, Some(Ok(())));
        let decoder = Decoder::new(framing);
        let is_early = !sent_all && head.status >= 400;
        let reply = Reply { head, framing, is_early, link, decoder, reusable: keeps && sent_all };
        match sent {
            Some(Err(_)) => accept_a_part(reply.head.status).map_err(failed)?,
            Some(Ok(())) => {}
            None => return Ok((reply, Some(rest))),
        }
        Ok((reply, None))
    }

    /// How long the connection may be idle: a second less than the upstream says it keeps it, if it does say.
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

impl Rest<'_> {
    fn is_sent(&self) -> bool {
        let left = |body: &Spool| self.at < body.len() || !self.piece.is_empty();
        self.sent == self.head.len() && !self.body.is_some_and(left)
    }

    /// Sends it as long as the upstream takes it: one that has answered may still read on. Whether all was sent.
    async fn write_while_taken(&mut self, write: &mut WriteHalf<'_>) -> bool {
        let mut watch = Watch::default();
        loop {
            let before = (self.sent, self.at, self.piece.len());
            match watch.until(now() + TAKES, self.write(write)).await {
                Ok(done) => return done.is_ok(),
                Err(Late) if (self.sent, self.at, self.piece.len()) == before => return false,
                Err(Late) => {}
            }
        }
    }

    /// Sends all of it. May be dropped, and called again.
    async fn write(&mut self, write: &mut WriteHalf<'_>) -> io::Result<()> {
        while self.sent < self.head.len() {
            self.sent += some(write.write(&self.head[self.sent..]).await?)?;
        }
        let Some(body) = self.body else { return Ok(()) };
        loop {
            while !self.piece.is_empty() {
                self.piece.advance(some(write.write(&self.piece).await?)?);
            }
            // The end is known by the length: to ask for it would take a moment in which the answer comes.
            if self.at >= body.len() {
                return Ok(());
            }
            let Some(piece) = body.piece(self.at).await? else { return Ok(()) };
            self.at += piece.len() as u64;
            self.piece = piece;
        }
    }
}

fn some(written: usize) -> io::Result<usize> {
    if written == 0 { Err(io::ErrorKind::WriteZero.into()) } else { Ok(written) }
}

/// The head of the final answer.
async fn read_head(read: &mut ReadHalf<'_>, buffer: &mut BytesMut) -> io::Result<Response> {
    let bad =
        |Bad(why): Bad| io::Error::new(io::ErrorKind::InvalidData, format!("its answer {why}"));
    let mut finder = Finder::default();
    loop {
        if let Some(end) = finder.end(buffer).map_err(bad)? {
            let head = response(&buffer[..end]).map_err(bad)?;
            buffer.advance(end);
            match head.status {
                101 => return Err(bad(Bad("switches protocols, which nobody asked for"))),
                100..200 => finder = Finder::default(),
                _ => return Ok(head),
            }
            continue;
        }
        if buffer.len() > MAX_HEAD {
            return Err(bad(Bad("has too large a head")));
        }
        buffer.reserve(8192);
        if read.read_buf(buffer).await? == 0 {
            let message = "it closed the connection before its answer";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
    }
}

impl Reply {
    /// The next piece of the body; none at its end.
    pub(crate) async fn piece(&mut self) -> io::Result<Option<Bytes>> {
        next_piece(&mut self.link.io.split().0, &mut self.link.read, &mut self.decoder).await
    }

    /// The whole body. What is left of the request is sent meanwhile. An error is a request whose end is not known.
    pub(crate) async fn whole(
        &mut self,
        rest: Option<Rest<'_>>,
        limit: u64,
        room: &Arc<Room>,
    ) -> io::Result<Read> {
        let (mut read, mut write) = self.link.io.split();
        let buffer = &mut self.link.read;
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
            accept_a_part(self.head.status)?;
        }
        Ok(body)
    }

    /// Gives the connection back, if it can be used again.
    pub(crate) fn give_back(self, pool: &Pool) {
        if self.reusable && self.decoder.is_done() && self.link.read.is_empty() {
            pool.put(self.link);
        }
    }
}

/// The upstream has answered, and cannot have the whole request. If it refused it, that is passed on. If it did not, it is
/// not known what it will make of the part.
fn accept_a_part(status: u16) -> io::Result<()> {
    if status >= 400 {
        return Ok(());
    }
    Err(io::Error::other(format!("it answered {status} before it had the whole request")))
}

/// Reads a body to its end, also one that can not be kept: then the end is known, all the same.
async fn read_whole(
    read: &mut ReadHalf<'_>,
    buffer: &mut BytesMut,
    decoder: &mut Decoder,
    limit: u64,
    room: &Arc<Room>,
) -> io::Result<Read> {
    let mut kept: Read = Ok(Spool::default());
    while let Some(piece) = next_piece(read, buffer, decoder).await? {
        if let Ok(spool) = &mut kept {
            if let Err(error) = spool.push(&piece, room).await {
                kept = Err(error.to_string());
            } else if spool.len() > limit {
                kept = Err(format!("it has more than {limit} bytes"));
            }
        }
    }
    Ok(kept)
}

/// The next piece of a body; none at its end, which may be that of the connection.
async fn next_piece(
    read: &mut ReadHalf<'_>,
    buffer: &mut BytesMut,
    decoder: &mut Decoder,
) -> io::Result<Option<Bytes>> {
    loop {
        let step = decoder.step(buffer).map_err(|Bad(why)| {
            io::Error::new(io::ErrorKind::InvalidData, format!("the upstream's answer {why}"))
        })?;
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
            let message = "the upstream closed the connection in the middle of its answer";
            return Err(io::Error::new(io::ErrorKind::UnexpectedEof, message));
        }
    }
}

impl Pool {
    /// The connection that was used last and is still open.
    fn take(&self) -> Option<Link> {
        loop {
            let link = self.0.lock().pop()?;
            // It has nothing to say. If it can be read, it was closed, or speaks out of turn. What is looked at is what
            // the runtime has heard: a close that came after its last look is met by the write, and is then in doubt.
            let quiet = matches!(
                link.io.try_read(&mut [0]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock
            );
            if quiet && now() < link.until {
                return Some(link);
            }
        }
    }

    fn put(&self, link: Link) {
        let mut idle = self.0.lock();
        if idle.len() >= MAX_IDLE {
            idle.remove(0);
        }
        idle.push(link);
    }

    /// Closes what has been idle for too long.
    pub(crate) fn tidy(&self) {
        let now = now();
        self.0.lock().retain(|link| now < link.until);
    }
}
