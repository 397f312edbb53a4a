//! What locks on a server guarantee, by its settings.

use super::schema::LOCKS;
use super::server_info::ServerInfo;
use crate::guarantees::{Correctness, Faults, Guarantees, Kept, Records};

pub(super) fn of(server_info: &ServerInfo) -> Guarantees {
    table(server_info.synced(), server_info.alone(), server_info.in_step())
        .with_records(Records::like(&server_info.correctness()))
        .with_correctness(server_info.correctness())
        .with_server_info(server_info.lines())
}

/// The guarantees of a server, by whether it syncs every commit, has no standbys, or has only standbys that have every
/// commit before the reply.
fn table(synced: bool, alone: bool, in_step: bool) -> Guarantees {
    let faults = Faults {
        holder_crash: Kept::both("the lock is free when the lease has ended"),
        holder_pause: Kept::both(
            "the lease ends, and the guard learns it on waking; fence the resource",
        ),
        store_crash: if synced {
            Kept::both("every grant is synced before it is answered")
        } else {
            Kept::neither("the last grants are lost, and their tokens are issued again")
        },
        failover: if alone {
            Kept::not_applicable("it has no standbys")
        } else if in_step {
            Kept::both("every standby has a grant before it is answered")
        } else {
            Kept::neither(
                "a standby without the last commits grants again, and issues their tokens again",
            )
        },
        clock_jump: Kept::tokens_only("forwards: leases and records end early; backwards: late"),
        partition: Kept::both(
            "a guard that is cut off is lost before its lease ends; nobody else is granted",
        ),
        data_loss: Kept::neither(
            "a restored backup has its old sequence: held locks are lost, and tokens fall",
        ),
    };
    Guarantees::new("postgres", faults)
        .with_layout(LOCKS.version.cast_unsigned())
        .with_scope("every client of this database")
        .with_correctness(Correctness::Fit)
        .with_fifo(true)
        .with_wake("a release notifies the first waiter (NOTIFY); all poll every 250 ms")
        .with_clock("the server's wall clock")
        .with_can_extend(true)
        .with_records(Records::Kept)
}
