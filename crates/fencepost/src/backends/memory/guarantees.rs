//! What a store in this process's memory keeps.

use fencepost_core::Ttl;

use crate::guarantees::{Correctness, Guarantees, Kept, Records};

pub(super) fn table() -> Guarantees {
    let gone = "the store is in the process; it ends with it";
    let next = "it ends with the process; the next process starts at token 1";
    Guarantees {
        backend: "memory",
        scope: "one process",
        correctness: Correctness::Fit,
        fifo: true,
        wake: "a waiter is woken directly",
        clock: "CLOCK_BOOTTIME of this host",
        longest: Ttl::MAX,
        lengthens: true,
        records: Records::MayBeLost {
            why: "they are in this process's memory, and end with it".into(),
            remedy: "use sqlite: or a server".into(),
        },
        found: Vec::new(),
        under: [
            Kept::none_such(gone),
            Kept::both("the lease ends, the guard learns it on waking; fence the resource"),
            Kept::none_such(next),
            Kept::none_such("there is one copy"),
            Kept::both("wall clocks are not used"),
            Kept::none_such("there is no network"),
            Kept::none_such(gone),
        ],
    }
}
