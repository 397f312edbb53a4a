//! One direction of one connection: what has arrived and was not passed on yet, in order.
//!
//! The end of the stream is in the queue like data, so it is held back and delayed like data. The queue is bounded: when it is
//! full the proxy stops reading, and TCP applies back-pressure.

use std::collections::VecDeque;
use std::io;
use std::time::Instant;

use rustix::net::{Shutdown, shutdown};
use tokio::net::TcpStream;

use super::Mode;
use super::arrivals::Arrivals;
use crate::wait::now;

const ROOM: usize = 1 << 20;
const READ: usize = 16 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Direction {
    Requests,
    Answers,
}

/// Whether what arrived at some time may pass.
enum Gate {
    Open,
    OpensAt(Instant),
    Shut,
}

impl Mode {
    fn gate(self, direction: Direction, arrived: Instant) -> Gate {
        match self {
            Self::Pass => Gate::Open,
            Self::DropAnswers if direction == Direction::Requests => Gate::Open,
            Self::DropRequests if direction == Direction::Answers => Gate::Open,
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
        !matches!(self.gate(Direction::Answers, now()), Gate::Shut)
    }
}

#[derive(Debug)]
enum Item {
    /// With the verdict, once it is known.
    Bytes { bytes: Vec<u8>, sent: usize, verdict: Option<Verdict> },
    /// The sender will send no more.
    Finished,
    /// The sender's connection broke.
    Broken,
}

/// The inspector's verdict on bytes that are about to pass.
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
    /// The receiver accepts no more for now.
    Full,
    /// The inspector asked for a pause, and everything up to there has passed.
    Paused,
    /// Both ends must be reset: the inspector asked for it, or the sender's connection broke.
    Cut,
}

#[derive(Debug)]
pub(super) struct OneWayStream {
    direction: Direction,
    queue: VecDeque<(Instant, Item)>,
    size: usize,
    /// Nothing more will arrive.
    drained: bool,
    arrivals: Arrivals,
    /// The end of the stream has passed.
    pub(super) finished: bool,
    /// The receiver's connection broke: what would pass is discarded. The other direction sees the break too, and decides
    /// whether the sender may learn of it.
    pub(super) lost: bool,
}

impl OneWayStream {
    pub(super) fn new(direction: Direction) -> Self {
        let queue = VecDeque::new();
        Self {
            direction,
            queue,
            size: 0,
            drained: false,
            arrivals: Arrivals::default(),
            finished: false,
            lost: false,
        }
    }

    pub(super) fn wants_more(&self) -> bool {
        !self.drained && self.size < ROOM
    }

    /// Whether everything that will ever arrive has arrived.
    pub(super) fn is_drained(&self) -> bool {
        self.drained
    }

    /// How many reads returned a part of a reply.
    pub(super) fn replies(&self) -> usize {
        self.arrivals.replies
    }

    /// Adds what has arrived.
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
                    self.arrivals.add(bytes);
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
            match mode.gate(self.direction, *arrived) {
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
