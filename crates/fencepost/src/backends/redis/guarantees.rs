//! What one server keeps under which fault, by the settings that were read of it.

use fencepost_core::Ttl;

use super::Redis;
use super::server_info::Found;
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};

pub(super) fn read(redis: &Redis) -> Guarantees {
    let found = redis.connection.found();
    let (synced, alone) =
        found.as_ref().map_or((false, false), |found| (found.synced(), found.alone()));
    let correctness = found.as_ref().map_or_else(
        || Correctness::Unfit {
            why: format!(
                "{} can not be reached, so nobody knows what it keeps",
                redis.connection.shown()
            ),
            remedy: "try again when it is back".into(),
        },
        Found::correctness,
    );
    let mut lines = found.map_or_else(Vec::new, |found| found.lines(redis.connection.jumps()));
    lines.extend(redis.subscriber.lines());
    let records = Records::like(&correctness);
    Guarantees { correctness, records, found: lines, ..guarantees(synced, alone) }
}

/// What a server keeps that syncs every write, or does not, and that has no replicas, or may have.
fn guarantees(synced: bool, alone: bool) -> Guarantees {
    let tokens_only = |note| Kept { exclusion: Holds::No, tokens: Holds::Yes, note };
    let neither = |note| Kept { exclusion: Holds::No, tokens: Holds::No, note };
    Guarantees {
        backend: "redis",
        scope: "all who use this server and database, other makes of client included",
        correctness: Correctness::Fit,
        fifo: true,
        wake: "a release tells the first in line; all look again every 250 ms; other makes of client \
               poll, and may overtake",
        clock: "the server's wall clock",
        longest: Ttl::MAX,
        lengthens: true,
        records: Records::Kept,
        found: Vec::new(),
        under: [
            Kept::both("the lock is free when the lease has run out"),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            if synced {
                Kept::both("every write is synced before it is answered")
            } else {
                tokens_only(
                    "held locks are forgotten; tokens rise unless the clock is behind as well",
                )
            },
            if alone {
                Kept::none_such("it has no replicas")
            } else {
                neither(
                    "a replica without the last writes grants again; tokens fall if its clock is behind",
                )
            },
            neither(
                "leases end early or late; ahead past the retention, then back: tokens can fall",
            ),
            Kept::both(
                "a holder that is cut off is told before its lease ends; nobody else is granted",
            ),
            tokens_only("held locks are forgotten; tokens rise unless the clock is behind as well"),
        ],
    }
}
