//! What a store in this process's memory keeps.

use crate::guarantees::{Correctness, Faults, Guarantees, Kept, Records};

pub(super) fn table() -> Guarantees {
    let gone = "the store is in the process; it ends with it";
    let next = "it ends with the process; the next process starts at token 1";
    let faults = Faults {
        holder_crash: Kept::not_applicable(gone),
        holder_pause: Kept::both(
            "the lease ends, and the guard learns it on waking; fence the resource",
        ),
        store_crash: Kept::not_applicable(next),
        failover: Kept::not_applicable("there is one copy"),
        clock_jump: Kept::both("wall clocks are not used"),
        partition: Kept::not_applicable("there is no network"),
        data_loss: Kept::not_applicable(gone),
    };
    Guarantees::new("memory", faults)
        .with_scope("one process")
        .with_correctness(Correctness::Fit)
        .with_fifo(true)
        .with_wake("a waiter is woken directly")
        .with_clock("CLOCK_BOOTTIME of this host")
        .with_can_extend(true)
        .with_records(Records::MayBeLost {
            why: "they are in this process's memory, and end with it".into(),
            remedy: "use sqlite: or a server".into(),
        })
}
