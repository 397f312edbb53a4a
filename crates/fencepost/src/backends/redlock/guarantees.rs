//! What several servers guarantee under which fault.

use super::Redlock;
use crate::backends::redis::LAYOUT;
use crate::guarantees::{Correctness, Faults, Guarantees, Kept, Records};

pub(super) fn read(redlock: &Redlock) -> Guarantees {
    let nodes = redlock.nodes.connections().map(|connection| {
        let state = connection.down().unwrap_or_else(|| "connected".to_owned());
        ("node", format!("{}: {state}", connection.shown()))
    });
    let mut server_info: Vec<_> = nodes.collect();
    server_info.extend(redlock.even().map(|warning| ("warning", warning)));
    server_info.extend(redlock.subscriber.lines());
    guarantees().with_server_info(server_info).with_max_ttl(redlock.max_ttl)
}

fn guarantees() -> Guarantees {
    let faults = Faults {
        holder_crash: Kept::both("the lock is free when the lease has ended"),
        holder_pause: Kept::both(
            "the lease ends, and the guard learns it on waking; fence the resource",
        ),
        store_crash: Kept::both(
            "up to (N-1)/2 nodes: the others decide; a restarted one does not vote for max_ttl",
        ),
        failover: Kept::neither(
            "a replica in a node's place may lack a vote and its last token; tokens can fall",
        ),
        clock_jump: Kept::neither(
            "keys of nodes that jump end early; ahead past the retention, then back: tokens can fall",
        ),
        partition: Kept::both(
            "without a majority nobody is granted; a holder that is cut off loses in time",
        ),
        data_loss: Kept::neither(
            "a majority that is wiped grants again; tokens rise only if its clocks are right",
        ),
    };
    Guarantees::new("redlock", faults)
        .with_layout(LAYOUT)
        .with_scope("every client of these servers, other Redlock clients included")
        .with_correctness(Correctness::Unfit {
            why:
                "its exclusion depends on the clocks and the memory of several servers, and it \
                  cannot detect when they fail"
                    .into(),
            remedy:
                "fence the resource with the token, or use a store that is fit: one synced redis:, \
                     or sqlite: on one host"
                    .into(),
        })
        .with_wake(
            "each node notifies its first waiter of a release; all retry after a random time, 250 ms at most",
        )
        .with_clock("the wall clocks of a majority of the nodes")
        .with_can_extend(true)
        .with_records(Records::None {
            why:
                "its servers are independent, so none of them can decide what was done"
                    .into(),
            remedy: "use one synced redis:, or any other store".into(),
        })
}
