//! Answers as HTTP/1 text.

use std::io::{self, Write as _};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::serve::Connection;
use crate::gate::{Answer, AnswerBody, put};
use crate::message::body::Framing;
use crate::message::head::Request;
use crate::time::now;

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Sends an answer to a request; none is one whose head could not be read. Says whether the connection can be used
    /// again.
    pub(super) async fn answer(
        &mut self,
        head: Option<&Request>,
        answer: Answer,
        keep: bool,
        out: &mut Vec<u8>,
    ) -> io::Result<bool> {
        let idle = self.gate.config.idle_timeout;
        let (length, chunked, keep) = match &answer.body {
            AnswerBody::None(length) => (*length, false, keep),
            AnswerBody::Whole(spool) => (Some(spool.len()), false, keep),
            AnswerBody::Flow(reply) => match reply.framing {
                Framing::Length(length) => (Some(length), false, keep),
                _ if head.is_some_and(|head| head.is_11) => (None, true, keep),
                // HTTP/1.0 knows the end of a body by the end of the connection.
                _ => (None, false, false),
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
        if chunked {
            put(out, b"Transfer-Encoding", b"chunked");
        }
        if !keep {
            put(out, b"Connection", b"close");
        }
        out.extend_from_slice(b"\r\n");
        match answer.body {
            AnswerBody::None(_) => self.send(out).await?,
            // Without a body, whatever its head says.
            AnswerBody::Whole(_) if head.is_some_and(|head| head.method == "HEAD") => {
                self.send(out).await?;
            }
            AnswerBody::Whole(spool) => {
                if let Some(body) = spool.in_memory() {
                    out.extend_from_slice(body);
                    self.send(out).await?;
                } else {
                    self.send(out).await?;
                    let mut at = 0;
                    while let Some(piece) = spool.piece(at).await? {
                        self.send(&piece).await?;
                        at += piece.len() as u64;
                    }
                }
            }
            AnswerBody::Flow(mut reply) => {
                loop {
                    let piece = self.watch.until(now() + idle, reply.piece()).await;
                    let piece = piece.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
                    match (&piece, chunked) {
                        (Some(piece), true) => {
                            let _ = write!(out, "{:x}\r\n", piece.len());
                            out.extend_from_slice(piece);
                            out.extend_from_slice(b"\r\n");
                        }
                        (Some(piece), false) => out.extend_from_slice(piece),
                        (None, true) => out.extend_from_slice(b"0\r\n\r\n"),
                        (None, false) => {}
                    }
                    self.send(out).await?;
                    out.clear();
                    if piece.is_none() {
                        break;
                    }
                }
                reply.give_back(&self.pool);
            }
        }
        Ok(keep)
    }

    /// Sends it all. A reader that reads nothing for too long is left.
    async fn send(&mut self, mut data: &[u8]) -> io::Result<()> {
        let idle = self.gate.config.idle_timeout;
        while !data.is_empty() {
            let written = self.watch.until(now() + idle, self.io.write(data)).await;
            match written.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?? {
                0 => return Err(io::ErrorKind::WriteZero.into()),
                written => data = &data[written..],
            }
        }
        // Layers of encryption keep back what they were given; to get rid of it takes a reader, too.
        let flushed = self.watch.until(now() + idle, self.io.flush()).await;
        flushed.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}
