//! The access log: a line of JSON per request, written by a thread of its own.
//!
//! A log that can not keep up loses lines, and they are counted; it never holds up a request, nor the end of the proxy.

use std::fs::File;
use std::io::{self, Write};
use std::net::SocketAddr;
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use fencepost_base::clock::stamp;
use fencepost_base::{Error, Result};
use fencepost_core::{LockName, Moment, Token};
use parking_lot::{Condvar, Mutex};

use crate::config::AccessLog;
use crate::metrics::{Metrics, Outcome};
use crate::time::now;

/// Lines are gathered for so long.
const GATHER: Duration = Duration::from_millis(50);
/// What is left at the end has this long to be written: a pipe that nobody reads takes nothing.
const LAST: Duration = Duration::from_secs(1);
/// What may wait to be written.
const LIMIT: usize = 4 << 20;

/// What is told of a request.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    pub(crate) began: Moment,
    pub(crate) client: SocketAddr,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
}

/// What came to light on the way.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    pub(crate) name: Option<LockName>,
    pub(crate) token: Option<Token>,
    pub(crate) mark: Option<Token>,
    pub(crate) upstream: Option<u16>,
    pub(crate) outcome: Option<Outcome>,
}

/// The lines that wait.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    closing: bool,
    /// All was written.
    ended: bool,
}

/// The log, if there is one.
pub(crate) struct Log {
    shared: Option<Arc<(Mutex<Lines>, Condvar)>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Log {
    pub(crate) fn open(to: &AccessLog) -> Result<Self> {
        let sink: Box<dyn Write + Send> = match to {
            AccessLog::Off => return Ok(Self { shared: None, thread: Mutex::new(None) }),
            AccessLog::Stderr => Box::new(io::stderr()),
            AccessLog::File(path) => {
                Box::new(File::options().create(true).append(true).open(path).map_err(|error| {
                    let shown = path.display();
                    Error::refused(format!("can not write the access log {shown}")).because(error)
                })?)
            }
        };
        let shared = Arc::new((Mutex::new(Lines::default()), Condvar::new()));
        let theirs = Arc::clone(&shared);
        let thread = std::thread::Builder::new()
            .name("fencepost-log".into())
            .spawn(move || write(&theirs, sink))
            .map_err(|error| Error::unreachable("can not start a thread").because(error))?;
        Ok(Self { shared: Some(shared), thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn line(&self, line: &Line<'_>, seen: &Seen, status: u16, metrics: &Metrics) {
        let Some(shared) = &self.shared else { return };
        let (lines, came) = &**shared;
        let mut lines = lines.lock();
        if lines.text.len() > LIMIT {
            metrics.log_lines_lost.inc();
            return;
        }
        let first = lines.text.is_empty();
        line.write(seen, status, &mut lines.text);
        drop(lines);
        if first {
            came.notify_one();
        }
    }

    /// Writes what is left, if that can be done.
    pub(crate) fn close(&self) {
        let Some(shared) = &self.shared else { return };
        let Some(thread) = self.thread.lock().take() else {
            return;
        };
        let (lines, changed) = &**shared;
        let mut held = lines.lock();
        held.closing = true;
        changed.notify_all();
        changed.wait_while_for(&mut held, |lines| !lines.ended, LAST);
        // A thread that hangs is left behind: it only writes.
        if held.ended {
            drop(held);
            let _ = thread.join();
        }
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        self.close();
    }
}

fn write(shared: &(Mutex<Lines>, Condvar), mut sink: Box<dyn Write + Send>) {
    let (lines, came) = shared;
    let mut text = Vec::new();
    loop {
        let closing = {
            let idle = |lines: &mut Lines| lines.text.is_empty() && !lines.closing;
            let mut held = lines.lock();
            came.wait_while(&mut held, idle);
            came.wait_while_for(&mut held, |lines| !lines.closing, GATHER);
            std::mem::swap(&mut held.text, &mut text);
            held.closing
        };
        // A log that can not be written stops nobody.
        let _ = sink.write_all(&text).and_then(|()| sink.flush());
        text.clear();
        if closing {
            lines.lock().ended = true;
            came.notify_all();
            return;
        }
    }
}

impl Line<'_> {
    fn write(&self, seen: &Seen, status: u16, out: &mut Vec<u8>) {
        let Self { began, client, method, path } = self;
        let micros = now().since(*began).as_micros();
        // To write to memory does not fail.
        let _ = write!(out, "{{\"time\":\"{}\",\"client\":\"{client}\"", stamp::now());
        for (key, value) in [
            ("method", Some(*method)),
            ("path", Some(*path)),
            ("name", seen.name.as_ref().map(LockName::as_str)),
            ("outcome", seen.outcome.map(Outcome::word)),
        ] {
            if let Some(value) = value {
                let _ = write!(out, ",\"{key}\":");
                let _ = serde_json::to_writer(&mut *out, value);
            }
        }
        for (key, value) in [
            ("token", seen.token.map(Token::get)),
            ("mark", seen.mark.map(Token::get)),
            ("status", Some(u64::from(status))),
            ("upstream_status", seen.upstream.map(u64::from)),
        ] {
            if let Some(value) = value {
                let _ = write!(out, ",\"{key}\":{value}");
            }
        }
        let _ = writeln!(out, ",\"ms\":{}.{:03}}}", micros / 1000, micros % 1000);
    }
}
