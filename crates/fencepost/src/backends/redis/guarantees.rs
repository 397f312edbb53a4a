//! What one server guarantees under which fault, by its settings.

use super::Redis;
use super::error::LAYOUT;
use super::server_info::ServerInfo;
use crate::guarantees::{Correctness, Faults, Guarantees, Kept, Records};

pub(super) fn read(redis: &Redis) -> Guarantees {
    let server_info = redis.connection.server_info();
    let (synced, alone) = server_info
        .as_ref()
        .map_or((false, false), |server_info| (server_info.synced(), server_info.alone()));
    let correctness = server_info.as_ref().map_or_else(
        || Correctness::Unfit {
            why: format!(
                "{} cannot be reached, so its guarantees are unknown",
                redis.connection.shown()
            ),
            remedy: "retry when it is back".into(),
        },
        ServerInfo::correctness,
    );
    let mut lines = server_info
        .map_or_else(Vec::new, |server_info| server_info.lines(redis.connection.jumps()));
    lines.extend(redis.subscriber.lines());
    let records = Records::like(&correctness);
    guarantees(synced, alone)
        .with_correctness(correctness)
        .with_records(records)
        .with_server_info(lines)
}

/// The guarantees of a server, by whether it syncs every write and whether it has no replicas.
fn guarantees(synced: bool, alone: bool) -> Guarantees {
    let faults = Faults {
        holder_crash: Kept::both("the lock is free when the lease has ended"),
        holder_pause: Kept::both(
            "the lease ends, and the guard learns it on waking; fence the resource",
        ),
        store_crash: if synced {
            Kept::both("every write is synced before it is answered")
        } else {
            Kept::tokens_only("held locks are lost; tokens rise unless the clock is behind as well")
        },
        failover: if alone {
            Kept::not_applicable("it has no replicas")
        } else {
            Kept::neither(
                "a replica without the last writes grants again; tokens fall if its clock is behind",
            )
        },
        clock_jump: Kept::neither(
            "leases end early or late; ahead past the retention, then back: tokens can fall",
        ),
        partition: Kept::both(
            "a guard that is cut off is lost before its lease ends; nobody else is granted",
        ),
        data_loss: Kept::tokens_only(
            "held locks are lost; tokens rise unless the clock is behind as well",
        ),
    };
    Guarantees::new("redis", faults)
        .with_layout(LAYOUT)
        .with_scope("every client of this server and database, third-party clients included")
        .with_correctness(Correctness::Fit)
        .with_fifo(true)
        .with_wake(
            "a release notifies the first waiter; all poll every 250 ms; third-party clients may overtake",
        )
        .with_clock("the server's wall clock")
        .with_can_extend(true)
        .with_records(Records::Kept)
}
