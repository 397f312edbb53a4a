//! Alarms: futures that wait for a moment, without a runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use fencepost_core::Moment;
use parking_lot::Mutex;

use super::timer::{self, Timer};

/// The waker of each alarm, the earliest first.
#[derive(Default)]
pub(super) struct AlarmTable(BTreeMap<(Moment, u64), Waker>);

impl AlarmTable {
    pub(super) fn set(&mut self, at: Moment, id: u64, waker: &Waker) {
        self.0.insert((at, id), waker.clone());
    }

    pub(super) fn unset(&mut self, at: Moment, id: u64) {
        self.0.remove(&(at, id));
    }

    pub(super) fn take_due(&mut self, now: Moment) -> Vec<Waker> {
        let later = self.0.split_off(&(now, u64::MAX));
        std::mem::replace(&mut self.0, later).into_values().collect()
    }

    pub(super) fn first(&self) -> Option<Moment> {
        self.0.first_key_value().map(|((at, _), _)| *at)
    }

    pub(super) fn len(&self) -> usize {
        self.0.len()
    }
}

impl fmt::Debug for AlarmTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "AlarmTable({} set)", self.0.len())
    }
}

/// What an [`Alarm`] is set on.
pub(super) trait AlarmWaker: Send + Sync + Unpin + 'static {
    /// Wakes `waker` at `at`; false if that moment has passed.
    fn set(&self, at: Moment, id: u64, waker: &Waker) -> bool;
    /// Whether `at` has passed.
    fn has_passed(&self, at: Moment) -> bool;
    /// Cancels the alarm.
    fn unset(&self, at: Moment, id: u64);
}

/// Resolves once its moment has come.
pub(super) struct Alarm<B: AlarmWaker> {
    at: Moment,
    id: u64,
    alarms: B,
    /// Whom it wakes, once it is set.
    set_for: Option<Waker>,
}

impl<B: AlarmWaker> Alarm<B> {
    pub(super) fn new(at: Moment, alarms: B) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { at, id: NEXT.fetch_add(1, Ordering::Relaxed), alarms, set_for: None }
    }
}

impl<B: AlarmWaker> Future for Alarm<B> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        // Most polls are for the call that the alarm limits. It stays set until its moment has passed.
        let set = self.set_for.as_ref().is_some_and(|waker| waker.will_wake(context.waker()));
        let pending = if set {
            !self.alarms.has_passed(self.at)
        } else {
            self.alarms.set(self.at, self.id, context.waker())
        };
        if !pending {
            return Poll::Ready(());
        }
        if !set {
            self.set_for = Some(context.waker().clone());
        }
        Poll::Pending
    }
}

impl<B: AlarmWaker> Drop for Alarm<B> {
    fn drop(&mut self) {
        if self.set_for.is_some() {
            self.alarms.unset(self.at, self.id);
        }
    }
}

/// The alarms of this process and the kernel timer behind them.
pub(super) struct Alarms {
    pending: Mutex<Pending>,
    timer: Timer,
}

#[derive(Default)]
struct Pending {
    table: AlarmTable,
    /// When the timer fires: no later than the first alarm. Most alarms are cancelled before they fire, and one fruitless
    /// wake-up costs less than setting the timer for each.
    armed: Option<Moment>,
}

impl Alarms {
    /// The alarms of this process. The first use starts their thread.
    pub(super) fn of_this_process() -> std::io::Result<&'static Arc<Self>> {
        static ALARMS: OnceLock<Arc<Alarms>> = OnceLock::new();
        static STARTING: Mutex<()> = Mutex::new(());
        if let Some(alarms) = ALARMS.get() {
            return Ok(alarms);
        }
        let _one_at_a_time = STARTING.lock();
        if ALARMS.get().is_none() {
            let alarms = Arc::new(Self { pending: Mutex::default(), timer: Timer::new()? });
            let ringer = Arc::clone(&alarms);
            let thread = std::thread::Builder::new().name("fencepost-clock".into());
            thread.spawn(move || ringer.run())?;
            return Ok(ALARMS.get_or_init(|| alarms));
        }
        ALARMS.get().ok_or_else(|| std::io::ErrorKind::Other.into())
    }

    fn run(&self) {
        loop {
            self.timer.wait();
            let due = {
                let mut pending = self.pending.lock();
                let due = pending.table.take_due(timer::now());
                // Set under the lock, so that an earlier alarm that is set meanwhile is not overwritten.
                pending.armed = pending.table.first();
                self.timer.arm(pending.armed);
                due
            };
            due.into_iter().for_each(Waker::wake);
        }
    }
}

impl AlarmWaker for Arc<Alarms> {
    fn set(&self, at: Moment, id: u64, waker: &Waker) -> bool {
        let mut pending = self.pending.lock();
        // The clock is read only if the timer must be set. Otherwise it fires no later than this alarm, and wakes whatever is
        // due then.
        if pending.armed.is_none_or(|armed| at < armed) {
            if timer::now() >= at {
                return false;
            }
            pending.armed = Some(at);
            self.timer.arm(pending.armed);
        }
        pending.table.set(at, id, waker);
        true
    }

    fn has_passed(&self, at: Moment) -> bool {
        timer::now() >= at
    }

    fn unset(&self, at: Moment, id: u64) {
        // The timer may still fire for it. Then nothing is due, and it is set for the next alarm.
        self.pending.lock().table.unset(at, id);
    }
}
