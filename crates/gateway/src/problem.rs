//! The gateway's own responses: `application/problem+json` (RFC 9457).

use fencepost_core::{FencingToken, LockName, Token};
use fencepost_fence::Mark;
use serde_json::{Map, Value};

use crate::metrics::Outcome;

/// A refusal or a failure.
#[derive(Debug)]
pub(crate) struct Problem {
    pub(crate) outcome: Outcome,
    pub(crate) status: u16,
    /// The last part of the `type`.
    kind: &'static str,
    title: &'static str,
    detail: String,
    name: Option<LockName>,
    token: Option<Token>,
    mark: Option<Box<Mark>>,
    /// Seconds, for `Retry-After`.
    pub(crate) retry_after: Option<u64>,
}

macro_rules! problems {
    ($($(#[$doc:meta])* $new:ident: $status:literal $kind:literal $title:literal $outcome:ident;)+) => {
        impl Problem {
            $($(#[$doc])* pub(crate) fn $new(detail: impl Into<String>) -> Self {
                Self {
                    outcome: Outcome::$outcome,
                    status: $status,
                    kind: $kind,
                    title: $title,
                    detail: detail.into(),
                    name: None,
                    token: None,
                    mark: None,
                    retry_after: None,
                }
            })+
        }
    };
}
problems! {
    /// The request is ambiguous, or asks for something that is never forwarded.
    bad_request: 400 "bad-request" "The request is not valid" Malformed;
    bad_token: 400 "bad-token" "The fencing token is not valid" Malformed;
    bad_path: 400 "ambiguous-path" "The path is ambiguous" Malformed;
    no_lock: 403 "no-lock" "No lock guards this path" NoLock;
    slow_request: 408 "request-timeout" "The request took too long" Malformed;
    stale: 412 "stale-token" "The fencing token is stale" Stale;
    too_large: 413 "body-too-large" "The body is too large" Malformed;
    no_token: 428 "token-required" "A fencing token is required" NoToken;
    head_too_large: 431 "head-too-large" "The header is too large" Malformed;
    /// The upstream sent no response that can be passed on.
    bad_gateway: 502 "upstream-failed" "The upstream failed" UpstreamFailed;
    marks_failed: 503 "marks-unavailable" "The mark cannot be written" MarksFailed;
    no_room: 503 "no-room" "No space is left for the body" Busy;
    busy: 503 "lock-busy" "The lock is busy" Busy;
    slow_upstream: 504 "upstream-timeout" "The upstream did not answer in time" UpstreamTimeout;
}

impl Problem {
    /// The body is longer than the configuration allows.
    pub(crate) fn body_too_large(max: u64) -> Self {
        Self::too_large(format!("the body exceeds {max} bytes (--max-body)"))
    }

    /// The body cannot be buffered.
    pub(crate) fn cannot_buffer(error: &std::io::Error) -> Self {
        let why = format!("nothing was forwarded: cannot buffer the body: {error}");
        match error.kind() {
            std::io::ErrorKind::StorageFull => Self::no_room(why).retry_after(1),
            _ => Self::marks_failed(why),
        }
    }

    /// Adds the lock that it is about.
    pub(crate) fn on(mut self, name: &LockName, token: Option<Token>) -> Self {
        self.name = Some(name.clone());
        self.token = token;
        self
    }

    /// A later holder has entered.
    pub(crate) fn refused(mark: Mark, fencing: &FencingToken) -> Self {
        let mut problem = Self::stale(mark.refuses(fencing).to_string());
        problem.mark = Some(Box::new(mark));
        problem
    }

    pub(crate) fn retry_after(mut self, seconds: u64) -> Self {
        self.retry_after = Some(seconds);
        self
    }

    /// The mark that refused the request.
    pub(crate) fn mark(&self) -> Option<Token> {
        self.mark.as_ref().map(|mark| mark.token)
    }

    /// The response body.
    pub(crate) fn json(&self) -> Vec<u8> {
        let mut object = Map::new();
        let mut put = |key: &str, value: Value| object.insert(key.to_owned(), value);
        put("type", format!("urn:fencepost:problem:{}", self.kind).into());
        put("title", self.title.into());
        put("status", self.status.into());
        put("detail", self.detail.as_str().into());
        if let Some(name) = &self.name {
            put("name", name.as_str().into());
        }
        if let Some(token) = self.token {
            put("token", token.get().into());
        }
        if let Some(mark) = &self.mark {
            put("mark", mark.token.get().into());
            put("set_by", mark.set_by.as_str().into());
            put("set_at", mark.set_at.as_str().into());
        }
        let mut text = Value::Object(object).to_string().into_bytes();
        text.push(b'\n');
        text
    }
}

/// The reason phrase of a status.
pub(crate) fn reason(status: u16) -> &'static str {
    match status {
        400 => "Bad Request",
        403 => "Forbidden",
        408 => "Request Timeout",
        412 => "Precondition Failed",
        413 => "Content Too Large",
        428 => "Precondition Required",
        431 => "Request Header Fields Too Large",
        502 => "Bad Gateway",
        503 => "Service Unavailable",
        504 => "Gateway Timeout",
        _ => "",
    }
}
