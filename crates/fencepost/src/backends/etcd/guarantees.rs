//! What an etcd guarantees under which fault.

use super::layout::LAYOUT;
use super::server_info::{Version, version_of};
use crate::guarantees::{Correctness, Faults, Guarantees, Kept, Records};

/// What a cluster of this version with this many voting members guarantees: `guarantees_of("3.5.13", 3)`.
#[must_use]
pub fn guarantees_of(version: &str, voters: usize) -> Guarantees {
    guarantees(version_of(version), voters)
}

/// Whether a version is this one of its series, or later.
fn since(version: Version, in_3_4: u32, in_3_5: u32) -> bool {
    match version {
        (3, 4, patch) => patch >= in_3_4,
        (3, 5, patch) => patch >= in_3_5,
        version => version > (3, 5, 0),
    }
}

fn correctness(version: Version, voters: usize) -> Correctness {
    let unfit = |why: &str, remedy: &str| Correctness::Unfit {
        why: why.to_owned(),
        remedy: remedy.to_owned(),
    };
    match version {
        (0, ..) => unfit(
            "its members did not report their version, so its guarantees are unknown",
            "retry when they answer",
        ),
        (3, 5, 0..3) => unfit(
            "members of etcd 3.5.0 to 3.5.2 can diverge after a crash",
            "update it to 3.5.13 or later",
        ),
        _ if voters < 2 && !since(version, 21, 5) => unfit(
            "a single etcd before 3.4.21 and 3.5.5 can lose acknowledged writes in a crash \
             (etcd#14370)",
            "update it, or use three members",
        ),
        _ => Correctness::Fit,
    }
}

pub(super) fn guarantees(version: Version, voters: usize) -> Guarantees {
    // etcd#12528, #15247: a leader that was paused and replaced ends leases that are no longer its own.
    let fixed = since(version, 31, 13);
    let correctness = correctness(version, voters);
    let after_crash = match &correctness {
        Correctness::Fit => Kept::both("every grant is synced on a majority before it is answered"),
        Correctness::Unfit { .. } => {
            Kept::neither("a crash may lose acknowledged grants: see \"for correctness\"")
        }
    };
    let faults = Faults {
        holder_crash: Kept::both("the lock is free when the lease has ended"),
        holder_pause: Kept::both(
            "the lease ends, and the guard learns it on waking; fence the resource",
        ),
        store_crash: after_crash,
        failover: if voters == 1 {
            Kept::not_applicable("it has one member")
        } else if fixed {
            Kept::both("a new leader gives every lease its full time again")
        } else {
            // The page has the rest: which versions, and what to do.
            Kept::tokens_only("a leader that was paused may end live leases: fence the resource")
        },
        clock_jump: Kept::both("leases use a monotonic clock"),
        partition: Kept::both(
            "a guard that is cut off is lost before its lease ends; without a quorum nobody is \
                 granted",
        ),
        data_loss: Kept::neither(
            "a restored backup has its old revisions: held locks are lost, and tokens fall",
        ),
    };
    Guarantees::new("etcd", faults)
        .with_layout(LAYOUT)
        .with_scope("every client of this cluster, third-party clients included")
        .with_records(Records::like(&correctness))
        .with_correctness(correctness)
        .with_fifo(true)
        .with_wake("each waiter watches the one before it")
        .with_clock("the monotonic clock of the cluster's leader")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarantees::Holds;

    #[test]
    fn guarantees_depend_on_the_version() {
        let fit = |version, voters| guarantees_of(version, voters).correctness == Correctness::Fit;
        assert!(fit("3.4.23", 1) && fit("3.5.5", 1) && fit("3.6.0-rc.1", 1) && fit("3.4.20", 3));
        for (version, voters) in [("3.4.20", 1), ("3.5.4", 1), ("3.5.2", 3), ("", 3), ("x", 3)] {
            assert!(!fit(version, voters), "{version}");
        }
        let failover = |version| guarantees_of(version, 3).faults.failover.exclusion;
        for version in ["3.4.31", "3.5.13", "3.6.1", "4.0.0"] {
            assert_eq!(failover(version), Holds::Yes, "{version}");
        }
        for version in ["3.4.30", "3.5.12", "3.3.99", ""] {
            assert_eq!(failover(version), Holds::No, "{version}");
        }
    }

    #[test]
    fn version_that_can_lose_writes_in_a_crash_declares_it() {
        let after_crash = |version, voters| {
            let kept = guarantees_of(version, voters).faults.store_crash;
            (kept.exclusion, kept.tokens)
        };
        for (version, voters) in [("3.4.20", 1), ("3.5.4", 1), ("3.5.2", 3), ("", 3)] {
            assert_eq!(after_crash(version, voters), (Holds::No, Holds::No), "{version}");
        }
        assert_eq!(after_crash("3.4.20", 3), (Holds::Yes, Holds::Yes));
    }
}
