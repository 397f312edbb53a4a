//! A process that holds a lock or waits for it, of ours or a third party's.

use std::fmt::Debug;

use rustix::process::Signal;

use super::site::Site;
use super::worker::Worker;

/// Killed on drop.
pub struct Contender {
    worker: Worker,
    protocol: Protocol,
}

/// How to talk to it.
pub struct Protocol {
    /// What precedes the token in its output.
    granted: &'static str,
    release: Release,
}

enum Release {
    Send,
    HangUp,
    Terminate,
}

impl Protocol {
    /// A worker that uses the third party's library.
    pub const WORKER: Self = Self { granted: "granted ", release: Release::Send };
    /// `fencepost run NAME -- sh -c ...`, which has the lock until its input ends.
    pub const FENCEPOST: Self = Self { granted: "token ", release: Release::HangUp };
    /// `etcdctl -w fields lock NAME` or `elect NAME PROPOSAL`, which show their key.
    pub const ETCDCTL: Self =
        Self { granted: "\"CreateRevision\" : ", release: Release::Terminate };
}

/// Holds the lock until its input ends.
const HOLD: &str = "echo token $FENCEPOST_TOKEN; read end || :";

impl Contender {
    /// A contender that is driven by this protocol.
    pub fn new(worker: Worker, protocol: Protocol) -> Self {
        Self { worker, protocol }
    }

    /// Its token, if it holds the lock.
    pub fn token(&self) -> Option<u64> {
        token_in(&self.worker.lines(), self.protocol.granted)
    }

    /// Waits until it holds the lock. Returns its token.
    pub fn granted(&mut self) -> u64 {
        let before = self.protocol.granted;
        self.worker.wait_for_line(|lines| token_in(&lines, before))
    }

    /// Makes it release the lock and end.
    pub fn release(mut self) {
        match self.protocol.release {
            Release::Send => {
                self.worker.send("release");
                self.worker.wait_for_line(|lines| lines.contains(&"released".into()).then_some(()));
                self.worker.hang_up();
            }
            Release::HangUp => self.worker.hang_up(),
            Release::Terminate => self.worker.signal(Signal::TERM),
        }
        assert_eq!(self.worker.end(), Some(0));
    }

    /// Sends it a line. Returns what its reply has after `before`.
    pub fn ask(&mut self, order: &str, before: &str) -> String {
        let known = self.worker.lines().len();
        self.worker.send(order);
        self.worker.wait_for_line(|lines| {
            let mut new = lines.iter().skip(known);
            new.find_map(|line| line.strip_prefix(before).map(str::to_owned))
        })
    }

    /// `kill -9`.
    pub fn kill(&self) {
        self.worker.kill();
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.worker.has_ended()
    }
}

impl Site {
    /// One of our clients that holds a lock as soon as it is granted.
    pub fn ours(&self, name: &str, ttl: u32) -> Contender {
        let ttl = format!("{ttl}s");
        let command = self.fencepost(&["run", "--ttl", &ttl, name, "--", "sh", "-c", HOLD]);
        Contender::new(Worker::spawn(command, self.store.dir.path()), Protocol::FENCEPOST)
    }

    /// Queues these one after the other. The first to come must be granted first, whichever client it is, and all tokens
    /// rise together.
    pub fn assert_granted_in_order<M: Copy + Debug>(
        &self,
        kinds: &[M],
        contend: impl Fn(M) -> Contender,
    ) {
        let mut queue = Vec::new();
        for (ahead, kind) in (0..).zip(kinds) {
            queue.push((kind, contend(*kind)));
            if ahead == 0 {
                queue[0].1.granted();
            } else {
                self.wait_for_waiters(ahead);
            }
        }
        let mut last = 0;
        while !queue.is_empty() {
            let early = queue.iter().skip(1).filter(|(_, one)| one.token().is_some());
            assert_eq!(early.count(), 0, "a client did not wait behind {:?}", queue[0].0);
            let (kind, mut first) = queue.remove(0);
            let token = first.granted();
            println!("{}: {kind:?} with {token}", self.name);
            assert!(token > last, "{token} after {last}");
            last = token;
            first.release();
            if let Some((_, next)) = queue.first_mut() {
                next.granted();
            }
        }
    }
}

fn token_in(lines: &[String], before: &str) -> Option<u64> {
    lines.iter().find_map(|line| line.strip_prefix(before)?.parse().ok())
}
