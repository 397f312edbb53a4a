//! What several servers keep under which fault.

use fencepost_core::Ttl;

use super::Redlock;
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};

pub(super) fn read(redlock: &Redlock) -> Guarantees {
    let nodes = redlock.nodes.connections().map(|connection| {
        let state = connection.down().unwrap_or_else(|| "connected".to_owned());
        ("node", format!("{}: {state}", connection.shown()))
    });
    let mut found: Vec<_> = nodes.collect();
    found.extend(redlock.even().map(|warning| ("warning", warning)));
    found.extend(redlock.subscriber.lines());
    Guarantees { found, longest: redlock.max_ttl, ..guarantees() }
}

fn guarantees() -> Guarantees {
    let neither = |note| Kept { exclusion: Holds::No, tokens: Holds::No, note };
    Guarantees {
        backend: "redlock",
        scope: "all who use these servers, other Redlock clients included",
        correctness: Correctness::Unfit {
            why:
                "its exclusion rests on the clocks and the memory of several servers, and nothing \
                  tells when they fail it"
                    .into(),
            remedy:
                "fence the resource with the token, or use a store that is fit: sqlite: on one \
                     host, or one synced redis:"
                    .into(),
        },
        fifo: false,
        wake: "a release tells who waited first at each node; all try again after a random time, 250 \
               ms at most",
        clock: "the wall clocks of a majority of the nodes",
        longest: Ttl::MAX,
        lengthens: true,
        records: Records::None {
            why:
                "its servers know nothing of each other, so none has the last word on what was done"
                    .into(),
            remedy: "use one synced redis:, or any other store".into(),
        },
        found: Vec::new(),
        under: [
            Kept::both("the lock is free when the lease has run out"),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            Kept::both(
                "up to (N-1)/2 nodes: the others decide; a restarted one does not vote for max_ttl",
            ),
            neither(
                "a replica in a node's place may lack a vote and its mark; then tokens can fall",
            ),
            neither(
                "keys of nodes that jump end early; ahead past the retention, then back: tokens can fall",
            ),
            Kept::both(
                "without a majority nobody is granted; a holder that is cut off is told in time",
            ),
            neither(
                "a majority that is wiped grants again; tokens rise only if its clocks are right",
            ),
        ],
    }
}
