//! One who holds a lock or waits for it, in a process of its own, whatever its make.

use std::fmt::Debug;

use rustix::process::Signal;

use super::site::Site;
use super::worker::Worker;

/// Killed on drop.
pub struct Contender {
    worker: Worker,
    ways: Ways,
}

/// How one talks to it.
pub struct Ways {
    /// What stands before the token in what it says when it has the lock.
    granted: &'static str,
    release: Release,
}

enum Release {
    Tell,
    HangUp,
    Terminate,
}

impl Ways {
    /// A worker of ours that uses the other make's library.
    pub const WORKER: Self = Self { granted: "granted ", release: Release::Tell };
    /// `fencepost run NAME -- sh -c ...`, which has the lock until its input ends.
    pub const FENCEPOST: Self = Self { granted: "token ", release: Release::HangUp };
    /// `etcdctl -w fields lock NAME` or `elect NAME PROPOSAL`, which show their key.
    pub const ETCDCTL: Self =
        Self { granted: "\"CreateRevision\" : ", release: Release::Terminate };
}

/// Has the lock until its input ends.
const HOLD: &str = "echo token $FENCEPOST_TOKEN; read end || :";

impl Contender {
    /// One that is talked to in this way.
    pub fn new(worker: Worker, ways: Ways) -> Self {
        Self { worker, ways }
    }

    /// Its token, if it has the lock.
    pub fn token(&self) -> Option<u64> {
        token_in(&self.worker.lines(), self.ways.granted)
    }

    /// Waits until it has the lock; its token.
    pub fn granted(&mut self) -> u64 {
        let before = self.ways.granted;
        self.worker.wait_for_line(|lines| token_in(&lines, before))
    }

    /// Has it release the lock, and end.
    pub fn release(mut self) {
        match self.ways.release {
            Release::Tell => {
                self.worker.tell("release");
                self.worker.wait_for_line(|lines| lines.contains(&"released".into()).then_some(()));
                self.worker.hang_up();
            }
            Release::HangUp => self.worker.hang_up(),
            Release::Terminate => self.worker.signal(Signal::TERM),
        }
        assert_eq!(self.worker.end(), Some(0));
    }

    /// Tells it something; what it says behind `before`.
    pub fn ask(&mut self, order: &str, before: &str) -> String {
        let heard = self.worker.lines().len();
        self.worker.tell(order);
        self.worker.wait_for_line(|lines| {
            let mut new = lines.iter().skip(heard);
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
    /// One of ours that holds a lock as soon as it gets it.
    pub fn ours(&self, name: &str, ttl: u32) -> Contender {
        let ttl = format!("{ttl}s");
        let command = self.fencepost(&["run", "--ttl", &ttl, name, "--", "sh", "-c", HOLD]);
        Contender::new(Worker::spawn(command, self.store.dir.path()), Ways::FENCEPOST)
    }

    /// Has these stand in line, one behind the other. First come, first served, whoever it is, and the tokens of
    /// all rise together.
    pub fn assert_served_in_line<M: Copy + Debug>(
        &self,
        makes: &[M],
        contend: impl Fn(M) -> Contender,
    ) {
        let mut line = Vec::new();
        for (ahead, make) in (0..).zip(makes) {
            line.push((make, contend(*make)));
            if ahead == 0 {
                line[0].1.granted();
            } else {
                self.wait_for_waiters(ahead);
            }
        }
        let mut last = 0;
        while !line.is_empty() {
            let early = line.iter().skip(1).filter(|(_, one)| one.token().is_some());
            assert_eq!(early.count(), 0, "somebody did not wait behind {:?}", line[0].0);
            let (make, mut first) = line.remove(0);
            let token = first.granted();
            println!("{}: {make:?} with {token}", self.name);
            assert!(token > last, "{token} after {last}");
            last = token;
            first.release();
            if let Some((_, next)) = line.first_mut() {
                next.granted();
            }
        }
    }
}

fn token_in(lines: &[String], before: &str) -> Option<u64> {
    lines.iter().find_map(|line| line.strip_prefix(before)?.parse().ok())
}
