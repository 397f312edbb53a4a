//! What holds under which fault.

use super::layout::LAYOUT;
use crate::guarantees::{Correctness, Faults, Guarantees, Kept, Records};

/// The guarantees of an ensemble that is fit for correctness, or not.
pub(super) fn of(correctness: Correctness) -> Guarantees {
    // It is unfit if sessions may end before their guards know (server_info.rs).
    let in_time = match &correctness {
        Correctness::Fit => Kept::both(
            "a guard that is cut off is lost before its session ends; without a quorum nobody \
             is granted",
        ),
        Correctness::Unfit { .. } => {
            Kept::tokens_only("a session may end before its guard knows: see \"for correctness\"")
        }
    };
    let faults = Faults {
        // The page says how long that takes.
        holder_crash: Kept::both("the lock is free when its session has timed out"),
        holder_pause: Kept::both(
            "the lease ends, and the guard learns it on waking; fence the resource",
        ),
        store_crash: Kept::both("every write is synced on a majority before it is answered"),
        // See client/lease_credit.rs.
        failover: Kept::tokens_only(
            "a leader that was paused may end live sessions: fence the resource",
        ),
        clock_jump: Kept::not_applicable(
            "no lock uses a wall clock; the retention of records uses the leader's",
        ),
        partition: in_time,
        data_loss: Kept::neither("servers restored from old data grant again, with old tokens"),
    };
    Guarantees::new("zookeeper", faults)
        .with_layout(LAYOUT)
        .with_scope("every client of this ensemble and path, Curator's or kazoo's locks included")
        .with_records(Records::like(&correctness))
        .with_correctness(correctness)
        .with_fifo(true)
        .with_wake("each waiter watches the one before it")
        .with_clock("the leader's monotonic clock")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::guarantees::{Fault, Holds};

    #[test]
    fn sessions_that_can_end_too_early_are_declared() {
        let unfit = Correctness::Unfit { why: String::new(), remedy: String::new() };
        for (correctness, exclusion) in [(Correctness::Fit, Holds::Yes), (unfit, Holds::No)] {
            let kept = of(correctness);
            let (_, partition) = kept.rows().find(|(it, _)| *it == Fault::Partition).unwrap();
            assert_eq!((partition.exclusion, partition.tokens), (exclusion, Holds::Yes));
            // A frozen leader can grant twice, whatever the limits are.
            let (_, failover) = kept.rows().find(|(it, _)| *it == Fault::Failover).unwrap();
            assert_eq!((failover.exclusion, failover.tokens), (Holds::No, Holds::Yes));
        }
    }
}
