//! File descriptors: each connection needs some, and a process may open only so many.
//!
//! What must hold: every accepted connection can be served. Without descriptors the gateway could neither connect to the
//! upstream nor buffer a body, and would refuse requests it has accepted.

use fencepost_base::{Error, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// For the gateway itself: listeners, marks, log, threads.
const OWN: u64 = 64;
/// Per connection: its socket, one to the upstream, a request and a response body on disk. HTTP/2 streams are not counted.
const PER_CONNECTION: u64 = 4;

/// Raises this process's limit as far as allowed, and returns how many of the wanted connections fit.
pub(crate) fn raise_file_limit(wanted: usize) -> Result<usize> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // If that fails, the current limit counts.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    // `None` is unlimited.
    match if raised { maximum } else { current } {
        None => Ok(wanted),
        Some(limit) => fit(limit, wanted),
    }
}

fn fit(limit: u64, wanted: usize) -> Result<usize> {
    match usize::try_from(limit.saturating_sub(OWN) / PER_CONNECTION).unwrap_or(usize::MAX) {
        0 => Err(Error::refused(format!(
            "a limit of {limit} open files is too low: allow more than {OWN} (ulimit -n, or LimitNOFILE= in \
             the systemd unit)"
        ))),
        fits => Ok(wanted.min(fits)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn connections_are_limited_by_the_open_files() {
        assert_eq!(fit(1_048_576, 4096).unwrap(), 4096);
        assert_eq!(fit(1024, 4096).unwrap(), 240);
        assert_eq!(fit(1024, 10).unwrap(), 10);
        assert!(fit(66, 10).unwrap_err().to_string().contains("ulimit -n"));
    }
}
