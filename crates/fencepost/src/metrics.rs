//! The counters of a client: grants, losses, and near misses, which warn before a loss.
//!
//! Each near miss is a warning in the log too, once per episode, under the target [`NEAR_MISS`].

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// The target of these warnings, to filter the log by.
pub(crate) const NEAR_MISS: &str = "fencepost::near_miss";

/// The counters of a client since it was opened. Made by [`Fencepost::metrics`](crate::Fencepost::metrics).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Metrics {
    /// Guards that were handed out.
    pub grants: u64,
    /// Guards that were lost, whatever the cause.
    pub losses: u64,
    /// How often two thirds of a TTL passed without a successful renewal. The next one may have succeeded; if this
    /// happens often, the TTL is too short for the store, or the machine is too busy.
    pub late_renewals: u64,
    /// Guards that were held for four fifths of their `max_hold`.
    pub near_max_hold: u64,
    /// Guards for correctness that were released or dropped without a call of [`fencing`](crate::Guard::fencing) or
    /// [`check`](crate::Guard::check): no fence can have checked their token, so nothing stops a holder that freezes.
    pub unfenced_grants: u64,
}

impl Metrics {
    /// The same in the text format of Prometheus.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut page = String::new();
        for (name, help, value) in [
            ("grants", "Guards that were handed out.", self.grants),
            ("losses", "Guards that were lost.", self.losses),
            (
                "late_renewals",
                "Times that two thirds of a TTL passed without a successful renewal.",
                self.late_renewals,
            ),
            (
                "near_max_hold",
                "Guards that were held for four fifths of their max_hold.",
                self.near_max_hold,
            ),
            (
                "unfenced_grants",
                "Guards for correctness whose token was passed to no fence.",
                self.unfenced_grants,
            ),
        ] {
            let name = format!("fencepost_{name}_total");
            // Writing to a String cannot fail.
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
        }
        page
    }
}

/// What a client, its heartbeat and its grants increment.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) grants: AtomicU64,
    pub(crate) losses: AtomicU64,
    pub(crate) late_renewals: AtomicU64,
    pub(crate) near_max_hold: AtomicU64,
    pub(crate) unfenced_grants: AtomicU64,
}

impl Counters {
    pub(crate) fn metrics(&self) -> Metrics {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Metrics {
            grants: read(&self.grants),
            losses: read(&self.losses),
            late_renewals: read(&self.late_renewals),
            near_max_hold: read(&self.near_max_hold),
            unfenced_grants: read(&self.unfenced_grants),
        }
    }
}

pub(crate) fn increment(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_counter_has_its_lines() {
        let metrics = Metrics { grants: 7, late_renewals: 2, ..Metrics::default() };
        let page = metrics.prometheus();
        assert!(page.starts_with("# HELP fencepost_grants_total Guards that were handed out.\n"));
        assert!(page.contains("# TYPE fencepost_late_renewals_total counter\n"));
        assert!(page.contains("\nfencepost_late_renewals_total 2\n"), "{page}");
        assert_eq!(page.lines().count(), 15);
        assert!(page.ends_with("fencepost_unfenced_grants_total 0\n"));
    }
}
