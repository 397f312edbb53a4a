//! The gate: what happens to a request between its last byte in and its answer's first byte out.
//!
//! For a request with a token, in this order, and why:
//!
//! 1. its body is here (the caller has spooled it), so a sender that freezes keeps nobody waiting;
//! 2. it takes its turn under the lock's name, so that no two requests of one name are at the upstream at once;
//! 3. its token enters: the mark is on disk, or the request is refused;
//! 4. it is forwarded, and the whole answer read, however slow its reader is;
//! 5. its turn ends; if it writes and its end is not known, the name is held back first ([`crate::turns`]).
//!
//! So when a request is applied at the upstream, no later holder's request has been forwarded before it: P8. That ends
//! with writers that go round the proxy, and with an upstream that applies a request later than the settle time.
//!
//! A response is the end of its request only if the service made it. One that an intermediary may have made
//! ([`crate::status`]) is passed on, and leaves the end unknown.

use std::io::Write as _;
use std::net::SocketAddr;
use std::sync::Arc;

use fencepost_core::Moment;

use crate::config::Config;
use crate::log::{Line, Log, Seen};
use crate::marks::{Marks, Refusal};
use crate::message::fields::Fields;
use crate::message::head::Request;
use crate::metrics::{Metrics, Outcome};
use crate::problem::{Problem, reason};
use crate::rules::{Fenced, Plan, path_of};
use crate::spool::{Room, Spool};
use crate::time::{Late, Watch, now};
use crate::turns::Turns;
use crate::upstream::{Fault, Pool, Read, Reply, Rest, Upstream};

/// What all connections share.
pub(crate) struct Gate {
    pub(crate) config: Config,
    pub(crate) spool: Arc<Room>,
    pub(crate) metrics: Arc<Metrics>,
    pub(crate) turns: Arc<Turns>,
    pub(crate) marks: Marks,
    pub(crate) log: Log,
    pub(crate) upstream: Upstream,
}

/// What is sent back.
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) reason: Vec<u8>,
    pub(crate) fields: Fields,
    pub(crate) body: AnswerBody,
}

/// Its body.
pub(crate) enum AnswerBody {
    /// None; the length that the head is to say, if any.
    None(Option<u64>),
    Whole(Spool),
    /// Still on its way from the upstream.
    Flow(Box<Reply>),
}

impl Gate {
    /// Carries out a plan.
    pub(crate) async fn carry(
        &self,
        plan: Plan,
        request: Carried<'_>,
        watch: &mut Watch,
    ) -> Answer {
        let mut seen = Seen::default();
        let done = match plan {
            Plan::Pass => self.pass(request, watch, &mut seen).await,
            Plan::Fence(fenced) => {
                (seen.name, seen.token) = (Some(fenced.name.clone()), Some(fenced.token));
                let done = self.fence(&fenced, request, watch, &mut seen).await;
                done.map_err(|problem| problem.on(&fenced.name, Some(fenced.token)))
            }
        };
        let Carried { began, head, client, .. } = request;
        let line = Line { began, client, method: &head.method, path: path_of(&head.target) };
        self.end(done, &line, seen)
    }

    /// The answer to a request that is not carried out.
    pub(crate) fn refuse(&self, problem: Problem, line: &Line<'_>) -> Answer {
        self.end(Err(problem), line, Seen::default())
    }

    /// The answer, or the one that tells of the problem. Counts the request, and leaves its line in the log.
    fn end(&self, done: Result<Answer, Problem>, line: &Line<'_>, mut seen: Seen) -> Answer {
        let answer = done.unwrap_or_else(|problem| {
            seen.outcome = Some(problem.outcome);
            seen.mark = seen.mark.or(problem.mark());
            Answer::telling(&problem)
        });
        if let Some(outcome) = seen.outcome {
            self.metrics.count(outcome);
        }
        self.log.line(line, &seen, answer.status, &self.metrics);
        answer
    }

    /// Without a token: passed on, and the answer streamed.
    async fn pass(
        &self,
        request: Carried<'_>,
        watch: &mut Watch,
        seen: &mut Seen,
    ) -> Result<Answer, Problem> {
        let head = self.head_for_upstream(&request);
        let sent = async {
            let (mut reply, rest) =
                self.upstream.send(request.pool, &request.head.method, head, request.body).await?;
            // An answer that comes before the end of the request is not streamed: the rest must be sent meanwhile.
            let body = match rest {
                None => None,
                rest => Some(self.whole(&mut reply, rest).await?),
            };
            Ok((reply, body.transpose()))
        };
        let (reply, body) = match watch.until(now() + self.config.upstream_timeout, sent).await {
            Ok(Ok(reply)) => reply,
            Ok(Err(Fault::NotSent(why) | Fault::InDoubt(why))) => {
                return Err(Problem::bad_gateway(why));
            }
            Err(Late) => {
                let limit = self.config.upstream_timeout;
                return Err(Problem::late_upstream(format!("no answer within {limit:?}")));
            }
        };
        let body = body.map_err(Problem::bad_gateway)?;
        seen.outcome = Some(Outcome::Passed);
        seen.upstream = Some(reply.head.status);
        Ok(Answer::of(&request, reply, |reply| match body {
            None => AnswerBody::Flow(Box::new(reply)),
            Some(body) => AnswerBody::Whole(body),
        }))
    }

    async fn whole(&self, reply: &mut Reply, rest: Option<Rest<'_>>) -> Result<Read, Fault> {
        let body = reply.whole(rest, self.config.max_answer, &self.spool).await;
        let body = body.map_err(|error| Fault::InDoubt(format!("the upstream failed: {error}")))?;
        let status = reply.head.status;
        Ok(body.map_err(|why| {
            format!("the upstream answered {status}, which cannot be passed on: {why}")
        }))
    }

    /// Whether the service may still be working on the request of this response.
    fn is_unknown(&self, reply: &Reply) -> bool {
        let list = &self.config.unknown_status;
        list.contains(reply.head.status) || (reply.is_early && !list.is_none())
    }

    async fn fence(
        &self,
        Fenced { name, token, who, writes }: &Fenced,
        request: Carried<'_>,
        watch: &mut Watch,
        seen: &mut Seen,
    ) -> Result<Answer, Problem> {
        let (token, writes, asked) = (*token, *writes, now());
        let Ok(mut turn) = self.turns.take(name, asked + self.config.queue_timeout, watch).await
        else {
            let wait = self.turns.free_in(name).map_or(1, |wait| wait.as_secs() + 1);
            let busy =
                "others are at it, or it is held back because the end of a request is not known";
            let why = format!("the turn of \"{name}\" did not come: {busy}");
            return Err(Problem::busy(why).retry_after(wait));
        };
        let began = now();
        self.metrics.queue_seconds.observe(began.since(asked).as_secs_f64());
        let client = request.client;
        let who = || who.as_ref().map_or_else(|| client.to_string(), ToString::to_string);
        let entered = self.marks.enter(name, token, who);
        let entered = watch.until(began + self.config.queue_timeout, entered).await;
        let late = |Late| Err(Refusal::Failed("the disk does not answer".into()));
        match entered.unwrap_or_else(late) {
            Ok(()) => seen.mark = Some(token),
            Err(Refusal::Stale(mark)) => return Err(Problem::refused(mark, token)),
            Err(Refusal::Failed(why)) => {
                let why = format!("nothing was forwarded: {why}");
                return Err(Problem::marks_failed(why).retry_after(1));
            }
        }
        let head = self.head_for_upstream(&request);
        let whole = async {
            let (mut reply, rest) =
                self.upstream.send(request.pool, &request.head.method, head, request.body).await?;
            let body = self.whole(&mut reply, rest).await?;
            Ok((reply, body))
        };
        // From here on its end is not known, whatever becomes of this task. A read changes nothing when it ends late.
        if writes {
            turn.begin();
        }
        let sent = now();
        let done = watch.until(sent + self.config.upstream_timeout, whole).await;
        self.metrics.upstream_seconds.observe(now().since(sent).as_secs_f64());
        let held_back = "; the lock's name is held back for the settle time";
        let in_doubt = if writes { held_back } else { "" };
        match done {
            Ok(Ok((reply, body))) => {
                let unknown = writes && self.is_unknown(&reply);
                if !unknown {
                    turn.end();
                }
                // Before the client knows: its next request must find the name held back.
                drop(turn);
                seen.upstream = Some(reply.head.status);
                let body = body.map_err(|why| {
                    let in_doubt = if unknown { held_back } else { "" };
                    Problem::bad_gateway(format!("{why}{in_doubt}"))
                })?;
                seen.outcome = Some(if unknown { Outcome::Unknown } else { Outcome::Entered });
                Ok(Answer::of(&request, reply, |reply| {
                    reply.give_back(request.pool);
                    AnswerBody::Whole(body)
                }))
            }
            Ok(Err(Fault::NotSent(why))) => {
                turn.end();
                Err(Problem::bad_gateway(why))
            }
            Ok(Err(Fault::InDoubt(why))) => Err(Problem::bad_gateway(format!("{why}{in_doubt}"))),
            Err(Late) => {
                let limit = self.config.upstream_timeout;
                let why = format!("no whole answer within {limit:?}{in_doubt}");
                Err(Problem::late_upstream(why))
            }
        }
    }

    fn head_for_upstream(&self, request: &Carried<'_>) -> Vec<u8> {
        let Carried { head, body, client, .. } = request;
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

/// Adds a line to a head.
pub(crate) fn put(out: &mut Vec<u8>, name: &[u8], value: &[u8]) {
    for part in [name, b": ", value, b"\r\n"] {
        out.extend_from_slice(part);
    }
}

/// A request that is here as a whole.
#[derive(Clone, Copy)]
pub(crate) struct Carried<'a> {
    pub(crate) began: Moment,
    pub(crate) head: &'a Request,
    pub(crate) body: &'a Spool,
    pub(crate) client: SocketAddr,
    pub(crate) pool: &'a Pool,
}

impl Answer {
    /// The answer that tells of a problem.
    fn telling(problem: &Problem) -> Self {
        let mut fields = Fields::default();
        fields.push(b"Content-Type", b"application/problem+json");
        if let Some(seconds) = problem.retry_after {
            fields.push(b"Retry-After", seconds.to_string().as_bytes());
        }
        let body = AnswerBody::Whole(Spool::of(problem.json()));
        Self { status: problem.status, reason: reason(problem.status).into(), fields, body }
    }

    fn of(request: &Carried<'_>, mut reply: Reply, body: impl FnOnce(Reply) -> AnswerBody) -> Self {
        let fields = std::mem::take(&mut reply.head.fields);
        let (status, reason) = (reply.head.status, std::mem::take(&mut reply.head.reason));
        let body = if request.head.method == "HEAD" || matches!(status, 204 | 304) {
            // Its length is that of an answer which would have a body.
            let length = fields.first("content-length").and_then(|value| {
                std::str::from_utf8(value).ok().and_then(|value| value.parse().ok())
            });
            reply.give_back(request.pool);
            AnswerBody::None(length)
        } else {
            body(reply)
        };
        Self { status, reason, fields, body }
    }
}
