//! What locks on a server keep, by its settings.

use fencepost_core::Ttl;

use super::server_info::Found;
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};

pub(super) fn of(found: &Found) -> Guarantees {
    Guarantees {
        records: Records::like(&found.correctness()),
        correctness: found.correctness(),
        found: found.lines(),
        ..table(found.synced(), found.alone(), found.in_step())
    }
}

/// What a server keeps that syncs every commit, or does not; that has no standbys, or only such as have every
/// commit before it is answered.
fn table(synced: bool, alone: bool, in_step: bool) -> Guarantees {
    let neither = |note| Kept { exclusion: Holds::No, tokens: Holds::No, note };
    Guarantees {
        backend: "postgres",
        scope: "all who use this database",
        correctness: Correctness::Fit,
        fifo: true,
        wake: "a release tells the first in line (NOTIFY); all look again every 250 ms",
        clock: "the server's wall clock",
        longest: Ttl::MAX,
        lengthens: true,
        records: Records::Kept,
        found: Vec::new(),
        under: [
            Kept::both("the lock is free when the lease has run out"),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            if synced {
                Kept::both("every grant is synced before it is answered")
            } else {
                neither("the last grants are forgotten, and their tokens drawn again")
            },
            if alone {
                Kept::none_such("it has no standbys")
            } else if in_step {
                Kept::both("every standby has a grant before it is answered")
            } else {
                neither(
                    "a standby without the last commits grants again, and draws their tokens again",
                )
            },
            Kept {
                exclusion: Holds::No,
                tokens: Holds::Yes,
                note: "forwards: leases and records end early; backwards: late",
            },
            Kept::both(
                "a holder that is cut off is told before its lease ends; nobody else is granted",
            ),
            neither(
                "a restored backup has its old sequence: held locks are forgotten and tokens fall",
            ),
        ],
    }
}
