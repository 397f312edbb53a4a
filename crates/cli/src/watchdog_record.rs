//! What `run` tells its watchdog through the pipe: records of 24 bytes, numbers in native byte order.
//!
//! ```text
//! byte   0        1        2        3
//!   0    kind     0 0 0 0 0 0 0
//!   8    u64      group: the process group id   deadline: TERM from here on (BOOTTIME, ns)
//!  16    u64      group: 0                      deadline: KILL from here on (BOOTTIME, ns)
//!
//! kind 1 = group, 2 = deadline (replaces the last one), 3 = done (both numbers 0)
//! ```
//!
//! Writer and reader are the same program on the same machine. 24 bytes are below `PIPE_BUF`, so the
//! kernel writes a record whole or not at all.

use fencepost::Moment;
use rustix::process::Pid;

/// One message to the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The process group to end. Written by the command's own process before it becomes the command.
    Group(Pid),
    /// When to end it.
    Deadline {
        /// Ask it to end from here on.
        term_at: Moment,
        /// Kill it from here on.
        kill_at: Moment,
    },
    /// There is nothing left to end.
    Done,
}

impl Record {
    /// The length of every record.
    pub(crate) const BYTES: usize = 24;

    /// The record as it goes through the pipe. Allocates nothing: it is made between fork and exec.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let (kind, first, second) = match self {
            Self::Group(id) => (1, u64::from(id.as_raw_nonzero().get().unsigned_abs()), 0),
            Self::Deadline { term_at, kill_at } => (2, term_at.as_nanos(), kill_at.as_nanos()),
            Self::Done => (3, 0, 0),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[0] = kind;
        bytes[8..16].copy_from_slice(&first.to_ne_bytes());
        bytes[16..24].copy_from_slice(&second.to_ne_bytes());
        bytes
    }

    /// The record in `bytes`; `None` if that is none.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let (first, second) = (number(8)?, number(16)?);
        match *bytes.first()? {
            // 0 and 1 are no group of ours: a signal to them would go to everybody.
            1 => Pid::from_raw(i32::try_from(first).ok().filter(|id| *id > 1)?).map(Self::Group),
            2 => Some(Self::Deadline {
                term_at: Moment::from_nanos(first),
                kill_at: Moment::from_nanos(second),
            }),
            3 => Some(Self::Done),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_come_back_as_they_went() {
        for record in [
            Record::Group(Pid::from_raw(4711).unwrap()),
            Record::Deadline { term_at: Moment::from_nanos(5), kill_at: Moment::NEVER },
            Record::Done,
        ] {
            assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        }
    }

    #[test]
    fn a_group_that_would_mean_everybody_is_refused() {
        for id in [0_u64, 1, u64::from(u32::MAX)] {
            let mut bytes = [0; Record::BYTES];
            bytes[0] = 1;
            bytes[8..16].copy_from_slice(&id.to_ne_bytes());
            assert_eq!(Record::from_bytes(&bytes), None, "{id}");
        }
        assert_eq!(Record::from_bytes(&[9; Record::BYTES]), None);
        assert_eq!(Record::from_bytes(&[3]), None);
    }
}
