//! The bytes of one connection, in both directions.

use std::io;
use std::mem::MaybeUninit;
use std::pin::Pin;
use std::task::{Context, Poll, ready};

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::wire::{Malformed, frame, frame_end};
use crate::tls::Tls;
use crate::url::Host;

trait Duplex: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Duplex for T {}

/// A connection that is cut into frames.
pub(crate) struct FrameStream {
    stream: Box<dyn Duplex>,
    inbox: Vec<u8>,
    /// How much of the inbox has been consumed.
    taken: usize,
    outbox: Vec<u8>,
    /// How much of the outbox has been sent.
    sent: usize,
}

impl FrameStream {
    /// Connects, with TLS if configured.
    pub(crate) async fn open(host: &Host, tls: Option<&Tls>) -> io::Result<Self> {
        let stream = TcpStream::connect(host.to_string()).await?;
        stream.set_nodelay(true)?;
        let stream: Box<dyn Duplex> = match tls {
            Some(tls) => Box::new(tls.connect(stream, &host.name).await?),
            None => Box::new(stream),
        };
        Ok(Self { stream, inbox: Vec::new(), taken: 0, outbox: Vec::new(), sent: 0 })
    }

    /// Queues a frame.
    pub(super) fn put(&mut self, parts: &[&[u8]]) {
        frame(&mut self.outbox, parts);
    }

    /// Queues bytes without a frame.
    pub(crate) fn put_raw(&mut self, bytes: &[u8]) {
        self.outbox.extend(bytes);
    }

    /// Sends what is queued.
    pub(crate) fn poll_flush(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        while self.sent < self.outbox.len() {
            let stream = Pin::new(&mut *self.stream);
            match ready!(stream.poll_write(context, &self.outbox[self.sent..]))? {
                0 => return Poll::Ready(Err(io::ErrorKind::WriteZero.into())),
                count => self.sent += count,
            }
        }
        if self.sent > 0 {
            self.outbox.clear();
            self.sent = 0;
        }
        Pin::new(&mut *self.stream).poll_flush(context)
    }

    /// Reads the bytes that have arrived; an error at the end of the stream.
    pub(crate) fn poll_fill(&mut self, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut space = [const { MaybeUninit::uninit() }; 16 << 10];
        let mut space = ReadBuf::uninit(&mut space);
        ready!(Pin::new(&mut *self.stream).poll_read(context, &mut space))?;
        if space.filled().is_empty() {
            return Poll::Ready(Err(io::ErrorKind::UnexpectedEof.into()));
        }
        if self.taken > 0 {
            self.inbox.drain(..self.taken);
            self.taken = 0;
        }
        self.inbox.extend(space.filled());
        Poll::Ready(Ok(()))
    }

    /// The next frame, if it is complete.
    pub(super) fn next(&mut self) -> Result<Option<&[u8]>, Malformed> {
        let waiting = &self.inbox[self.taken..];
        let Some(end) = frame_end(waiting)? else { return Ok(None) };
        self.taken += end;
        Ok(Some(&self.inbox[self.taken - end + 4..self.taken]))
    }

    /// All bytes that have arrived and were not consumed.
    pub(crate) fn rest(&self) -> &[u8] {
        &self.inbox[self.taken..]
    }
}
