//! The suite of fences on the proxy: counters are files of a service behind it.
//!
//! The controls go to the service itself. `FENCEPOST_FENCE_ROUNDS=1000 cargo test --test proxy_fences -- counter` runs a
//! thousand rounds of the counter.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

mod common;

use std::fmt::Write as _;
use std::process::ExitCode;
use std::sync::Arc;

use common::{Reply, Scene, call};
use fencepost::backend::BoxFuture;
use fencepost::conformance::Unable;
use fencepost::conformance::fences::{Fence, Marks, Resource};
use fencepost::fences::{Mark, Reset, sqlite};
use fencepost::rusqlite::Connection;
use fencepost::{Error, ErrorKind, Label, LockName, Result, Token};

fn main() -> ExitCode {
    fencepost::conformance::fences::main(vec![Box::new(Gateway)])
}

struct Gateway;

impl Fence for Gateway {
    fn name(&self) -> &'static str {
        "proxy"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Resource>, Unable>> {
        let counters: Box<dyn Resource> = Box::new(Counters(Arc::new(Scene::new())));
        Box::pin(async { Ok(counters) })
    }
}

struct Counters(Arc<Scene>);

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
    /// With a token through the proxy; without one past it.
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
            return Ok(call(self.0.service.address(), method, &path, &[], body));
        };
        let token = token.to_string();
        let mut headers = vec![("Fencing-Token", token.as_str())];
        headers.extend(who.map(|who| ("Fencing-Holder", who.as_str())));
        let reply = call(self.0.proxy.address(), method, &path, &headers, body);
        match reply.status {
            412 => Err(Error::new(ErrorKind::Stale, reply.problem("detail"))),
            200 | 201 | 204 | 404 => Ok(reply),
            _ => Err(Error::unreachable(format!("{}: {}", reply.status, reply.text()))),
        }
    }

    fn db(&self) -> Result<Connection> {
        let db = Connection::open(self.0.directory.path().join("marks.db"));
        db.map_err(|error| sqlite::explain(&error))
    }
}

fn now<T: Send + 'static>(result: Result<T>) -> BoxFuture<'static, Result<T>> {
    Box::pin(async move { result })
}

impl Resource for Counters {
    fn another(&self) -> BoxFuture<'_, Result<Box<dyn Resource>>> {
        now(Ok(Box::new(Self(Arc::clone(&self.0))) as Box<dyn Resource>))
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
