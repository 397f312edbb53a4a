//! Responses as HTTP/1 text.

use std::io::{self, Write as _};

use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt as _};

use super::serve::Connection;
use crate::gate::{Response, ResponseBody, put};
use crate::message::body::Framing;
use crate::message::head::Request;
use crate::time::now;
use crate::upstream::nonzero;

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Sends the response to a request; `head` is none if it could not be parsed. Returns whether the connection can be
    /// reused.
    pub(super) async fn respond(
        &mut self,
        head: Option<&Request>,
        response: Response,
        keep: bool,
        out: &mut Vec<u8>,
    ) -> io::Result<bool> {
        let idle = self.gate.config.idle_timeout;
        let (length, chunked, keep) = match &response.body {
            ResponseBody::None(length) => (*length, false, keep),
            ResponseBody::Whole(spool) => (Some(spool.len()), false, keep),
            ResponseBody::Flow(reply) => match reply.framing {
                Framing::Length(length) => (Some(length), false, keep),
                _ if head.is_some_and(|head| head.is_11) => (None, true, keep),
                // In HTTP/1.0 the end of the connection ends the body.
                _ => (None, false, false),
            },
        };
        out.clear();
        // Writing to memory cannot fail.
        let _ = write!(out, "HTTP/1.1 {} ", response.status);
        out.extend_from_slice(&response.reason);
        out.extend_from_slice(b"\r\n");
        for (name, value) in response.fields.end_to_end() {
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
        match response.body {
            ResponseBody::None(_) => self.send(out).await?,
            // No body, whatever the head says.
            ResponseBody::Whole(_) if head.is_some_and(|head| head.method == "HEAD") => {
                self.send(out).await?;
            }
            ResponseBody::Whole(spool) => {
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
            ResponseBody::Flow(mut reply) => {
                loop {
                    let piece = self.timer.until(now() + idle, reply.piece()).await??;
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

    /// Sends all of it. Gives up on a client that reads nothing for too long.
    async fn send(&mut self, mut data: &[u8]) -> io::Result<()> {
        let idle = self.gate.config.idle_timeout;
        while !data.is_empty() {
            let written = self.timer.until(now() + idle, self.io.write(data)).await??;
            data = &data[nonzero(written)?..];
        }
        // TLS buffers what it was given. Sending that takes a reader, too.
        self.timer.until(now() + idle, self.io.flush()).await?
    }
}
