//! Answers as HTTP/1 text.

use std::io::{self, Write as _};

use tokio::io::{AsyncWrite, AsyncWriteExt as _};

use crate::gate::{Answer, AnswerBody, put};
use crate::message::body::Framing;
use crate::time::{Watch, now};
use crate::upstream::Pool;

/// How a body is sent.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Shape {
    Plain,
    Chunked,
}

/// What the writer has to know of the client.
pub(crate) struct Client {
    pub(crate) is_11: bool,
    pub(crate) keep: bool,
    /// It asked with HEAD: an answer has no body, whatever its head says.
    pub(crate) head_only: bool,
    /// How long it may read nothing.
    pub(crate) idle: std::time::Duration,
}

/// Sends an answer. Says whether the connection can be used again.
pub(crate) async fn answer<S: AsyncWrite + Unpin>(
    io: &mut S,
    answer: Answer,
    client: &Client,
    pool: &Pool,
    watch: &mut Watch,
    out: &mut Vec<u8>,
) -> io::Result<bool> {
    let (length, shape, keep) = match &answer.body {
        AnswerBody::None(length) => (*length, Shape::Plain, client.keep),
        AnswerBody::Whole(spool) => (Some(spool.len()), Shape::Plain, client.keep),
        AnswerBody::Flow(reply) => match reply.framing {
            Framing::Length(length) => (Some(length), Shape::Plain, client.keep),
            _ if client.is_11 => (None, Shape::Chunked, client.keep),
            // HTTP/1.0 knows the end of a body by the end of the connection.
            _ => (None, Shape::Plain, false),
        },
    };
    out.clear();
    // To write to memory does not fail.
    let _ = write!(out, "HTTP/1.1 {} ", answer.status);
    out.extend_from_slice(&answer.reason);
    out.extend_from_slice(b"\r\n");
    for (name, value) in answer.fields.end_to_end() {
        put(out, name, value);
    }
    out.extend_from_slice(b"Via: 1.1 fencepost\r\n");
    if let Some(length) = length {
        let _ = write!(out, "Content-Length: {length}\r\n");
    }
    if shape == Shape::Chunked {
        put(out, b"Transfer-Encoding", b"chunked");
    }
    if !keep {
        put(out, b"Connection", b"close");
    }
    out.extend_from_slice(b"\r\n");
    let mut send = Send { io, watch, idle: client.idle };
    match answer.body {
        AnswerBody::None(_) => send.all(out).await?,
        AnswerBody::Whole(_) if client.head_only => send.all(out).await?,
        AnswerBody::Whole(spool) => {
            if let Some(body) = spool.in_memory() {
                out.extend_from_slice(body);
                send.all(out).await?;
            } else {
                send.all(out).await?;
                let mut at = 0;
                while let Some(piece) = spool.piece(at).await? {
                    send.all(&piece).await?;
                    at += piece.len() as u64;
                }
            }
        }
        AnswerBody::Flow(mut reply) => {
            loop {
                let piece = send.watch.until(now() + client.idle, reply.piece()).await;
                let piece = piece.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                match (&piece, shape) {
                    (Some(piece), Shape::Chunked) => {
                        let _ = write!(out, "{:x}\r\n", piece.len());
                        out.extend_from_slice(piece);
                        out.extend_from_slice(b"\r\n");
                    }
                    (Some(piece), Shape::Plain) => out.extend_from_slice(piece),
                    (None, Shape::Chunked) => out.extend_from_slice(b"0\r\n\r\n"),
                    (None, Shape::Plain) => {}
                }
                send.all(out).await?;
                out.clear();
                if piece.is_none() {
                    break;
                }
            }
            reply.give_back(pool);
        }
    }
    Ok(keep)
}

/// A reader that reads nothing for too long is left.
struct Send<'a, S> {
    io: &'a mut S,
    watch: &'a mut Watch,
    idle: std::time::Duration,
}

impl<S: AsyncWrite + Unpin> Send<'_, S> {
    async fn all(&mut self, mut data: &[u8]) -> io::Result<()> {
        while !data.is_empty() {
            let written = self.watch.until(now() + self.idle, self.io.write(data)).await;
            match written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => data = &data[written..],
            }
        }
        // Layers of encryption keep back what they were given; to get rid of it takes a reader, too.
        let flushed = self.watch.until(now() + self.idle, self.io.flush()).await;
        flushed.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}
