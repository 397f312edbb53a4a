//! The machine, the boot and the clock that a lease in a file depends on.

use std::path::Path;

use crate::disk::network_file_system;
use crate::error::{Error, Result};

/// Deadlines in the file are readings of `CLOCK_BOOTTIME`. They are valid only on the machine, in the boot and in the
/// time namespace in which they were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) machine: String,
    pub(super) boot: String,
    pub(super) time_namespace: String,
}

impl Host {
    /// Whether times of one are valid for the other. The boot id is the kernel's, so it decides whatever the machine's
    /// name is: containers of one host have names of their own.
    pub(super) fn shares_clock_with(&self, other: &Self) -> bool {
        self.boot == other.boot && self.time_namespace == other.time_namespace
    }

    pub(super) fn this() -> Result<Self> {
        let boot = first_line("/proc/sys/kernel/random/boot_id").ok_or_else(|| {
            Error::refused(
                "this system does not report its boot id, so leases in a file cannot be trusted after \
                a reboot: use another store",
            )
        })?;
        let machine = first_line("/etc/machine-id")
            .or_else(|| first_line("/var/lib/dbus/machine-id"))
            // For a container without a machine id: a host with another name is another machine.
            .unwrap_or_else(|| format!("host {:?}", rustix::system::uname().nodename()));
        let time_namespace = std::fs::read_link("/proc/self/ns/time")
            .map(|link| link.to_string_lossy().into_owned())
            .unwrap_or_default();
        Ok(Self { machine, boot, time_namespace })
    }
}

fn first_line(path: &str) -> Option<String> {
    let text = std::fs::read_to_string(path).ok()?;
    text.lines().next().map(str::to_owned).filter(|line| !line.is_empty())
}

/// Refuses a directory whose files other machines may change.
pub(super) fn refuse_network_file_system(directory: &Path) -> Result<()> {
    match network_file_system(directory) {
        Some(name) => Err(Error::refused(format!(
            "{} is on {name}, and file locks do not exclude other machines there: name a file on \
             a local disk (sqlite:PATH)",
            directory.display()
        ))),
        None => Ok(()),
    }
}
