//! What holds under which fault.

use fencepost_core::Ttl;

use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};

/// What an ensemble keeps that is fit for correctness, or not.
pub(super) fn of(correctness: Correctness) -> Guarantees {
    // What makes it unfit is sessions that may end before their guards know (server_info.rs).
    let in_time = match &correctness {
        Correctness::Fit => Kept::both(
            "a holder that is cut off is told before its session ends; without a quorum nobody \
             is granted",
        ),
        Correctness::Unfit { .. } => Kept {
            exclusion: Holds::No,
            tokens: Holds::Yes,
            note: "a session may end before its guard knows: see \"for correctness\"",
        },
    };
    Guarantees {
        backend: "zookeeper",
        scope: "all who use this ensemble and path, Curator's or kazoo's locks included",
        records: Records::like(&correctness),
        correctness,
        fifo: true,
        wake: "each waits for the one before it to go (a watch)",
        clock: "the leader's monotonic clock",
        longest: Ttl::MAX,
        lengthens: false,
        found: Vec::new(),
        under: [
            Kept::both(
                "the lock is free when its session has timed out: one and a half TTLs and a tick and a half at most; a failover starts it anew",
            ),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            Kept::both("every write is synced on a majority before it is answered"),
            // client/beat.rs says when.
            Kept {
                exclusion: Holds::No,
                tokens: Holds::Yes,
                note: "the new leader has every grant, and gives each session its whole timeout again; but a \
                       leader that stood still and goes on may end sessions early: fence the resource",
            },
            Kept::none_such("no lock goes by a wall clock; records are kept by the leader's"),
            in_time,
            Kept {
                exclusion: Holds::No,
                tokens: Holds::No,
                note: "servers restored from old data grant again, with old tokens",
            },
        ],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarantees::Fault;

    #[test]
    fn sessions_that_may_end_too_early_are_declared() {
        let unfit = Correctness::Unfit { why: String::new(), remedy: String::new() };
        for (correctness, exclusion) in [(Correctness::Fit, Holds::Yes), (unfit, Holds::No)] {
            let kept = of(correctness);
            let (_, partition) = kept.rows().find(|(it, _)| *it == Fault::Partition).unwrap();
            assert_eq!((partition.exclusion, partition.tokens), (exclusion, Holds::Yes));
            // A leader that stood still, whatever the limits are.
            let (_, failover) = kept.rows().find(|(it, _)| *it == Fault::Failover).unwrap();
            assert_eq!((failover.exclusion, failover.tokens), (Holds::No, Holds::Yes));
        }
    }
}
