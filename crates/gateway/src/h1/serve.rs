//! A client's HTTP/1 connection: one request after the other.
//!
//! A client that disconnects does not stop its request: this task completes it, and fails only when it writes the response.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::{Buf as _, BytesMut};
use fencepost_core::Moment;
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite, AsyncWriteExt as _};
use tokio::sync::watch::Receiver;

use crate::gate::{BufferedRequest, Gate};
use crate::log::Line;
use crate::message::body::{Decoder, Framing};
use crate::message::head::{HeadFinder, Malformed, Request, request};
use crate::problem::Problem;
use crate::rules::{Plan, Rules, path_of};
use crate::spool::Spool;
use crate::time::{TimedOut, Timer, now, stop_requested};
use crate::upstream::Pool;

/// How much is still read and discarded after the last response: otherwise the client might see a reset instead of it.
const LINGER: (u64, Duration) = (1 << 20, Duration::from_secs(2));

/// How much is read at a time.
const HEAD_ROOM: usize = 8 * 1024;
const BODY_ROOM: usize = 16 * 1024;

/// A connection and the bytes read from it.
pub(crate) struct Connection<S> {
    pub(crate) io: S,
    pub(crate) read: BytesMut,
    pub(crate) client: SocketAddr,
    pub(crate) gate: Arc<Gate>,
    pub(crate) pool: Arc<Pool>,
    pub(crate) timer: Timer,
}

/// Why there are no more requests.
enum End {
    /// The client is gone or silent, or the gateway stops.
    Quiet,
    Refused(Problem),
}

impl From<io::Error> for End {
    fn from(_: io::Error) -> Self {
        Self::Quiet
    }
}

impl From<Malformed> for End {
    fn from(Malformed(why): Malformed) -> Self {
        Self::Refused(Problem::bad_request(format!("the request {why}")))
    }
}

impl<S: AsyncRead + AsyncWrite + Unpin> Connection<S> {
    /// Serves the connection to its end.
    pub(crate) async fn serve(mut self, mut stop: Receiver<bool>) {
        let stops = stop.clone();
        // One future for all requests, so that it stays registered.
        let mut stop = std::pin::pin!(stop_requested(&mut stop));
        let mut out = Vec::with_capacity(1024);
        loop {
            let head = match self.read_head(stop.as_mut()).await {
                Ok(head) => head,
                Err(end) => return self.end(None, end, &mut out).await,
            };
            let began = now();
            let (plan, body) = match self.read_body(&head).await {
                Ok(whole) => whole,
                Err(end) => return self.end(Some(&head), end, &mut out).await,
            };
            let (client, pool) = (self.client, &*self.pool);
            let request = BufferedRequest { began, head: &head, body: &body, client, pool };
            let done = self.gate.handle(plan, request, &mut self.timer).await;
            // Frees its space before the client reads the response.
            drop(body);
            let keep = head.keeps_alive() && !*stops.borrow();
            let sent = self.respond(Some(&head), done, keep, &mut out).await;
            if !matches!(sent, Ok(true)) {
                let limit = now() + self.gate.config.idle_timeout;
                let _ = self.timer.until(limit, self.io.shutdown()).await;
                return;
            }
        }
    }

    /// Reads more of a request, until the limit.
    async fn read_more(&mut self, room: usize, limit: Moment, part: &str) -> Result<(), End> {
        self.read.reserve(room);
        match self.timer.until(limit, self.io.read_buf(&mut self.read)).await {
            Ok(Ok(0) | Err(_)) => Err(End::Quiet),
            Ok(Ok(_)) => Ok(()),
            Err(TimedOut) => {
                let why = format!("the {part} did not arrive in time");
                Err(End::Refused(Problem::slow_request(why)))
            }
        }
    }

    /// The next request's head.
    async fn read_head(
        &mut self,
        stop: Pin<&mut impl Future<Output = ()>>,
    ) -> Result<Request, End> {
        if self.read.is_empty() {
            let idle = now() + self.gate.config.idle_timeout;
            self.read.reserve(HEAD_ROOM);
            let first = async {
                tokio::select! {
                    biased;
                    more = self.io.read_buf(&mut self.read) => more,
                    () = stop => Ok(0),
                }
            };
            if !matches!(self.timer.until(idle, first).await, Ok(Ok(1..))) {
                return Err(End::Quiet);
            }
        }
        // Some clients send an empty line after a body.
        if self.read.starts_with(b"\r\n") {
            self.read.advance(2);
        }
        let (limit, mut finder) = (now() + self.gate.config.head_timeout, HeadFinder::default());
        let max = self.gate.config.max_head;
        loop {
            let found = finder.end(&self.read)?;
            if found.unwrap_or(self.read.len()) > max {
                return Err(End::Refused(Problem::head_too_large(format!(
                    "the head exceeds {max} bytes (--max-head)"
                ))));
            }
            if let Some(end) = found {
                let mut head = request(&self.read[..end])?;
                self.read.advance(end);
                origin_form(&mut head)?;
                return Ok(head);
            }
            self.read_more(HEAD_ROOM, limit, "head").await?;
        }
    }

    /// Plans the request and reads its body. What the head alone rules out is refused before the body is read.
    async fn read_body(&mut self, head: &Request) -> Result<(Plan, Spool), End> {
        let framing = head.framing()?;
        let plan = Rules(&self.gate.config).plan(head).map_err(End::Refused)?;
        let mut body = Spool::default();
        let (max, mut decoder) = (self.gate.config.max_body, Decoder::new(framing));
        let too_large = || End::Refused(Problem::body_too_large(max));
        if matches!(framing, Framing::Length(length) if length > max) {
            return Err(too_large());
        }
        if decoder.is_done() {
            return Ok((plan, body));
        }
        let limit = now() + self.gate.config.body_timeout;
        if head.is_11 && self.read.is_empty() && head.fields.lists("expect", "100-continue") {
            let io = &mut self.io;
            let go_on = async {
                io.write_all(b"HTTP/1.1 100 Continue\r\n\r\n").await?;
                io.flush().await
            };
            match self.timer.until(limit, go_on).await {
                Ok(sent) => sent?,
                Err(TimedOut) => return Err(End::Quiet),
            }
        }
        loop {
            let step = decoder.step(&self.read)?;
            if body.len() + step.data.len() as u64 > max {
                return Err(too_large());
            }
            let kept = body.push(&self.read[step.data], &self.gate.spool).await;
            kept.map_err(|error| End::Refused(Problem::cannot_buffer(&error)))?;
            self.read.advance(step.used);
            if step.end {
                return Ok((plan, body));
            }
            if step.used == 0 {
                self.read_more(BODY_ROOM, limit, "body").await?;
            }
        }
    }

    /// Responds with a problem and ends the connection: what follows on it may not be what it seems.
    async fn end(mut self, head: Option<&Request>, end: End, out: &mut Vec<u8>) {
        let End::Refused(problem) = end else { return };
        let (method, path) = head.map_or(("-", "-"), |head| (&*head.method, path_of(&head.target)));
        let line = Line { began: now(), client: self.client, method, path };
        let done = self.gate.refuse(problem, &line);
        let sent = self.respond(head, done, false, out).await;
        let (most, time) = LINGER;
        let io = &mut self.io;
        if sent.is_err()
            || !matches!(self.timer.until(now() + time, io.shutdown()).await, Ok(Ok(())))
        {
            return;
        }
        let drop_it = async {
            // Errors do not matter while discarding.
            let _ = tokio::io::copy(&mut io.take(most), &mut tokio::io::sink()).await;
        };
        let _ = self.timer.until(now() + time, drop_it).await;
    }
}

/// Turns a target in absolute form into a path, if it names the same host as the one `Host`.
fn origin_form(head: &mut Request) -> Result<(), Malformed> {
    let mut hosts = head.fields.all("host");
    let (host, second) = (hosts.next(), hosts.next());
    if second.is_some() {
        return Err(Malformed("has more than one Host"));
    }
    if host.is_none() && head.is_11 {
        return Err(Malformed("has no Host"));
    }
    if head.target.starts_with('/') || head.target == "*" || head.method == "CONNECT" {
        return Ok(());
    }
    let rest = head.target.strip_prefix("http://").or_else(|| head.target.strip_prefix("https://"));
    let rest = rest.ok_or(Malformed("target is neither a path nor a URL"))?;
    let slash = rest.find(['/', '?']).unwrap_or(rest.len());
    let (authority, path) = rest.split_at(slash);
    if !host.is_some_and(|host| host.eq_ignore_ascii_case(authority.as_bytes())) {
        return Err(Malformed("target and Host name different hosts"));
    }
    head.target = if path.starts_with('/') { path.to_owned() } else { format!("/{path}") };
    Ok(())
}
