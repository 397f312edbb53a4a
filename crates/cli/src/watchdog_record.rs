//! The records that `run` sends its watchdog through the pipe: 24 bytes each, numbers in native byte order.
//!
//! ```text
//! byte   0        1        2        3
//!   0    kind     0 0 0 0 0 0 0
//!   8    u64      group: the process group id   deadline: TERM from here on (BOOTTIME, ns)
//!  16    u64      group: 0                      deadline: KILL from here on (BOOTTIME, ns)
//!
//! kind 1 = group, 2 = deadline (replaces the last one)
//! ```
//!
//! Writer and reader are the same program on the same machine. 24 bytes are below `PIPE_BUF`, so the
//! kernel writes a record whole or not at all.

use fencepost::Moment;
use rustix::process::Pid;

/// A record for the watchdog.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Record {
    /// The process group to end. The command's own process writes it before exec.
    Group(Pid),
    /// When to send TERM and KILL to the group.
    Deadline { term_at: Moment, kill_at: Moment },
}

impl Record {
    /// The length of every record.
    pub(crate) const BYTES: usize = 24;

    /// Allocates nothing: this is called between fork and exec.
    pub(crate) fn to_bytes(self) -> [u8; Self::BYTES] {
        let (kind, first, second) = match self {
            Self::Group(id) => (1, u64::from(id.as_raw_nonzero().get().unsigned_abs()), 0),
            Self::Deadline { term_at, kill_at } => (2, term_at.as_nanos(), kill_at.as_nanos()),
        };
        let mut bytes = [0; Self::BYTES];
        bytes[0] = kind;
        bytes[8..16].copy_from_slice(&first.to_ne_bytes());
        bytes[16..24].copy_from_slice(&second.to_ne_bytes());
        bytes
    }

    /// `None` if `bytes` is not a valid record.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let number = |at: usize| Some(u64::from_ne_bytes(bytes.get(at..at + 8)?.try_into().ok()?));
        let (first, second) = (number(8)?, number(16)?);
        match *bytes.first()? {
            // 0 and 1 are never the command's group: a signal to them would reach other processes.
            1 => Pid::from_raw(i32::try_from(first).ok().filter(|id| *id > 1)?).map(Self::Group),
            2 => Some(Self::Deadline {
                term_at: Moment::from_nanos(first),
                kill_at: Moment::from_nanos(second),
            }),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_round_trip() {
        for record in [
            Record::Group(Pid::from_raw(4711).unwrap()),
            Record::Deadline { term_at: Moment::from_nanos(5), kill_at: Moment::NEVER },
        ] {
            assert_eq!(Record::from_bytes(&record.to_bytes()), Some(record));
        }
    }

    #[test]
    fn group_ids_0_and_1_are_refused() {
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
