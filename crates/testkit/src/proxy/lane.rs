//! One direction of one connection: what has arrived and has not been passed on yet, in order.
//!
//! The end of the stream stands in the queue like data, so it is held back and delayed like data. The queue
//! is bounded; when it is full the proxy stops reading, and TCP pushes back as it does.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;

use super::Mode;
use crate::wait::now;

const ROOM: usize = 1 << 20;
const READ: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Requests,
    Answers,
}

/// Whether what has arrived at a certain time may pass.
enum Gate {
    Open,
    OpensAt(Instant),
    Shut,
}

impl Mode {
    fn gate(self, way: Way, arrived: Instant) -> Gate {
        match self {
            Self::Pass => Gate::Open,
            Self::DropAnswers if way == Way::Requests => Gate::Open,
            Self::DropRequests if way == Way::Answers => Gate::Open,
            // Refused connections are closed; until that has happened nothing passes.
            Self::Silent | Self::Refuse | Self::DropAnswers | Self::DropRequests => Gate::Shut,
            Self::Delay(span) => match arrived.checked_add(span) {
                None => Gate::Shut,
                Some(at) if at <= now() => Gate::Open,
                Some(at) => Gate::OpensAt(at),
            },
        }
    }

    /// Whether answers pass, at once or later.
    pub(super) fn lets_answers_pass(self) -> bool {
        !matches!(self.gate(Way::Answers, now()), Gate::Shut)
    }
}

#[derive(Debug)]
enum Item {
    /// With the verdict, once it was given.
    Bytes { bytes: Vec<u8>, sent: usize, verdict: Option<Verdict> },
    /// The sender will send no more.
    Finished,
    /// The sender's connection broke.
    Broken,
}

/// What an inspector says about bytes that are about to pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    Pass,
    Cut,
    PassAndPause,
}

/// Why passing on has stopped.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Halt {
    /// There is nothing to pass on, or the mode forbids it.
    Idle,
    /// The mode allows it then.
    Until(Instant),
    /// The receiver takes no more for now.
    Full,
    /// The inspector wanted a pause, and everything up to there has passed.
    Paused,
    /// Both ends are to be reset: the inspector wanted it, or the sender's connection broke.
    Cut,
}

#[derive(Debug)]
pub(super) struct Lane {
    way: Way,
    queue: VecDeque<(Instant, Item)>,
    size: usize,
    /// Nothing more will arrive.
    drained: bool,
    /// How many reads have given bytes.
    pub(super) arrivals: usize,
    /// The end of the stream has passed.
    pub(super) finished: bool,
    /// The receiver's connection broke: what would pass is thrown away. That it broke shows in what arrives
    /// from there, and whether the sender may learn of it is decided there.
    pub(super) lost: bool,
}

impl Lane {
    pub(super) fn new(way: Way) -> Self {
        let queue = VecDeque::new();
        Self { way, queue, size: 0, drained: false, arrivals: 0, finished: false, lost: false }
    }

    pub(super) fn wants_more(&self) -> bool {
        !self.drained && self.size < ROOM
    }

    /// Whether everything that will ever arrive has arrived.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    /// Takes what has arrived.
    pub(super) fn fill(&mut self, from: &TcpStream) {
        let mut buffer = [0; READ];
        while self.wants_more() {
            let item = match from.try_read(&mut buffer) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return,
                Err(_) => Item::Broken,
                Ok(0) => Item::Finished,
                Ok(count) => {
                    let bytes = buffer[..count].to_vec();
                    Item::Bytes { bytes, sent: 0, verdict: None }
                }
            };
            match &item {
                Item::Bytes { bytes, .. } => {
                    self.size += bytes.len();
                    self.arrivals += 1;
                }
                Item::Finished | Item::Broken => self.drained = true,
            }
            self.queue.push_back((now(), item));
        }
    }

    /// Passes on what the mode allows. Bytes are shown to `inspect` once, before any of them passes.
    pub(super) fn pass(
        &mut self,
        mode: Mode,
        to: &TcpStream,
        mut inspect: impl FnMut(&[u8]) -> Verdict,
    ) -> Halt {
        while let Some((arrived, item)) = self.queue.front_mut() {
            match mode.gate(self.way, *arrived) {
                Gate::Open => {}
                Gate::OpensAt(at) => return Halt::Until(at),
                Gate::Shut => return Halt::Idle,
            }
            let mut pause = false;
            match item {
                Item::Bytes { bytes, sent, verdict } => {
                    match *verdict.get_or_insert_with(|| inspect(bytes)) {
                        Verdict::Pass => {}
                        Verdict::PassAndPause => pause = true,
                        Verdict::Cut => return Halt::Cut,
                    }
                    while *sent < bytes.len() && !self.lost {
                        match to.try_write(&bytes[*sent..]) {
                            Ok(count) => *sent += count,
                            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                                return Halt::Full;
                            }
                            Err(_) => self.lost = true,
                        }
                    }
                    self.size -= bytes.len();
                }
                Item::Finished => {
                    // The receiver may be gone already.
                    let _ = shutdown(to, Shutdown::Write);
                    self.finished = true;
                }
                Item::Broken => return Halt::Cut,
            }
            self.queue.pop_front();
            if pause {
                return Halt::Paused;
            }
        }
        Halt::Idle
    }
}
