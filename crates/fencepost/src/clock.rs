//! The one place that knows what time it is.
//!
//! Leases are counted on `CLOCK_BOOTTIME`: it never jumps and, unlike the clock behind a runtime's timers,
//! it goes on while the machine is suspended. Everything above asks a [`Clock`], so a test can hold time
//! in its hand ([`ManualClock`]) and no lease logic is tested by sleeping.
//!
//! On systems without `CLOCK_BOOTTIME` we fall back to `CLOCK_MONOTONIC`, which may stand still in
//! suspend: there a guard can learn of its loss late by the time the machine slept.

mod alarms;
pub mod stamp;
mod timer;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::Mutex;

use crate::backend::BoxFuture;
use alarms::{Alarm, AlarmTable, Alarms};

/// Reads time and waits for it.
pub trait Clock: Send + Sync + fmt::Debug + 'static {
    /// What time it is.
    fn now(&self) -> Moment;

    /// Resolves once `at` has come. Needs no runtime; dropping it takes the alarm back.
    fn alarm(&self, at: Moment) -> BoxFuture<'static, ()>;
}

/// The system's clock. All instances share one thread that waits on a timer of the kernel's.
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

/// Starts the thread behind the alarms, so that want of threads or files shows when a client connects and
/// not when a lock is held.
pub(crate) fn start() -> crate::Result<()> {
    Alarms::of_this_process().map(|_| ()).map_err(|error| {
        crate::Error::unreachable("can not start the clock's thread and timer").because(error)
    })
}

/// The wall clock, as time since 1970. It decides nothing about a lock: it is compared with a server's, and
/// reported. The records of the embedded store end by it, since they outlive a reboot.
#[must_use]
#[expect(clippy::disallowed_methods, reason = "this file is where clocks are read")]
pub fn wall() -> Duration {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap_or_default()
}

/// Blocks this thread. For retry loops inside a blocking call; never on a path that could await.
#[expect(clippy::disallowed_methods, reason = "this file is where waiting is allowed")]
pub(crate) fn pause(span: Duration) {
    std::thread::sleep(span);
}

/// A clock that moves only when told to.
#[derive(Clone, Debug)]
pub struct ManualClock(Arc<Mutex<Manual>>);

#[derive(Debug)]
struct Manual {
    now: Moment,
    table: AlarmTable,
}

impl ManualClock {
    /// A clock that shows one hour after its origin, so that there is a past to speak of.
    #[must_use]
    pub fn new() -> Self {
        let now = Moment::default() + Duration::from_hours(1);
        Self(Arc::new(Mutex::new(Manual { now, table: AlarmTable::default() })))
    }

    /// Moves the clock on and wakes everything that was due on the way.
    pub fn advance(&self, by: Duration) {
        let due = {
            let mut manual = self.0.lock();
            manual.now = manual.now + by;
            let now = manual.now;
            manual.table.take_due(now)
        };
        due.into_iter().for_each(std::task::Waker::wake);
    }

    /// How many alarms are set: lets a test wait until its subject waits.
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

impl alarms::Bell for ManualClock {
    fn set(&self, at: Moment, id: u64, waker: &std::task::Waker) -> bool {
        let mut manual = self.0.lock();
        if manual.now >= at {
            return false;
        }
        manual.table.set(at, id, waker);
        true
    }

    fn unset(&self, at: Moment, id: u64) {
        self.0.lock().table.unset(at, id);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block_on::block_on;

    #[test]
    fn an_alarm_waits_for_its_moment_and_not_longer() {
        let clock = BootClock;
        let at = clock.now() + Duration::from_millis(20);
        block_on(clock.alarm(at));
        assert!(clock.now() >= at);
        block_on(clock.alarm(at)); // a moment that has passed is ready at once
    }

    #[test]
    fn alarms_ring_in_order_whatever_the_order_they_were_set_in() {
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
    fn a_dropped_alarm_leaves_nothing() {
        let clock = ManualClock::new();
        let mut alarm = clock.alarm(clock.now() + Duration::from_secs(1));
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(alarm.as_mut().poll(&mut context).is_pending());
        assert_eq!(clock.alarms(), 1);
        drop(alarm);
        assert_eq!(clock.alarms(), 0);
    }

    #[test]
    fn a_manual_clock_rings_when_it_is_moved() {
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
