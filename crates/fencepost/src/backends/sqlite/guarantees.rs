//! What the file keeps, by where it lies and who shares it.

use std::path::Path;

use fencepost_core::Ttl;

use crate::disk::{Volatile, volatile_file_system, volatile_kind_of};
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};

/// What a file keeps that lies on a file system of this kind, by the number that `statfs` gives it.
#[must_use]
pub fn guarantees_of(magic: u64) -> Guarantees {
    table("the file", volatile_kind_of(magic), None)
}

/// What the file at `path` keeps, which a group shares if one is named.
pub(super) fn of(path: &Path, group: Option<String>) -> Guarantees {
    // Of a file that is not there yet: where it would be made.
    let volatile =
        path.ancestors().skip(1).find(|path| path.exists()).and_then(volatile_file_system);
    table(&path.display().to_string(), volatile, group)
}

fn table(file: &str, volatile: Option<Volatile>, group: Option<String>) -> Guarantees {
    let correctness = match volatile {
        None => Correctness::Fit,
        Some(Volatile { name, layer }) => Correctness::Unfit {
            why: format!(
                "{file} lies on {name}: {}, and tokens start at 1 again",
                if layer { "it ends with the container" } else { "a reboot empties it" }
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
