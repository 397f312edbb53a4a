//! What happens to a request between the last byte that comes in and the first byte of the response.
//!
//! A request with a token, in this order:
//!
//! 1. Its body is complete (the caller has spooled it), so a sender that freezes delays nobody.
//! 2. It waits for the permit of its lock name, so no two requests of one name are at the upstream at once.
//! 3. Its token enters: the mark is on disk, or the request is refused.
//! 4. It is forwarded, and the whole response is read, however slow the client reads it.
//! 5. The permit passes on. If the outcome of a write is unknown, its name is blocked first ([`crate::permits`]).
//!
//! So when the upstream applies a request, no later holder's request has been forwarded before it: P8. Clients that bypass
//! the gateway break this, and an upstream that applies a request later than the settle time.
//!
//! A response ends its request only if the service sent it. A response that an intermediary may have sent
//! ([`crate::status`]) is passed on, and the outcome counts as unknown.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use fencepost_core::Moment;

use crate::config::Config;
use crate::log::{Facts, Line, Log};
use crate::marks::{Marks, Refusal};
use crate::message::fields::Fields;
use crate::message::head::Request;
use crate::metrics::{Metrics, Outcome};
use crate::permits::Permits;
use crate::problem::{Problem, reason};
use crate::rules::{Fenced, Plan, path_of};
use crate::spool::{Spool, SpoolSpace};
use crate::time::{TimedOut, Timer, now};
use crate::upstream::{Pool, Read, Reply, Upstream, UpstreamError};

/// What all connections share.
pub(crate) struct Gate {
    pub(crate) config: Config,
    pub(crate) spool: Arc<SpoolSpace>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) permits: Arc<Permits>,
    pub(crate) marks: Marks,
    pub(crate) log: Log,
    pub(crate) upstream: Upstream,
}

/// The response to a client.
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) reason: Vec<u8>,
    pub(crate) fields: Fields,
    pub(crate) body: ResponseBody,
}

/// Its body.
pub(crate) enum ResponseBody {
    /// No body, and the `Content-Length` to send, if any.
    None(Option<u64>),
    Whole(Spool),
    /// Still coming from the upstream.
    Flow(Box<Reply>),
}

impl Gate {
    /// Handles a request as planned.
    pub(crate) async fn handle(
        &self,
        plan: Plan,
        request: BufferedRequest<'_>,
        timer: &mut Timer,
    ) -> Response {
        let mut facts = Facts::default();
        let done = match plan {
            Plan::Pass => self.pass(request, timer, &mut facts).await,
            Plan::Fence(fenced) => {
                let (name, token) = (fenced.fencing.name(), fenced.fencing.token());
                (facts.name, facts.token) = (Some(name.clone()), Some(token));
                let done = self.fence(&fenced, request, timer, &mut facts).await;
                done.map_err(|problem| problem.on(name, Some(token)))
            }
        };
        let BufferedRequest { began, head, client, .. } = request;
        let line = Line { began, client, method: &head.method, path: path_of(&head.target) };
        self.end(done, &line, facts)
    }

    /// The response to a refused request.
    pub(crate) fn refuse(&self, problem: Problem, line: &Line<'_>) -> Response {
        self.end(Err(problem), line, Facts::default())
    }

    /// Turns a problem into its response. Counts the request and logs it.
    fn end(&self, done: Result<Response, Problem>, line: &Line<'_>, mut facts: Facts) -> Response {
        let response = done.unwrap_or_else(|problem| {
            facts.outcome = Some(problem.outcome);
            facts.mark = facts.mark.or(problem.mark());
            Response::from_problem(&problem)
        });
        if let Some(outcome) = facts.outcome {
            self.metrics.count(outcome);
        }
        self.log.line(line, &facts, response.status, &self.metrics);
        response
    }

    /// Without a token: forwards the request and streams the response.
    async fn pass(
        &self,
        request: BufferedRequest<'_>,
        timer: &mut Timer,
        facts: &mut Facts,
    ) -> Result<Response, Problem> {
        let limit = now() + self.config.upstream_timeout;
        let (reply, body) = match timer.until(limit, self.exchange(&request, true)).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(UpstreamError::NotSent(why) | UpstreamError::OutcomeUnknown(why))) => {
                return Err(Problem::bad_gateway(why));
            }
            Err(TimedOut) => {
                let limit = self.config.upstream_timeout;
                return Err(Problem::slow_upstream(format!("no response within {limit:?}")));
            }
        };
        let body = body.transpose().map_err(Problem::bad_gateway)?;
        facts.outcome = Some(Outcome::Passed);
        facts.upstream = Some(reply.head.status);
        Ok(Response::of(&request, reply, body))
    }

    /// Sends a request and reads the whole response. A body that can be streamed is left to the caller.
    async fn exchange(
        &self,
        request: &BufferedRequest<'_>,
        stream: bool,
    ) -> Result<(Reply, Option<Read>), UpstreamError> {
        let head = self.head_for_upstream(request);
        let (mut reply, rest) =
            self.upstream.send(request.pool, &request.head.method, head, request.body).await?;
        // An early response cannot be streamed: the rest of the request must be sent meanwhile.
        if stream && rest.is_none() {
            return Ok((reply, None));
        }
        let body = reply.whole(rest, self.config.max_response, &self.spool).await;
        let body = body.map_err(|error| UpstreamError::failed(&error))?;
        let status = reply.head.status;
        let body = body.map_err(|why| {
            format!("the upstream answered {status}, which cannot be passed on: {why}")
        });
        Ok((reply, Some(body)))
    }

    /// Whether the service may still be working on this request.
    fn is_unknown(&self, reply: &Reply) -> bool {
        let list = &self.config.unknown_status;
        list.contains(reply.head.status) || (reply.is_early && !list.is_none())
    }

    async fn fence(
        &self,
        Fenced { fencing, who, writes }: &Fenced,
        request: BufferedRequest<'_>,
        timer: &mut Timer,
        facts: &mut Facts,
    ) -> Result<Response, Problem> {
        let (name, writes, asked) = (fencing.name(), *writes, now());
        let Ok(mut permit) =
            self.permits.acquire(name, asked + self.config.queue_timeout, timer).await
        else {
            let wait = self.permits.retry_after_of(name).map_or(1, |wait| wait.as_secs() + 1);
            return Err(Problem::busy(format!(
                "the wait for \"{name}\" timed out: other requests are ahead, or the name is blocked \
                 because the outcome of a write is unknown; retry later"
            ))
            .retry_after(wait));
        };
        let began = now();
        self.metrics.queue_seconds.observe(began.since(asked).as_secs_f64());
        let client = request.client;
        let who = || who.as_ref().map_or_else(|| client.to_string(), ToString::to_string);
        let entered = self.marks.enter(fencing, who);
        let entered = timer.until(began + self.config.queue_timeout, entered).await;
        let late = |TimedOut| Err(Refusal::Failed("the disk does not respond".into()));
        match entered.unwrap_or_else(late) {
            Ok(()) => facts.mark = Some(fencing.token()),
            Err(Refusal::Stale(mark)) => return Err(Problem::refused(mark, fencing)),
            Err(Refusal::Failed(why)) => {
                let why = format!("nothing was forwarded: {why}");
                return Err(Problem::marks_failed(why).retry_after(1));
            }
        }
        // From here on the outcome is unknown, whatever happens to this task. A read changes nothing when it ends late.
        if writes {
            permit.begin();
        }
        let sent = now();
        let limit = sent + self.config.upstream_timeout;
        let done = timer.until(limit, self.exchange(&request, false)).await;
        self.metrics.upstream_seconds.observe(now().since(sent).as_secs_f64());
        let note =
            |unknown| if unknown { "; the lock's name is blocked for the settle time" } else { "" };
        match done {
            Ok(Ok((reply, body))) => {
                let unknown = writes && self.is_unknown(&reply);
                if !unknown {
                    permit.end();
                }
                // Before the client gets the response: its next request must find the name blocked.
                drop(permit);
                facts.upstream = Some(reply.head.status);
                let failed = |why| Problem::bad_gateway(format!("{why}{}", note(unknown)));
                let body = body.transpose().map_err(failed)?;
                facts.outcome = Some(if unknown { Outcome::Unknown } else { Outcome::Entered });
                Ok(Response::of(&request, reply, body))
            }
            Ok(Err(UpstreamError::NotSent(why))) => {
                permit.end();
                Err(Problem::bad_gateway(why))
            }
            Ok(Err(UpstreamError::OutcomeUnknown(why))) => {
                Err(Problem::bad_gateway(format!("{why}{}", note(writes))))
            }
            Err(TimedOut) => {
                let limit = self.config.upstream_timeout;
                let why = format!("no complete response within {limit:?}{}", note(writes));
                Err(Problem::slow_upstream(why))
            }
        }
    }

    fn head_for_upstream(&self, request: &BufferedRequest<'_>) -> Vec<u8> {
        let BufferedRequest { head, body, client, .. } = request;
        let mut out = Vec::with_capacity(1024);
        for part in [head.method.as_bytes(), b" ", head.target.as_bytes(), b" HTTP/1.1\r\n"] {
            out.extend_from_slice(part);
        }
        let mut forwarded: Vec<&[u8]> = Vec::new();
        for (name, value) in head.fields.end_to_end() {
            if name.eq_ignore_ascii_case(b"expect")
                || (self.config.upstream_host.is_some() && name.eq_ignore_ascii_case(b"host"))
            {
                continue;
            }
            if name.eq_ignore_ascii_case(b"x-forwarded-for") {
                forwarded.push(value);
                continue;
            }
            put(&mut out, name, value);
        }
        if let Some(host) = &self.config.upstream_host {
            put(&mut out, b"Host", host.as_bytes());
        } else if !head.fields.has("host") {
            // HTTP/1.0 needs none, HTTP/1.1 does.
            put(&mut out, b"Host", self.upstream.authority.as_bytes());
        }
        out.extend_from_slice(b"Via: 1.1 fencepost\r\nX-Forwarded-For: ");
        for before in forwarded {
            out.extend_from_slice(before);
            out.extend_from_slice(b", ");
        }
        // To write to memory does not fail.
        let _ = write!(out, "{}\r\n", client.ip());
        let silent =
            matches!(head.method.as_str(), "GET" | "HEAD" | "OPTIONS" | "DELETE" | "TRACE");
        if body.len() > 0 || !silent || head.fields.has("content-length") {
            let _ = write!(out, "Content-Length: {}\r\n", body.len());
        }
        out.extend_from_slice(b"\r\n");
        out
    }
}

/// Appends a header line.
pub(crate) fn put(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// A request that has been read completely.
#[derive(Clone, Copy)]
pub(crate) struct BufferedRequest<'a> {
    pub(crate) began: Moment,
    pub(crate) head: &'a Request,
    pub(crate) body: &'a Spool,
    pub(crate) client: SocketAddr,
    pub(crate) pool: &'a Pool,
}

impl Response {
    /// The response that reports a problem.
    fn from_problem(problem: &Problem) -> Self {
        let mut fields = Fields::default();
        fields.push(b"Content-Type", b"application/problem+json");
        if let Some(seconds) = problem.retry_after {
            fields.push(b"Retry-After", seconds.to_string().as_bytes());
        }
        let body = ResponseBody::Whole(Spool::of(problem.json()));
        Self { status: problem.status, reason: reason(problem.status).into(), fields, body }
    }

    /// The upstream's response, with its body if that was read.
    fn of(request: &BufferedRequest<'_>, mut reply: Reply, body: Option<Spool>) -> Self {
        let fields = std::mem::take(&mut reply.head.fields);
        let (status, reason) = (reply.head.status, std::mem::take(&mut reply.head.reason));
        let body = if request.head.method == "HEAD" || matches!(status, 204 | 304) {
            // The length of the body that a GET would have.
            let length = fields.first("content-length").and_then(|value| {
                std::str::from_utf8(value).ok().and_then(|value| value.parse().ok())
            });
            reply.give_back(request.pool);
            ResponseBody::None(length)
        } else if let Some(body) = body {
            reply.give_back(request.pool);
            ResponseBody::Whole(body)
        } else {
            ResponseBody::Flow(Box::new(reply))
        };
        Self { status, reason, fields, body }
    }
}
