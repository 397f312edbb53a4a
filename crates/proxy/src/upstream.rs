//! The service behind the proxy: connections to it, kept open, and one request and its answer.
//!
//! What must hold: a request is sent at most once. Whether it *was* sent is told apart with care: a [`Fault`] that is
//! `NotSent` means that not a byte of it left us. Only then may it be tried again, and only then is its name free at
//! once. A connection that was closed while it was idle is found out before it is used, not by using it.

use std::io;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use bytes::{Buf as _, Bytes, BytesMut};
use fencepost::Moment;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::net::tcp::{ReadHalf, WriteHalf};

use crate::config::Config;
use crate::h1::body::{Decoder, Framing};
use crate::h1::head::{Bad, Finder, Response, response};
use crate::spool::Spool;
use crate::time::now;

/// The most idle connections that a thread keeps.
const MAX_IDLE: usize = 256;
/// The largest head of an answer.
const MAX_HEAD: usize = 256 * 1024;
/// A body up to this size leaves in one piece with its head.
const ONE_PIECE: usize = 64 * 1024;

/// Why there is no answer.
#[derive(Debug)]
pub(crate) enum Fault {
    /// Nothing of the request left us.
    NotSent(String),
    /// It may have been received, and may still be running.
    InDoubt(String),
}

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
    link: Link,
    decoder: Decoder,
    reusable: bool,
}

impl Upstream {
    pub(crate) fn new(config: &Config) -> Self {
        let authority = config.upstream.to_string().replacen("http://", "", 1);
        let crate::config::Address { host, port } = config.upstream.clone();
        Self { authority, host, port, idle: config.upstream_idle }
    }

    /// Sends a request and reads the head of its answer. Interim answers (1xx) are read over.
    pub(crate) async fn send(
        &self,
        pool: &Pool,
        method: &str,
        mut head: Vec<u8>,
        body: &Spool,
    ) -> Result<Reply, Fault> {
        let whole = body.in_memory().filter(|body| body.len() <= ONE_PIECE);
        head.extend_from_slice(whole.unwrap_or_default());
        let rest = if whole.is_some() { None } else { Some(body) };
        while let Some(link) = pool.take() {
            match self.exchange(link, method, &head, rest).await {
                // Closed in the moment between our look and our write.
                Err(Fault::NotSent(_)) => {}
                done => return done,
            }
        }
        let io = TcpStream::connect((self.host.as_str(), self.port)).await;
        let io = io
            .and_then(|io| io.set_nodelay(true).map(|()| io))
            .map_err(|error| Fault::NotSent(format!("can not connect to the upstream: {error}")))?;
        let link = Link { io, read: BytesMut::new(), until: now() };
        self.exchange(link, method, &head, rest).await
    }

    async fn exchange(
        &self,
        mut link: Link,
        method: &str,
        head: &[u8],
        rest: Option<&Spool>,
    ) -> Result<Reply, Fault> {
        let written = link.io.write(head).await.map_err(|error| {
            Fault::NotSent(format!("the upstream closed the connection: {error}"))
        })?;
        let doubt = |error: io::Error| Fault::InDoubt(format!("the upstream failed: {error}"));
        let (head, sent) = if written == head.len() && rest.is_none() {
            let (mut read, _) = link.io.split();
            (read_head(&mut read, &mut link.read).await.map_err(doubt)?, true)
        } else {
            // An upstream that has heard enough answers early, and may read no more: so both at once.
            let (mut read, mut write) = link.io.split();
            let mut write = std::pin::pin!(write_rest(&mut write, &head[written..], rest));
            let mut answer = std::pin::pin!(read_head(&mut read, &mut link.read));
            tokio::select! {
                biased;
                sent = &mut write => (answer.await.map_err(doubt)?, sent.is_ok()),
                head = &mut answer => (head.map_err(doubt)?, false),
            }
        };
        let bad = |Bad(why): Bad| Fault::InDoubt(format!("the upstream's answer {why}"));
        let framing = head.framing(method).map_err(bad)?;
        let reusable = sent && head.keeps_alive() && framing != Framing::UntilClose;
        link.until = now() + self.kept_for(&head);
        Ok(Reply { head, framing, link, decoder: Decoder::new(framing), reusable })
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

async fn write_rest(
    write: &mut WriteHalf<'_>,
    head: &[u8],
    rest: Option<&Spool>,
) -> io::Result<()> {
    write.write_all(head).await?;
    let Some(body) = rest else { return Ok(()) };
    let mut at = 0;
    while let Some(piece) = body.piece(at).await? {
        write.write_all(&piece).await?;
        at += piece.len() as u64;
    }
    Ok(())
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
        loop {
            let step = self.decoder.step(&self.link.read).map_err(|Bad(why)| {
                io::Error::new(io::ErrorKind::InvalidData, format!("the upstream's answer {why}"))
            })?;
            if !step.data.is_empty() {
                self.link.read.advance(step.data.start);
                let data = self.link.read.split_to(step.data.len()).freeze();
                self.link.read.advance(step.used - step.data.end);
                return Ok(Some(data));
            }
            self.link.read.advance(step.used);
            if step.end {
                return Ok(None);
            }
            if step.used == 0 && !self.fill().await? {
                return Ok(None);
            }
        }
    }

    /// The whole body.
    pub(crate) async fn whole(
        &mut self,
        limit: u64,
        directory: &std::path::Path,
    ) -> io::Result<Spool> {
        let mut spool = Spool::default();
        loop {
            let step = self.decoder.step(&self.link.read).map_err(|Bad(why)| {
                io::Error::new(io::ErrorKind::InvalidData, format!("the upstream's answer {why}"))
            })?;
            spool.push(&self.link.read[step.data], directory).await?;
            self.link.read.advance(step.used);
            if spool.len() > limit {
                return Err(io::Error::other(format!("the answer has more than {limit} bytes")));
            }
            if step.end || (step.used == 0 && !self.fill().await?) {
                return Ok(spool);
            }
        }
    }

    /// Reads more; false at an end of the connection that is the end of the body, too.
    async fn fill(&mut self) -> io::Result<bool> {
        self.link.read.reserve(16 * 1024);
        if self.link.io.read_buf(&mut self.link.read).await? > 0 {
            return Ok(true);
        }
        if self.decoder.ends_with_connection() {
            return Ok(false);
        }
        let message = "the upstream closed the connection in the middle of its answer";
        Err(io::Error::new(io::ErrorKind::UnexpectedEof, message))
    }

    /// Gives the connection back, if it can be used again.
    pub(crate) fn give_back(self, pool: &Pool) {
        if self.reusable && self.decoder.is_done() && self.link.read.is_empty() {
            pool.put(self.link);
        }
    }
}

impl Pool {
    /// The connection that was used last and is still open.
    fn take(&self) -> Option<Link> {
        loop {
            let link = self.0.lock().unwrap_or_else(PoisonError::into_inner).pop()?;
            // It has nothing to say. If it can be read, it was closed, or speaks out of turn.
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
        let mut idle = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() >= MAX_IDLE {
            idle.remove(0);
        }
        idle.push(link);
    }

    /// Closes what has been idle for too long.
    pub(crate) fn tidy(&self) {
        let now = now();
        self.0.lock().unwrap_or_else(PoisonError::into_inner).retain(|link| now < link.until);
    }
}
