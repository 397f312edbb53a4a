//! The kernel's clock, and a timer that one thread waits on while others set it.

use fencepost_core::Moment;
#[cfg(unix)]
use rustix::time::{ClockId, Timespec, clock_gettime};

#[cfg(any(target_os = "linux", target_os = "android"))]
const CLOCK: ClockId = ClockId::Boottime;
#[cfg(all(unix, not(any(target_os = "linux", target_os = "android"))))]
const CLOCK: ClockId = ClockId::Monotonic;

#[cfg(unix)]
pub(super) fn now() -> Moment {
    let Timespec { tv_sec, tv_nsec } = clock_gettime(CLOCK);
    Moment::from_nanos(tv_sec.unsigned_abs() * 1_000_000_000 + tv_nsec.unsigned_abs())
}

/// The time since the first call: moments are only compared within one process. It may stop in suspend.
#[cfg(not(unix))]
#[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
pub(super) fn now() -> Moment {
    static ORIGIN: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
    let elapsed = ORIGIN.get_or_init(std::time::Instant::now).elapsed();
    Moment::default() + elapsed
}

#[cfg(any(target_os = "linux", target_os = "android"))]
mod kernel {
    use std::os::fd::OwnedFd;

    use fencepost_core::Moment;
    use rustix::time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
        timerfd_settime,
    };

    /// A timerfd on `CLOCK_BOOTTIME`: it continues in suspend, and can be set while a thread reads it.
    pub(in crate::clock) struct Timer(OwnedFd);

    impl Timer {
        pub(in crate::clock) fn new() -> std::io::Result<Self> {
            Ok(Self(timerfd_create(TimerfdClockId::Boottime, TimerfdFlags::CLOEXEC)?))
        }

        pub(in crate::clock) fn wait(&self) {
            // Whatever the result, the caller checks the clock.
            let _ = rustix::io::read(&self.0, &mut [0_u8; 8]);
        }

        pub(in crate::clock) fn arm(&self, at: Option<Moment>) {
            let nanos = at.map_or(0, |at| at.as_nanos().max(1)).min(i64::MAX as u64);
            let at = Timespec {
                tv_sec: (nanos / 1_000_000_000).cast_signed(),
                tv_nsec: (nanos % 1_000_000_000).cast_signed(),
            };
            let never = Timespec { tv_sec: 0, tv_nsec: 0 };
            let setting = Itimerspec { it_interval: never, it_value: at };
            timerfd_settime(&self.0, TimerfdTimerFlags::ABSTIME, &setting)
                .expect("an absolute time is a valid setting");
        }
    }
}

#[cfg(not(any(target_os = "linux", target_os = "android")))]
mod kernel {
    use fencepost_core::Moment;
    use parking_lot::{Condvar, Mutex};

    /// The closest that other systems have: it may stop in suspend.
    pub(in crate::clock) struct Timer(Mutex<Option<Moment>>, Condvar);

    impl Timer {
        pub(in crate::clock) fn new() -> std::io::Result<Self> {
            Ok(Self(Mutex::new(None), Condvar::new()))
        }

        pub(in crate::clock) fn wait(&self) {
            let mut set = self.0.lock();
            loop {
                let now = super::now();
                match *set {
                    Some(at) if at <= now => return *set = None,
                    Some(at) => {
                        self.1.wait_for(&mut set, at.since(now));
                    }
                    None => self.1.wait(&mut set),
                }
            }
        }

        pub(in crate::clock) fn arm(&self, at: Option<Moment>) {
            *self.0.lock() = at;
            self.1.notify_one();
        }
    }
}

pub(super) use kernel::Timer;
