//! The only module that reads a clock.
//!
//! Leases are counted on `CLOCK_BOOTTIME`: it never jumps and, unlike the clock behind a runtime's timers, it continues
//! while the machine is suspended. All other code asks a [`Clock`], so a test can control time ([`ManualClock`]) and no
//! lease logic is tested by sleeping.
//!
//! Systems without `CLOCK_BOOTTIME` fall back to `CLOCK_MONOTONIC`, which may stop in suspend: there a guard can learn of
//! its loss late, by the time the machine slept.

mod alarms;
pub mod stamp;
mod timer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::Mutex;

use crate::BoxFuture;
use alarms::{Alarm, AlarmTable, Alarms};

/// Reads time and waits for it.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// The current time.
    fn now(&self) -> Moment;

    /// Resolves once `at` has come. Needs no runtime; dropping it cancels the alarm.
    fn alarm(&self, at: Moment) -> BoxFuture<'static, ()>;
}

/// The system's clock. All instances share one thread that waits on a kernel timer.
#[derive(Clone, Copy, Debug, Default)]
pub struct BootClock;

impl Clock for BootClock {
    fn now(&self) -> Moment {
        timer::now()
    }

    fn alarm(&self, at: Moment) -> BoxFuture<'static, ()> {
        let alarms =
            Alarms::of_this_process().expect("a client was connected, or a thread can start");
        Box::pin(Alarm::new(at, Arc::clone(alarms)))
    }
}

/// Starts the thread behind the alarms, so that a lack of threads or files shows on connecting and not while a lock is held.
#[doc(hidden)]
pub fn start() -> crate::Result<()> {
    Alarms::of_this_process().map(|_| ()).map_err(|error| {
        crate::Error::unreachable("cannot start the clock's thread and timer").with_source(error)
    })
}

/// The wall clock, as time since 1970. No lock depends on it: it is compared with a server's, and reported. Records of the
/// embedded store expire by it, since they outlive a reboot.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
pub fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Blocks this thread. For retry loops inside a blocking call; never on a path that could await.
#[expect(clippy::disallowed_methods, reason = "this file is where waiting is allowed")]
#[doc(hidden)]
pub fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// A clock that moves only when a test moves it.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Mutex<Manual>>);

#[derive(Debug)]
struct Manual {
    now: Moment,
    table: AlarmTable,
}

impl ManualClock {
    /// A clock that shows one hour after its origin, so that there are earlier moments.
    #[must_use]
    pub fn new() -> Self {
        let now = Moment::default() + Duration::from_hours(1);
        Self(Arc::new(Mutex::new(Manual { now, table: AlarmTable::default() })))
    }

    /// Moves the clock on and wakes everything due by then.
    pub fn advance(&self, by: Duration) {
        let due = {
            let mut manual = self.0.lock();
            manual.now = manual.now + by;
            let now = manual.now;
            manual.table.take_due(now)
        };
        due.into_iter().for_each(std::task::Waker::wake);
    }

    /// How many alarms are set: a test uses it to wait until the tested code waits.
    #[must_use]
    pub fn alarms(&self) -> usize {
        self.0.lock().table.len()
    }
}

impl Default for ManualClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Moment {
        self.0.lock().now
    }

    fn alarm(&self, at: Moment) -> BoxFuture<'static, ()> {
        Box::pin(Alarm::new(at, self.clone()))
    }
}

impl alarms::AlarmWaker for ManualClock {
    fn set(&self, at: Moment, id: u64, waker: &std::task::Waker) -> bool {
        let mut manual = self.0.lock();
        if manual.now >= at {
            return false;
        }
        manual.table.set(at, id, waker);
        true
    }

    fn has_passed(&self, at: Moment) -> bool {
        self.now() >= at
    }

    fn unset(&self, at: Moment, id: u64) {
        self.0.lock().table.unset(at, id);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::block_on::block_on;

    #[test]
    fn alarm_resolves_at_its_moment_or_at_once_if_that_has_passed() {
        let clock = BootClock;
        let at = clock.now() + Duration::from_millis(20);
        block_on(clock.alarm(at));
        assert!(clock.now() >= at);
        block_on(clock.alarm(at)); // a moment that has passed is ready at once
    }

    #[test]
    fn alarms_resolve_in_whatever_order_they_were_set() {
        let clock = BootClock;
        let now = clock.now();
        let (rung, order) = std::sync::mpsc::channel();
        let threads: Vec<_> = [30, 10, 20]
            .map(|ms| {
                let rung = rung.clone();
                std::thread::spawn(move || {
                    block_on(BootClock.alarm(now + Duration::from_millis(ms)));
                    rung.send((BootClock.now(), ms)).unwrap();
                })
            })
            .into();
        for thread in threads {
            thread.join().unwrap();
        }
        drop(rung);
        for (at, ms) in order {
            assert!(at >= now + Duration::from_millis(ms));
        }
    }

    #[test]
    fn dropped_alarm_leaves_nothing() {
        let clock = ManualClock::new();
        let mut alarm = clock.alarm(clock.now() + Duration::from_secs(1));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(alarm.as_mut().poll(&mut context).is_pending());
        assert_eq!(clock.alarms(), 1);
        drop(alarm);
        assert_eq!(clock.alarms(), 0);
    }

    /// A future can move from one task to another between two polls.
    #[test]
    fn alarm_wakes_the_task_that_polled_it_last() {
        struct Woken(AtomicU32);
        impl std::task::Wake for Woken {
            fn wake(self: Arc<Self>) {
                self.0.fetch_add(1, Ordering::Relaxed);
            }
        }
        let clock = ManualClock::new();
        let mut alarm = clock.alarm(clock.now() + Duration::from_secs(1));
        let tasks = [0, 1].map(|_| Arc::new(Woken(AtomicU32::new(0))));
        for task in [&tasks[0], &tasks[0], &tasks[1], &tasks[1]] {
            let waker = Arc::clone(task).into();
            let mut context = std::task::Context::from_waker(&waker);
            assert!(alarm.as_mut().poll(&mut context).is_pending());
        }
        clock.advance(Duration::from_secs(1));
        let waker = Arc::clone(&tasks[1]).into();
        assert!(alarm.as_mut().poll(&mut std::task::Context::from_waker(&waker)).is_ready());
        assert_eq!(tasks.map(|task| task.0.load(Ordering::Relaxed)), [0, 1]);
    }

    #[test]
    fn manual_clock_wakes_alarms_when_it_moves() {
        let clock = ManualClock::new();
        let alarm = clock.alarm(clock.now() + Duration::from_secs(5));
        let waiter = std::thread::spawn(move || block_on(alarm));
        while clock.alarms() == 0 {
            std::thread::yield_now();
        }
        clock.advance(Duration::from_secs(5));
        waiter.join().unwrap();
    }
}
