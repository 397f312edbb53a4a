//! What a client has seen: grants, losses, and the near misses that a person should hear of before they are losses.
//!
//! Each near miss is a warning in the log too, once per episode, under the target [`RAILS`].

use std::fmt::Write as _;
use std::sync::atomic::{AtomicU64, Ordering};

/// What a program filters by that wants these warnings and no others.
pub(crate) const RAILS: &str = "fencepost::rails";

/// What a client has seen since it was opened. Given by [`Fencepost::counts`](crate::Fencepost::counts).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// Guards that were handed out.
    pub grants: u64,
    /// Guards that were lost, for whatever cause.
    pub losses: u64,
    /// How often a guard passed two thirds of its TTL without a renewal that counted. It may have been renewed
    /// after that; if this happens often, the TTL is too short for the store, or the machine too busy.
    pub late_renewals: u64,
    /// Guards that were held for four fifths of their `max_hold`.
    pub near_max_hold: u64,
    /// Guards for correctness that were given back without anybody having read their token: no resource can have
    /// checked it, so a holder that freezes is not kept out.
    pub unread_tokens: u64,
}

impl Counts {
    /// The same as text, in the form that Prometheus reads.
    #[must_use]
    pub fn prometheus(&self) -> String {
        let mut page = String::new();
        for (name, help, value) in [
            ("grants", "Guards that were handed out.", self.grants),
            ("losses", "Guards that were lost.", self.losses),
            (
                "late_renewals",
                "Times that two thirds of a TTL passed without a renewal that counted.",
                self.late_renewals,
            ),
            (
                "near_max_hold",
                "Guards that were held for four fifths of their max_hold.",
                self.near_max_hold,
            ),
            (
                "unread_tokens",
                "Guards for correctness whose token nobody read.",
                self.unread_tokens,
            ),
        ] {
            let name = format!("fencepost_{name}_total");
            // Writing to a String can not fail.
            let _ = writeln!(page, "# HELP {name} {help}\n# TYPE {name} counter\n{name} {value}");
        }
        page
    }
}

/// Where a client, its keeper and its holds count.
#[derive(Debug, Default)]
pub(crate) struct Tally {
    pub(crate) grants: AtomicU64,
    pub(crate) losses: AtomicU64,
    pub(crate) late_renewals: AtomicU64,
    pub(crate) near_max_hold: AtomicU64,
    pub(crate) unread_tokens: AtomicU64,
}

impl Tally {
    pub(crate) fn counts(&self) -> Counts {
        let read = |count: &AtomicU64| count.load(Ordering::Relaxed);
        Counts {
            grants: read(&self.grants),
            losses: read(&self.losses),
            late_renewals: read(&self.late_renewals),
            near_max_hold: read(&self.near_max_hold),
            unread_tokens: read(&self.unread_tokens),
        }
    }
}

pub(crate) fn up(count: &AtomicU64) {
    count.fetch_add(1, Ordering::Relaxed);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_count_has_its_lines() {
        let counts = Counts { grants: 7, late_renewals: 2, ..Counts::default() };
        let page = counts.prometheus();
        assert!(page.starts_with("# HELP fencepost_grants_total Guards that were handed out.\n"));
        assert!(page.contains("# TYPE fencepost_late_renewals_total counter\n"));
        assert!(page.contains("\nfencepost_late_renewals_total 2\n"), "{page}");
        assert_eq!(page.lines().count(), 15);
        assert!(page.ends_with("fencepost_unread_tokens_total 0\n"));
    }
}
