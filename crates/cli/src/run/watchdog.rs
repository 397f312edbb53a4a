//! The watchdog: ends the command's process group in time, even if `fencepost run` itself is killed or frozen. It is
//! this same program, started with a hidden command and a pipe as stdin.
//!
//! What must hold: when the lock can be granted to another client, no process of the group runs. The lock can be granted
//! when the lease ends, so the group is killed from `kill_at` on, which is earlier. It can also be granted when the
//! store finds that all processes of the holder are gone. The watchdog is one of them, because it keeps the presence
//! file open, and it ends after the group.
//!
//! It waits on `CLOCK_BOOTTIME`, and is started with all signals blocked and in a session of its own.

use std::time::Duration;

use fencepost::Moment;
use fencepost::clock::{BootClock, Clock as _};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::Signal;

use super::group::Group;
use crate::exit::{self, say};
use crate::watchdog_record::Record;

/// The hidden command.
pub(crate) const COMMAND: &str = "__watchdog";

/// Its exit code when it has killed the group and the group is gone.
pub(crate) const ACTED: u8 = 3;

/// How long after the deadline it keeps trying to kill the group. By then the lease has ended, so an open presence file
/// blocks nobody.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);

/// The records that it has read.
struct Orders {
    group: Option<Group>,
    term_at: Moment,
    kill_at: Moment,
    /// The `term_at` for which TERM was sent.
    asked_for: Option<Moment>,
}

/// The state of the pipe.
#[derive(PartialEq, Eq)]
enum Inbox {
    Open,
    Closed,
}

/// Watches until it is killed, or has ended the group.
pub(crate) fn watch(name: &str) -> u8 {
    let stdin = rustix::stdio::stdin();
    let is_pipe = rustix::fs::fstat(stdin)
        .is_ok_and(|stat| rustix::fs::FileType::from_raw_mode(stat.st_mode).is_fifo());
    if !is_pipe {
        say(&format!("{COMMAND} is for fencepost's own use: see `fencepost --help`"));
        return exit::USAGE;
    }
    let timer = Timer::new();
    let never = Moment::NEVER;
    let mut orders = Orders { group: None, term_at: never, kill_at: never, asked_for: None };
    loop {
        // Read the pipe before the clock: a renewal that came in time counts.
        if orders.read() == Inbox::Closed {
            let Some(group) = orders.group else { return exit::OK };
            let was_alive = group.alive();
            group.signal(Signal::KILL);
            if was_alive {
                say(&format!(
                    "the process that held \"{name}\" is gone; its command (process group {}) was killed",
                    group.id()
                ));
            }
            return orders.kill_until_gone(group);
        }
        let next = match orders.group {
            Some(group) => {
                let now = BootClock.now();
                if now >= orders.kill_at {
                    return orders.kill_until_gone(group);
                }
                if now >= orders.term_at && orders.asked_for != Some(orders.term_at) {
                    orders.asked_for = Some(orders.term_at);
                    group.terminate();
                }
                if now >= orders.term_at { orders.kill_at } else { orders.term_at }
            }
            None => never,
        };
        timer.wait_for_input_or(next);
    }
}

impl Orders {
    /// Reads all records in the pipe.
    fn read(&mut self) -> Inbox {
        let mut bytes = [0; Record::BYTES];
        loop {
            match rustix::io::read(rustix::stdio::stdin(), &mut bytes) {
                Ok(0) => return Inbox::Closed,
                Ok(length) => match Record::from_bytes(&bytes[..length]) {
                    Some(Record::Group(id)) => self.group = Some(Group::led_by(id)),
                    Some(Record::Deadline { term_at, kill_at }) => {
                        (self.term_at, self.kill_at) = (term_at, kill_at);
                    }
                    // Only a broken writer sends an invalid record: treat it as gone.
                    None => return Inbox::Closed,
                },
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Inbox::Open,
                Err(_) => return Inbox::Closed,
            }
        }
    }

    /// Kills the group until none of its processes runs.
    fn kill_until_gone(&self, group: Group) -> u8 {
        let start = BootClock.now();
        let lease_end = if self.kill_at == Moment::NEVER { start } else { self.kill_at.max(start) };
        let mut delay = Duration::from_micros(500);
        loop {
            group.signal(Signal::KILL);
            if !group.alive() {
                return ACTED;
            }
            if BootClock.now() > lease_end + KILL_TIMEOUT {
                say(&format!(
                    "process group {} does not end: it runs as another user, or hangs in the kernel; end it by hand",
                    group.id()
                ));
                return exit::INTERNAL;
            }
            pause(delay);
            delay = (delay * 2).min(Duration::from_millis(20));
        }
    }
}

/// Sleeps for less than a second. It does not matter whether the clock counts time in suspend.
fn pause(span: Duration) {
    let span = Timespec { tv_sec: 0, tv_nsec: span.subsec_nanos().into() };
    let _ = poll(&mut [], Some(&span));
}

#[cfg(target_os = "linux")]
use timer::Timer;

#[cfg(target_os = "linux")]
mod timer {
    use std::os::fd::OwnedFd;

    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create,
        timerfd_settime,
    };

    use super::{Moment, PollFd, PollFlags, Timespec, pause, poll};

    /// A kernel timer that counts time in suspend.
    pub(super) struct Timer(Option<OwnedFd>);

    impl Timer {
        pub(super) fn new() -> Self {
            Self(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).ok())
        }

        /// Waits until the pipe has input or is closed, or until `at`.
        pub(super) fn wait_for_input_or(&self, at: Moment) {
            let nanos = at.as_nanos().clamp(1, i64::MAX as u64);
            let value = Timespec {
                tv_sec: (nanos / 1_000_000_000).cast_signed(),
                tv_nsec: (nanos % 1_000_000_000).cast_signed(),
            };
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let setting = Itimerspec { it_interval: never, it_value: value };
            let set = self.0.as_ref().and_then(|timer| {
                timerfd_settime(timer, TimerfdTimerFlags::ABSTIME, &setting).ok()?;
                Some(timer)
            });
            let stdin = rustix::stdio::stdin();
            let input = PollFd::new(&stdin, PollFlags::IN);
            match set {
                Some(timer) => {
                    let _ = poll(&mut [input, PollFd::new(timer, PollFlags::IN)], None);
                }
                // Without a timer, check often.
                None => pause(std::time::Duration::from_millis(20)),
            }
        }
    }
}

#[cfg(not(target_os = "linux"))]
struct Timer;

#[cfg(not(target_os = "linux"))]
impl Timer {
    const fn new() -> Self {
        Self
    }

    /// Other systems have no such timer: check the clock at least every 100 ms.
    fn wait_for_input_or(&self, at: Moment) {
        let left = at.since(BootClock.now()).min(Duration::from_millis(100));
        let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let stdin = rustix::stdio::stdin();
        let _ = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&left));
    }
}
