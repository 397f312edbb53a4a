//! The guarantees of a file, by its file system and who shares it.

use std::path::Path;

use super::layout::VERSION;
use crate::disk::{Volatile, volatile_file_system, volatile_kind_of};
use crate::guarantees::{Correctness, Faults, Guarantees, Kept, Records};

/// The guarantees of a file on this kind of file system, by the number that `statfs` returns for it.
#[must_use]
pub fn guarantees_of(magic: u64) -> Guarantees {
    table("the file", volatile_kind_of(magic), None)
}

/// The guarantees of the file at `path`, which a group shares if one is given.
pub(super) fn of(path: &Path, group: Option<String>) -> Guarantees {
    // For a file that does not exist yet: the directory in which it would be created.
    let volatile =
        path.ancestors().skip(1).find(|path| path.exists()).and_then(volatile_file_system);
    table(&path.display().to_string(), volatile, group)
}

fn table(file: &str, volatile: Option<Volatile>, group: Option<String>) -> Guarantees {
    let correctness = match volatile {
        None => Correctness::Fit,
        Some(Volatile { name, layer }) => Correctness::Unfit {
            why: format!(
                "{file} is on {name}: {}, and tokens start at 1 again",
                if layer { "it ends with the container" } else { "a reboot empties it" }
            ),
            remedy: "name a file on a disk (sqlite:PATH)".into(),
        },
    };
    let faults = Faults {
        holder_crash: Kept::both("the next is granted once the last process of the holder is gone"),
        holder_pause: Kept::both(
            "the lease ends, and the guard learns it on waking; fence the resource",
        ),
        store_crash: store_crash(volatile),
        failover: Kept::not_applicable("there is one file; one of another machine is refused"),
        clock_jump: Kept::both(
            "leases use no wall clock; records do: set forwards, they end early",
        ),
        partition: Kept::both("there is no network; a file that cannot be written grants nothing"),
        data_loss: Kept::neither("a file restored from a backup repeats tokens and old leases"),
    };
    Guarantees::new("sqlite", faults)
        .with_layout(VERSION.cast_unsigned())
        .with_scope(match group {
            None => "your processes on this host",
            Some(_) => "the processes of one group's users on this host",
        })
        .with_records(Records::like(&correctness))
        .with_correctness(correctness)
        .with_fifo(true)
        .with_wake("the oldest waiter is notified through its Unix socket; all poll every 250 ms")
        .with_clock("CLOCK_BOOTTIME of this host")
        .with_can_extend(true)
        .with_server_info(group.map(|group| ("group", group)).into_iter().collect())
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
    Kept::exclusion_only(note)
}
