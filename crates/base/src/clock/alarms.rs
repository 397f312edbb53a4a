//! Alarms: futures that wait for a moment, without a runtime.

use std::collections::BTreeMap;
use std::fmt;
use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, Waker};

use fencepost_core::Moment;
use parking_lot::{Mutex, MutexGuard};

use super::timer::{self, Timer};

/// Who waits for which moment, the earliest first.
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
pub(super) trait Bell: Send + Sync + Unpin + 'static {
    /// Wakes `waker` at `at`; false if that moment has come already.
    fn set(&self, at: Moment, id: u64, waker: &Waker) -> bool;
    /// Takes the alarm back.
    fn unset(&self, at: Moment, id: u64);
}

/// Resolves once its moment has come.
pub(super) struct Alarm<B: Bell> {
    at: Moment,
    id: u64,
    bell: B,
    set: bool,
}

impl<B: Bell> Alarm<B> {
    pub(super) fn new(at: Moment, bell: B) -> Self {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Self { at, id: NEXT.fetch_add(1, Ordering::Relaxed), bell, set: false }
    }
}

impl<B: Bell> Future for Alarm<B> {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<()> {
        self.set = self.bell.set(self.at, self.id, context.waker());
        if self.set { Poll::Pending } else { Poll::Ready(()) }
    }
}

impl<B: Bell> Drop for Alarm<B> {
    fn drop(&mut self) {
        if self.set {
            self.bell.unset(self.at, self.id);
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
    /// When the timer rings: no later than the first alarm. Most alarms are taken back before they ring, and
    /// one ring for nothing costs less than a timer that is set anew for each.
    armed: Option<Moment>,
}

impl Alarms {
    /// The one set of alarms, its thread started on first use.
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
            thread.spawn(move || ringer.ring_for_ever())?;
            return Ok(ALARMS.get_or_init(|| alarms));
        }
        ALARMS.get().ok_or_else(|| std::io::ErrorKind::Other.into())
    }

    fn pending(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock()
    }

    fn ring_for_ever(&self) {
        loop {
            self.timer.wait();
            let due = {
                let mut pending = self.pending();
                let due = pending.table.take_due(timer::now());
                // Armed under the lock: an earlier alarm that is set meanwhile can not be overwritten.
                pending.armed = pending.table.first();
                self.timer.arm(pending.armed);
                due
            };
            due.into_iter().for_each(Waker::wake);
        }
    }
}

impl Bell for Arc<Alarms> {
    fn set(&self, at: Moment, id: u64, waker: &Waker) -> bool {
        if timer::now() >= at {
            return false;
        }
        let mut pending = self.pending();
        pending.table.set(at, id, waker);
        if pending.armed.is_none_or(|armed| at < armed) {
            pending.armed = Some(at);
            self.timer.arm(pending.armed);
        }
        true
    }

    fn unset(&self, at: Moment, id: u64) {
        // The timer may still ring for it; then nothing is due and it is armed for the next.
        self.pending().table.unset(at, id);
    }
}
