//! The watchdog: ends the command's process group in time, also when `fencepost run` itself is killed or
//! frozen. It is this same program, started with a hidden command and a pipe for stdin.
//!
//! What must hold: once the lock may go to somebody else, nothing of the group runs. The lock may go
//! when the lease ends; so from `kill_at` on, which lies before that, the group is killed. And it may go
//! when the store sees the holder's processes gone; the watchdog counts as one (it keeps the presence file
//! open), and it does not end before the group has.
//!
//! It waits on `CLOCK_BOOTTIME`, is started deaf to all signals and in a session of its own, and does nothing else.

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

/// Its exit code when it has killed the group and seen it gone.
pub(crate) const ACTED: u8 = 3;

/// How long after the deadline it goes on trying to see the group gone. By then the lease is over, and
/// keeping the presence file open holds nobody back any more.
const STUBBORN: Duration = Duration::from_secs(10);

/// What it has been told so far.
struct Orders {
    group: Option<Group>,
    term_at: Moment,
    kill_at: Moment,
    /// The `term_at` for which TERM was sent.
    asked_for: Option<Moment>,
}

/// Whether there is more to come.
#[derive(PartialEq, Eq)]
enum Inbox {
    Open,
    Done,
    Closed,
}

/// Watches until it is told that all is done, or has ended the group.
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
        // Read before looking at the clock: a renewal that came in time counts.
        match orders.read() {
            Inbox::Done => return exit::OK,
            Inbox::Closed => {
                let Some(group) = orders.group else { return exit::OK };
                let was_alive = group.alive();
                group.signal(Signal::KILL);
                if was_alive {
                    say(&format!(
                        "the process that held \"{name}\" is gone; its command (process group {}) \
                         was killed",
                        group.id()
                    ));
                }
                return orders.see_it_gone(group);
            }
            Inbox::Open => {}
        }
        let next = match orders.group {
            Some(group) => {
                let now = BootClock.now();
                if now >= orders.kill_at {
                    return orders.see_it_gone(group);
                }
                if now >= orders.term_at && orders.asked_for != Some(orders.term_at) {
                    orders.asked_for = Some(orders.term_at);
                    group.terminate();
                }
                if now >= orders.term_at { orders.kill_at } else { orders.term_at }
            }
            None => never,
        };
        timer.wait_for_news_or(next);
    }
}

impl Orders {
    /// Takes in what has come through the pipe.
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
                    Some(Record::Done) => return Inbox::Done,
                    // Only a broken writer sends that: do as if it were gone.
                    None => return Inbox::Closed,
                },
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Inbox::Open,
                Err(_) => return Inbox::Closed,
            }
        }
    }

    /// Kills the group until nothing of it runs.
    fn see_it_gone(&self, group: Group) -> u8 {
        let since = BootClock.now();
        let lease_over =
            if self.kill_at == Moment::NEVER { since } else { self.kill_at.max(since) };
        let mut gap = Duration::from_micros(500);
        loop {
            group.signal(Signal::KILL);
            if !group.alive() {
                return ACTED;
            }
            if BootClock.now() > lease_over + STUBBORN {
                say(&format!(
                    "process group {} does not end: it runs as another user or hangs in the kernel",
                    group.id()
                ));
                return exit::INTERNAL;
            }
            pause(gap);
            gap = (gap * 2).min(Duration::from_millis(20));
        }
    }
}

/// Short enough that it does not matter whether it counts suspend.
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

    /// A kernel timer that goes on while the machine is suspended.
    pub(super) struct Timer(Option<OwnedFd>);

    impl Timer {
        pub(super) fn new() -> Self {
            Self(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC).ok())
        }

        /// Waits until something comes through the pipe, or it closes, or `at` has come.
        pub(super) fn wait_for_news_or(&self, at: Moment) {
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
            let news = PollFd::new(&stdin, PollFlags::IN);
            match set {
                Some(timer) => {
                    let _ = poll(&mut [news, PollFd::new(timer, PollFlags::IN)], None);
                }
                // Without a timer we look often.
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

    /// The closest other systems have: look at the clock at least every 100 ms.
    fn wait_for_news_or(&self, at: Moment) {
        let left = at.since(BootClock.now()).min(Duration::from_millis(100));
        let left = Timespec { tv_sec: 0, tv_nsec: left.subsec_nanos().into() };
        let stdin = rustix::stdio::stdin();
        let _ = poll(&mut [PollFd::new(&stdin, PollFlags::IN)], Some(&left));
    }
}
