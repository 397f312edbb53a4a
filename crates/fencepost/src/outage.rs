//! An outage of the store during a wait: the wait continues, and logs the outage once a minute.

use std::fmt;
use std::time::Duration;

use fencepost_core::{LockName, Moment};

use crate::backend::short;

/// The target of the log lines, to filter the log by.
pub(crate) const OUTAGE: &str = "fencepost::outage";

/// How often a long outage is logged.
const LOG_EVERY: Duration = Duration::from_mins(1);

/// An outage as one waiter sees it.
#[derive(Default)]
pub(crate) struct Outage {
    start: Option<Moment>,
    logged: Option<Moment>,
}

impl Outage {
    /// Logs the outage when it starts, and then once a minute.
    pub(crate) fn log(&mut self, now: Moment, name: &LockName, error: &impl fmt::Display) {
        let start = *self.start.get_or_insert(now);
        if self.logged.is_some_and(|logged| now < logged + LOG_EVERY) {
            return;
        }
        self.logged = Some(now);
        let since = match now.since(start) {
            Duration::ZERO => "does not answer".to_owned(),
            lasted => format!("has not answered for {}", short(lasted)),
        };
        tracing::warn!(target: OUTAGE, "still waiting for \"{name}\": the store {since}: {error}");
    }

    /// The store answers again. Another outage within the minute is not logged at once.
    pub(crate) const fn end(&mut self) {
        self.start = None;
    }
}
