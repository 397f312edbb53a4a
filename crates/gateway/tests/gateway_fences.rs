//! The suite of fences on the gateway: counters are files of a service behind it.
//!
//! The controls go to the service directly. `FENCEPOST_FENCE_ROUNDS=1000 cargo test --test gateway_fences -- counter` runs
//! a thousand rounds of the counter.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod common;

use std::fmt::Write as _;
use std::net::SocketAddr;
use std::process::ExitCode;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use common::service::Behavior;
use common::{Fixture, Reply, Service, call, intermediary};
use fencepost_base::{BoxFuture, Error, ErrorKind, Result};
use fencepost_conformance::Unable;
use fencepost_conformance::fences::{BehindIntermediary, Fence, Marks, Resource};
use fencepost_core::{Label, LockName, Token};
use fencepost_fence::{Mark, Reset, sqlite};
use fencepost_testkit::Nginx;
use fencepost_testkit::wait::{SOON, until};
use rusqlite::Connection;

fn main() -> ExitCode {
    fencepost_conformance::fences::main(vec![Box::new(Gateway)])
}

struct Gateway;

impl Fence for Gateway {
    fn name(&self) -> &'static str {
        "gateway"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Resource>, Unable>> {
        let counters: Box<dyn Resource> = Box::new(Counters::of(Fixture::new(), None));
        Box::pin(async { Ok(counters) })
    }

    fn behind_intermediary(
        &self,
    ) -> Option<BoxFuture<'_, Result<Box<dyn BehindIntermediary>, Unable>>> {
        let behind: Box<dyn BehindIntermediary> = Box::new(BehindNginx::start());
        Some(Box::pin(async { Ok(behind) }))
    }
}

#[derive(Clone)]
struct Counters {
    fixture: Arc<Fixture>,
    /// Where requests without a token go.
    bare: SocketAddr,
}

/// The gateway in front of nginx, and nginx in front of a service.
struct BehindNginx {
    counters: Counters,
    _nginx: Nginx,
    service: Service,
    /// The write that the intermediary gave up: its path and value.
    given_up: Mutex<Option<(String, String)>>,
}

impl BehindNginx {
    fn start() -> Self {
        let service = Service::start();
        let nginx = intermediary::in_front_of(&service);
        let fixture = Fixture::with(|config| {
            config.upstream = format!("http://{}", nginx.address()).parse().unwrap();
            config.settle = Duration::from_mins(10);
            config.queue_timeout = Duration::from_millis(100);
        });
        let counters = Counters::of(fixture, Some(nginx.address()));
        Self { counters, _nginx: nginx, service, given_up: Mutex::default() }
    }
}

impl BehindIntermediary for BehindNginx {
    fn resource(&self) -> &dyn Resource {
        &self.counters
    }

    fn write_given_up<'a>(
        &'a self,
        name: &'a LockName,
        token: Option<Token>,
        value: i64,
    ) -> BoxFuture<'a, Result<()>> {
        let path = path(name);
        self.service.behave(&path, Behavior::Hang);
        let written = self.counters.write(name, token, value);
        self.service.behave_normally(&path);
        *self.given_up.lock().unwrap() = Some((path, value.to_string()));
        written
    }

    fn finish(&self) -> BoxFuture<'_, Result<()>> {
        let given_up = self.given_up.lock().unwrap().take();
        now(given_up.map_or(Ok(()), |(path, value)| {
            self.service.release_all();
            until(SOON, "the write is applied", || {
                Ok(self.service.file(&path).as_ref() == Some(&value))
            })
            .map_err(|error| Error::unreachable(error.to_string()))
        }))
    }
}

fn path(name: &LockName) -> String {
    let mut path = String::new();
    for byte in name.as_str().bytes() {
        match byte {
            b'/' | b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => {
                path.push(byte as char);
            }
            other => write!(path, "%{other:02X}").unwrap(),
        }
    }
    format!("/{path}")
}

impl Counters {
    /// Requests without a token bypass the gateway: they go to its service, or to `bare`.
    fn of(fixture: Fixture, bare: Option<SocketAddr>) -> Self {
        let bare = bare.unwrap_or(fixture.service.address());
        Self { fixture: Arc::new(fixture), bare }
    }

    /// With a token through the gateway, without one around it.
    fn ask(
        &self,
        method: &str,
        name: &LockName,
        token: Option<Token>,
        who: Option<&Label>,
        body: &[u8],
    ) -> Result<Reply> {
        let path = path(name);
        let Some(token) = token else {
            return Self::checked(call(self.bare, method, &path, &[], body));
        };
        let token = token.to_string();
        let mut headers = vec![("Fencing-Token", token.as_str())];
        headers.extend(who.map(|who| ("Fencing-Holder", who.as_str())));
        Self::checked(call(self.fixture.gateway.address(), method, &path, &headers, body))
    }

    fn checked(reply: Reply) -> Result<Reply> {
        match reply.status {
            412 => Err(Error::new(ErrorKind::Stale, reply.problem("detail"))),
            200 | 201 | 204 | 404 => Ok(reply),
            _ => Err(Error::unreachable(format!("{}: {}", reply.status, reply.text()))),
        }
    }

    fn db(&self) -> Result<Connection> {
        let db = Connection::open(self.fixture.directory.path().join("marks.db"));
        db.map_err(|error| sqlite::explain(&error))
    }
}

fn now<T: Send + 'static>(result: Result<T>) -> BoxFuture<'static, Result<T>> {
    Box::pin(async move { result })
}

impl Resource for Counters {
    fn another(&self) -> BoxFuture<'_, Result<Box<dyn Resource>>> {
        now(Ok(Box::new(self.clone()) as Box<dyn Resource>))
    }

    fn read<'a>(&'a self, name: &'a LockName, token: Option<Token>) -> BoxFuture<'a, Result<i64>> {
        now(self.ask("GET", name, token, None, b"").map(|reply| match reply.status {
            404 => 0,
            _ => reply.text().parse().unwrap(),
        }))
    }

    fn write<'a>(
        &'a self,
        name: &'a LockName,
        token: Option<Token>,
        value: i64,
    ) -> BoxFuture<'a, Result<()>> {
        now(self.ask("PUT", name, token, None, value.to_string().as_bytes()).map(|_| ()))
    }

    fn marks(&self) -> Option<&dyn Marks> {
        Some(self)
    }
}

impl Marks for Counters {
    fn enter<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        who: &'a Label,
    ) -> BoxFuture<'a, Result<()>> {
        now(self.ask("GET", name, Some(token), Some(who), b"").map(|_| ()))
    }

    fn mark<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Option<Mark>>> {
        now(self.db().and_then(|db| sqlite::mark(&db, name)))
    }

    fn show<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Mark>>> {
        now(self.db().and_then(|db| sqlite::show(&db, name)))
    }

    fn reset<'a>(
        &'a self,
        name: &'a LockName,
        to: Option<Token>,
        by: &'a str,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Option<Mark>>> {
        now(self.db().and_then(|mut db| sqlite::reset(&mut db, name, to, by, why)))
    }

    fn audit<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Reset>>> {
        now(self.db().and_then(|db| sqlite::audit(&db, name)))
    }
}
