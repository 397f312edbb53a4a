//! What the file keeps, by where it lies and who shares it.

use std::path::Path;

use fencepost_core::Ttl;

use crate::disk::{Volatile, volatile_file_system};
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};

/// The table of a file at `path`, shared by `group`.
pub(super) fn of(path: &Path, group: Option<String>) -> Guarantees {
    // Of a file that is not there yet: where it would be made.
    let volatile =
        path.ancestors().skip(1).find(|path| path.exists()).and_then(volatile_file_system);
    let correctness = match &volatile {
        None => Correctness::Fit,
        Some(Volatile { name, .. }) => Correctness::Unfit {
            why: format!(
                "{} lies on {name}: {}, and tokens start at 1 again",
                path.display(),
                end_of(volatile)
            ),
            remedy: "name a file on a disk (sqlite:PATH)".into(),
        },
    };
    Guarantees {
        backend: "sqlite",
        scope: match group {
            None => "your processes on this host",
            Some(_) => "the processes of one group's users on this host",
        },
        records: Records::like(&correctness),
        correctness,
        fifo: true,
        wake: "the oldest is notified through its Unix socket; all look again every 250 ms",
        clock: "CLOCK_BOOTTIME of this host",
        longest: Ttl::MAX,
        lengthens: true,
        found: group.map(|group| ("group", group)).into_iter().collect(),
        under: [
            Kept::both("the next is granted once the last process of the holder is gone"),
            Kept::both("the lease ends and the guard learns it on waking; fence the resource"),
            store_crash(volatile),
            Kept::none_such("there is one file; one of another machine is refused"),
            Kept::both("leases use no wall clock; records do: set forwards, they end early"),
            Kept::both("there is no network; a file that cannot be written grants nothing"),
            Kept {
                exclusion: Holds::No,
                tokens: Holds::No,
                note: "a file restored from a backup repeats tokens and old leases",
            },
        ],
    }
}

const fn end_of(volatile: Option<Volatile>) -> &'static str {
    match volatile {
        Some(Volatile { layer: true, .. }) => "it is gone with the container",
        _ => "a reboot empties it",
    }
}

/// The store ends with its host, or with its container; so do all holders.
fn store_crash(volatile: Option<Volatile>) -> Kept {
    let note = match volatile {
        None => {
            return Kept::both(
                "grants are synced before they are answered; after a reboot all leases are void",
            );
        }
        Some(Volatile { layer: true, .. }) => {
            "a new container has a new file: leases are void, tokens start at 1 again"
        }
        Some(_) => "a reboot empties the file system: leases are void, tokens start at 1 again",
    };
    Kept { exclusion: Holds::Yes, tokens: Holds::No, note }
}
