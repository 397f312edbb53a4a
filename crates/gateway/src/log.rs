//! The access log: one JSON line per request, written by its own thread.
//!
//! A log that cannot keep up drops lines and counts them. It never delays a request or a stop.

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
use crate::server::spawn_thread;
use crate::time::now;

/// How long lines are collected before a write.
const BATCH_DELAY: Duration = Duration::from_millis(50);
/// How long a stop waits for the last write: a pipe that nobody reads blocks it.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(1);
/// The most bytes that may wait to be written.
const LIMIT: usize = 4 << 20;

/// The request that a line is about.
#[derive(Debug)]
pub(crate) struct Line<'a> {
    pub(crate) began: Moment,
    pub(crate) client: SocketAddr,
    pub(crate) method: &'a str,
    pub(crate) path: &'a str,
}

/// What is known of a request, for its line in the log.
#[derive(Debug, Default)]
pub(crate) struct Facts {
    pub(crate) name: Option<LockName>,
    pub(crate) token: Option<Token>,
    pub(crate) mark: Option<Token>,
    pub(crate) upstream: Option<u16>,
    pub(crate) outcome: Option<Outcome>,
}

/// The lines that wait to be written.
#[derive(Default)]
struct Lines {
    text: Vec<u8>,
    closing: bool,
    /// Everything was written.
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
                    Error::refused(format!("cannot write the access log {shown}"))
                        .with_source(error)
                })?)
            }
        };
        let shared = Arc::new((Mutex::new(Lines::default()), Condvar::new()));
        let theirs = Arc::clone(&shared);
        let thread = spawn_thread("fencepost-log", move || write(&theirs, sink))?;
        Ok(Self { shared: Some(shared), thread: Mutex::new(Some(thread)) })
    }

    pub(crate) fn line(&self, line: &Line<'_>, facts: &Facts, status: u16, metrics: &Metrics) {
        let Some(shared) = &self.shared else { return };
        let (lines, changed) = &**shared;
        let mut lines = lines.lock();
        if lines.text.len() > LIMIT {
            metrics.log_lines_lost.inc();
            return;
        }
        let first = lines.text.is_empty();
        line.write(facts, status, &mut lines.text);
        drop(lines);
        if first {
            changed.notify_one();
        }
    }

    /// Writes what is left, if that is possible in time.
    pub(crate) fn close(&self) {
        let Some(shared) = &self.shared else { return };
        let Some(thread) = self.thread.lock().take() else { return };
        let (lines, changed) = &**shared;
        let mut held = lines.lock();
        held.closing = true;
        changed.notify_all();
        changed.wait_while_for(&mut held, |lines| !lines.ended, FLUSH_TIMEOUT);
        // A thread that hangs is abandoned: it only writes.
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
    let (lines, changed) = shared;
    let mut text = Vec::new();
    loop {
        let closing = {
            let idle = |lines: &mut Lines| lines.text.is_empty() && !lines.closing;
            let mut held = lines.lock();
            changed.wait_while(&mut held, idle);
            changed.wait_while_for(&mut held, |lines| !lines.closing, BATCH_DELAY);
            std::mem::swap(&mut held.text, &mut text);
            held.closing
        };
        // A log that cannot be written must not stop requests.
        let _ = sink.write_all(&text).and_then(|()| sink.flush());
        text.clear();
        if closing {
            lines.lock().ended = true;
            changed.notify_all();
            return;
        }
    }
}

impl Line<'_> {
    fn write(&self, facts: &Facts, status: u16, out: &mut Vec<u8>) {
        let Self { began, client, method, path } = self;
        let micros = now().since(*began).as_micros();
        // Writing to memory cannot fail.
        let _ = write!(out, "{{\"time\":\"{}\",\"client\":\"{client}\"", stamp::now());
        for (key, value) in [
            ("method", Some(*method)),
            ("path", Some(*path)),
            ("name", facts.name.as_ref().map(LockName::as_str)),
            ("outcome", facts.outcome.map(Outcome::as_str)),
        ] {
            if let Some(value) = value {
                let _ = write!(out, ",\"{key}\":");
                let _ = serde_json::to_writer(&mut *out, value);
            }
        }
        for (key, value) in [
            ("token", facts.token.map(Token::get)),
            ("mark", facts.mark.map(Token::get)),
            ("status", Some(u64::from(status))),
            ("upstream_status", facts.upstream.map(u64::from)),
        ] {
            if let Some(value) = value {
                let _ = write!(out, ",\"{key}\":{value}");
            }
        }
        let _ = writeln!(out, ",\"ms\":{}.{:03}}}", micros / 1000, micros % 1000);
    }
}
