//! What an etcd keeps under which fault.

use fencepost_core::Ttl;

use super::server_info::{Version, version_of};
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};

/// What an etcd of this version keeps that this many vote on: `guarantees_of("3.5.13", 3)`.
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
            "its members did not tell their version, so nobody knows what it keeps",
            "try again when they answer",
        ),
        (3, 5, 0..3) => unfit(
            "members of etcd 3.5.0 to 3.5.2 can come to differ after a crash",
            "update it to 3.5.13 or later",
        ),
        _ if voters < 2 && !since(version, 21, 5) => unfit(
            "a single etcd before 3.4.21 and 3.5.5 can lose in a crash what it has answered \
             (etcd#14370)",
            "update it, or use three members",
        ),
        _ => Correctness::Fit,
    }
}

pub(super) fn guarantees(version: Version, voters: usize) -> Guarantees {
    // etcd#12528, #15247: a leader that stood still ends leases that are not its own any more.
    let mended = since(version, 31, 13);
    let correctness = correctness(version, voters);
    let after_crash = match &correctness {
        Correctness::Fit => Kept::both("every grant is synced on a majority before it is answered"),
        Correctness::Unfit { .. } => Kept {
            exclusion: Holds::No,
            tokens: Holds::No,
            note: "a crash may take back what was answered: see \"for correctness\"",
        },
    };
    Guarantees {
        backend: "etcd",
        scope: "all who use this cluster, other makes of client included",
        records: Records::like(&correctness),
        correctness,
        fifo: true,
        wake: "each waiter watches the one before it",
        clock: "the monotonic clock of the cluster's leader",
        longest: Ttl::MAX,
        lengthens: false,
        found: Vec::new(),
        under: [
            Kept::both("the lock is free when the lease has run out"),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            after_crash,
            if voters == 1 {
                Kept::none_such("it has one member")
            } else if mended {
                Kept::both("a new leader gives every lease its full time again")
            } else {
                Kept {
                    exclusion: Holds::No,
                    tokens: Holds::Yes,
                    note: "a new leader gives every lease its full time again; but a leader that stood \
                           still and was replaced may end live leases when it wakes: fence the resource, \
                           or update to 3.4.31, 3.5.13 or later",
                }
            },
            Kept::both("leases are counted on a monotonic clock"),
            Kept::both(
                "a holder that is cut off is told before its lease ends; without a quorum nobody is \
                 granted",
            ),
            Kept {
                exclusion: Holds::No,
                tokens: Holds::No,
                note: "a restored backup has its old revisions: held locks are forgotten and tokens fall",
            },
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_kept_depends_on_the_version() {
        let fit = |version, voters| guarantees_of(version, voters).correctness == Correctness::Fit;
        assert!(fit("3.4.23", 1) && fit("3.5.5", 1) && fit("3.6.0-rc.1", 1) && fit("3.4.20", 3));
        for (version, voters) in [("3.4.20", 1), ("3.5.4", 1), ("3.5.2", 3), ("", 3), ("x", 3)] {
            assert!(!fit(version, voters), "{version}");
        }
        let failover = |version| guarantees_of(version, 3).under[3].exclusion;
        for version in ["3.4.31", "3.5.13", "3.6.1", "4.0.0"] {
            assert_eq!(failover(version), Holds::Yes, "{version}");
        }
        for version in ["3.4.30", "3.5.12", "3.3.99", ""] {
            assert_eq!(failover(version), Holds::No, "{version}");
        }
    }

    #[test]
    fn a_version_that_may_forget_in_a_crash_declares_it() {
        let after_crash = |version, voters| {
            let kept = guarantees_of(version, voters).under[2];
            (kept.exclusion, kept.tokens)
        };
        for (version, voters) in [("3.4.20", 1), ("3.5.4", 1), ("3.5.2", 3), ("", 3)] {
            assert_eq!(after_crash(version, voters), (Holds::No, Holds::No), "{version}");
        }
        assert_eq!(after_crash("3.4.20", 3), (Holds::Yes, Holds::Yes));
    }
}
