//! Open files: each connection needs some, and a process may have only so many.
//!
//! What must hold: as many connections as are accepted can be served. Without files the proxy could reach no upstream and
//! keep no body, and would refuse those it has already taken in.

use fencepost_base::{Error, Result};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// What the proxy itself needs: listeners, marks, log, threads.
const OWN: u64 = 64;
/// A connection's: its own, one to the upstream, a body and an answer on disk. The streams of HTTP/2 are not counted one by
/// one.
const PER_CONNECTION: u64 = 4;

/// Raises the limit of this process as far as it is allowed to, and says how many of the wanted connections fit.
pub(crate) fn make_room(wanted: usize) -> Result<usize> {
    let Rlimit { current, maximum } = getrlimit(Resource::Nofile);
    // If it can not be raised, what there is counts.
    let raised = setrlimit(Resource::Nofile, Rlimit { current: maximum, maximum }).is_ok();
    // None is no limit.
    match if raised { maximum } else { current } {
        None => Ok(wanted),
        Some(limit) => fit(limit, wanted),
    }
}

fn fit(limit: u64, wanted: usize) -> Result<usize> {
    match usize::try_from(limit.saturating_sub(OWN) / PER_CONNECTION).unwrap_or(usize::MAX) {
        0 => Err(Error::refused(format!(
            "{limit} open files are too few: allow more than {OWN} (ulimit -n, or LimitNOFILE= of a unit)"
        ))),
        fits => Ok(wanted.min(fits)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_more_connections_than_files() {
        assert_eq!(fit(1_048_576, 4096).unwrap(), 4096);
        assert_eq!(fit(1024, 4096).unwrap(), 240);
        assert_eq!(fit(1024, 10).unwrap(), 10);
        assert!(fit(66, 10).unwrap_err().to_string().contains("ulimit -n"));
    }
}
