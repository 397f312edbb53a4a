//! A client's HTTP/2 connection. Its requests become the same heads and bodies as those of HTTP/1.

mod streams;

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use fencepost_base::clock::{BootClock, Clock as _};
use fencepost_core::Moment;
use http_body::{Body, Frame};
use hyper::body::Incoming;
use hyper::http::request::Parts;
use hyper::http::{HeaderName, HeaderValue, StatusCode, header};
use hyper::server::conn::http2::Builder;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use streams::{Check, Stream, Streams};
use tokio::io::{AsyncRead, AsyncReadExt as _, AsyncWrite};
use tokio::sync::watch::Receiver;
use tokio::sync::{Semaphore, mpsc};

use crate::gate::{BufferedRequest, Gate, Response, ResponseBody};
use crate::h1::serve::Connection;
use crate::log::Line;
use crate::message::body::Framing;
use crate::message::fields::Fields;
use crate::message::head::{Malformed, Request};
use crate::problem::Problem;
use crate::rules::{Rules, path_of};
use crate::spool::Spool;
use crate::time::{TimedOut, Timer, now, stop_requested};
use crate::upstream::Pool;

/// What a client begins an HTTP/2 connection with.
pub(crate) const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// How much of a refused request is still read and discarded.
const LINGER: (usize, Duration) = (64 * 1024, Duration::from_secs(2));

/// Concurrent requests per connection.
const STREAMS: u32 = 128;

/// What the requests of one connection share.
#[derive(Clone)]
struct Shared {
    gate: Arc<Gate>,
    pool: Arc<Pool>,
    client: SocketAddr,
    /// A request keeps its slot until it ends, even if its stream is reset.
    room: Arc<Semaphore>,
    streams: Arc<Streams>,
}

/// Serves the connection to its end.
pub(crate) async fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(
    connection: Connection<S>,
    mut stop: Receiver<bool>,
) {
    let Connection { io, read, client, gate, pool, .. } = connection;
    let max_head = u32::try_from(gate.config.max_head).unwrap_or(u32::MAX);
    let room = Arc::new(Semaphore::new(STREAMS as usize));
    let (idle, streams) = (gate.config.idle_timeout, Streams::new());
    let shared = Shared { gate, pool, client, room, streams: Arc::clone(&streams) };
    let service = service_fn(move |request| shared.clone().respond(request));
    // Replay what was already read.
    let (reader, writer) = tokio::io::split(io);
    let io = tokio::io::join(io::Cursor::new(read).chain(reader), writer);
    let connection = Builder::new(TokioExecutor::new())
        .max_concurrent_streams(STREAMS)
        .max_header_list_size(max_head)
        .serve_connection(TokioIo::new(io), service);
    let mut connection = std::pin::pin!(connection);
    let (mut again, mut stopping, mut quiet) = (now() + idle, false, idle);
    loop {
        let look = tokio::select! {
            // How the connection ended matters only to the client.
            _ = &mut connection => return,
            () = stop_requested(&mut stop), if !stopping => Check::Idle,
            () = BootClock.alarm(again) => streams.check(quiet, idle),
        };
        match look {
            Check::Again(then) if stopping => again = then.min(now() + LINGER.1),
            Check::Again(then) => again = then,
            // Requests sent before the client sees GOAWAY are still answered. A client that does not close in time is
            // disconnected.
            Check::Idle if !stopping => {
                (stopping, quiet, again) = (true, idle.min(LINGER.1), now() + LINGER.1);
                connection.as_mut().graceful_shutdown();
            }
            Check::Idle | Check::Stuck => return,
        }
    }
}

impl Shared {
    async fn respond(
        self,
        request: hyper::Request<Incoming>,
    ) -> Result<hyper::Response<Sent>, Infallible> {
        let (parts, body) = request.into_parts();
        let (began, stream) = (now(), self.streams.open());
        // The semaphore is never closed.
        let permit = Arc::clone(&self.room).acquire_owned().await.ok();
        // Its own task: resetting the stream does not stop the request.
        let done = tokio::spawn(async move {
            let refuse = |problem, method: &str, path: &str| {
                self.gate.refuse(problem, &Line { began, client: self.client, method, path })
            };
            let response = match head(&parts) {
                Ok(head) => self
                    .handle(&head, body, began)
                    .await
                    .unwrap_or_else(|problem| refuse(problem, &head.method, path_of(&head.target))),
                Err(problem) => refuse(problem, parts.method.as_str(), parts.uri.path()),
            };
            drop(permit);
            to_hyper(response, parts.method == "HEAD", &self.gate, &self.pool)
        });
        let response = done.await.unwrap_or_else(|_| {
            let mut failed = hyper::Response::new(Content::Once(None));
            *failed.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
            failed
        });
        stream.output_ready();
        Ok(response.map(|content| Sent { content, stream }))
    }

    async fn handle(
        &self,
        head: &Request,
        body: Incoming,
        began: Moment,
    ) -> Result<Response, Problem> {
        let (gate, mut timer) = (&self.gate, Timer::default());
        let plan = match Rules(&gate.config).plan(head) {
            Ok(plan) => plan,
            Err(problem) => {
                // Some clients treat a response before the end of their request as a failure.
                let _ = timer.until(now() + LINGER.1, skip(body, LINGER.0)).await;
                return Err(problem);
            }
        };
        let bad = |Malformed(why)| Problem::bad_request(format!("the request {why}"));
        // Without a Content-Length, any length is right.
        let length = match head.framing().map_err(bad)? {
            Framing::Length(length) if head.fields.has("content-length") => Some(length),
            _ => None,
        };
        let late = |TimedOut| Err(Problem::slow_request("the body did not arrive in time"));
        let body = timer.until(now() + gate.config.body_timeout, self.spool(body, length)).await;
        let body = &body.unwrap_or_else(late)?;
        let request = BufferedRequest { began, head, body, client: self.client, pool: &self.pool };
        Ok(gate.handle(plan, request, &mut timer).await)
    }

    async fn spool(&self, mut body: Incoming, said: Option<u64>) -> Result<Spool, Problem> {
        let (limit, mut spool) = (self.gate.config.max_body, Spool::default());
        loop {
            let next = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
            let Some(frame) = next.await else {
                // A stream that is reset without an error ends like a complete one. Only its state tells them apart.
                if !body.is_end_stream() || said.is_some_and(|said| said != spool.len()) {
                    return Err(Problem::bad_request("the body is incomplete"));
                }
                return Ok(spool);
            };
            let frame = frame.map_err(|error| {
                Problem::bad_request(format!("the body is incomplete: {error}"))
            })?;
            // Trailers are dropped.
            let Ok(data) = frame.into_data() else { continue };
            if spool.len() + data.len() as u64 > limit {
                return Err(Problem::body_too_large(limit));
            }
            let kept = spool.push(&data, &self.gate.spool).await;
            kept.map_err(|error| Problem::cannot_buffer(&error))?;
        }
    }
}

/// Reads a body and discards it, up to `most` bytes.
async fn skip(mut body: Incoming, mut most: usize) {
    loop {
        let next = std::future::poll_fn(|context| Pin::new(&mut body).poll_frame(context));
        let Some(Ok(frame)) = next.await else { return };
        let length = frame.data_ref().map_or(0, Bytes::len);
        if length > most {
            return;
        }
        most -= length;
    }
}

/// The head as HTTP/1 would have it.
fn head(parts: &Parts) -> Result<Request, Problem> {
    let mut fields = Fields::with_capacity(512, parts.headers.len() + 1);
    let authority = parts.uri.authority().map(hyper::http::uri::Authority::as_str);
    let host = parts.headers.get(header::HOST);
    match (authority, host) {
        (Some(authority), Some(host))
            if !host.as_bytes().eq_ignore_ascii_case(authority.as_bytes()) =>
        {
            return Err(Problem::bad_request(":authority and Host name different hosts"));
        }
        (Some(authority), _) => fields.push(b"Host", authority.as_bytes()),
        (None, Some(host)) => fields.push(b"Host", host.as_bytes()),
        (None, None) => return Err(Problem::bad_request("the request has no Host")),
    }
    if parts.headers.get_all(header::HOST).iter().nth(1).is_some() {
        return Err(Problem::bad_request("the request has more than one Host"));
    }
    let mut cookies = Vec::new();
    for (name, value) in &parts.headers {
        if name == header::HOST {
            continue;
        }
        // HTTP/2 may split a cookie.
        if name == header::COOKIE {
            if !cookies.is_empty() {
                cookies.extend_from_slice(b"; ");
            }
            cookies.extend_from_slice(value.as_bytes());
            continue;
        }
        fields.push(name.as_str().as_bytes(), value.as_bytes());
    }
    if !cookies.is_empty() {
        fields.push(b"cookie", &cookies);
    }
    let target = parts.uri.path_and_query().map_or("/", hyper::http::uri::PathAndQuery::as_str);
    if !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Err(Problem::bad_request(
            "the request target has characters that must be percent-encoded",
        ));
    }
    Ok(Request { method: parts.method.to_string(), target: target.to_owned(), is_11: true, fields })
}

fn to_hyper(
    response: Response,
    head_only: bool,
    gate: &Gate,
    pool: &Arc<Pool>,
) -> hyper::Response<Content> {
    let mut out = hyper::Response::new(Content::Once(None));
    *out.status_mut() = StatusCode::from_u16(response.status).unwrap_or(StatusCode::BAD_GATEWAY);
    let headers = out.headers_mut();
    for (name, value) in response.fields.end_to_end() {
        // Our own parser accepted it. If HTTP/2 cannot express it, it is left out.
        if let (Ok(name), Ok(value)) =
            (HeaderName::from_bytes(name), HeaderValue::from_bytes(value))
        {
            headers.append(name, value);
        }
    }
    headers.append(header::VIA, HeaderValue::from_static("1.1 fencepost"));
    let length = match &response.body {
        ResponseBody::None(length) => *length,
        ResponseBody::Whole(spool) => Some(spool.len()),
        ResponseBody::Flow(reply) => match reply.framing {
            Framing::Length(length) => Some(length),
            _ => None,
        },
    };
    if let Some(length) = length {
        headers.insert(header::CONTENT_LENGTH, length.into());
    }
    *out.body_mut() = match response.body {
        ResponseBody::None(_) => Content::Once(None),
        ResponseBody::Whole(_) if head_only => Content::Once(None),
        ResponseBody::Whole(spool) => match spool.in_memory() {
            Some(body) => Content::Once(Some(Bytes::copy_from_slice(body))),
            None => pump(async move |pieces| {
                let mut at = 0;
                while let Some(piece) = spool.piece(at).await? {
                    at += piece.len() as u64;
                    if pieces.send(Ok(piece)).await.is_err() {
                        break;
                    }
                }
                Ok(())
            }),
        },
        ResponseBody::Flow(mut reply) => {
            let (pool, idle) = (Arc::clone(pool), gate.config.idle_timeout);
            pump(async move |pieces| {
                let mut timer = Timer::default();
                loop {
                    let piece = timer.until(now() + idle, reply.piece()).await??;
                    let Some(piece) = piece else { break };
                    if pieces.send(Ok(piece)).await.is_err() {
                        return Ok(());
                    }
                }
                reply.give_back(&pool);
                Ok(())
            })
        }
    };
    out
}

type Pieces = mpsc::Sender<io::Result<Bytes>>;

/// A body that a task produces piece by piece.
fn pump<F>(work: impl FnOnce(Pieces) -> F) -> Content
where
    F: Future<Output = io::Result<()>> + Send + 'static,
{
    let (pieces, sent) = mpsc::channel(4);
    let failed = pieces.clone();
    let work = work(pieces);
    tokio::spawn(async move {
        if let Err(error) = work.await {
            let _ = failed.send(Err(error)).await;
        }
    });
    Content::Pieces(sent)
}

/// The body of a response.
enum Content {
    Once(Option<Bytes>),
    Pieces(mpsc::Receiver<io::Result<Bytes>>),
}

/// A body being sent. The next piece is requested only when the client has read the one before.
struct Sent {
    content: Content,
    stream: Stream,
}

impl Body for Sent {
    type Data = Bytes;
    type Error = io::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<io::Result<Frame<Bytes>>>> {
        let piece = match &mut self.content {
            Content::Once(body) => Poll::Ready(body.take().map(Ok)),
            Content::Pieces(pieces) => pieces.poll_recv(context),
        };
        if piece.is_ready() {
            self.stream.output_ready();
        } else {
            self.stream.output_taken();
        }
        piece.map(|piece| piece.map(|piece| piece.map(Frame::data)))
    }

    fn is_end_stream(&self) -> bool {
        matches!(self.content, Content::Once(None))
    }
}
