//! The command's process group: sends it signals and knows whether anything of it still runs.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

/// A process group, told from a later one that got the same number.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    id: Pid,
    /// When its leader started, where the system says so.
    born: Option<u64>,
}

impl Group {
    /// The group whose leader is `id`, now.
    pub(crate) fn led_by(id: Pid) -> Self {
        Self { id, born: Stat::of(id.as_raw_nonzero().get()).map(|stat| stat.started) }
    }

    /// Its number.
    pub(crate) const fn id(&self) -> Pid {
        self.id
    }

    /// Sends `signal` to every member. An empty group is no error.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.is_ours() {
            // It may be gone, or not ours to signal (it became another user): then we can only wait.
            let _ = kill_process_group(self.id, signal);
        }
    }

    /// Asks every member to end, also one that is stopped.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Whether nothing of the group runs any more, so that it stays so. A look alone can miss a process that
    /// forks and exits between the listing and its entry; after a KILL nobody can fork, so a second look
    /// misses nobody. It is sent only if the first look found the group empty.
    pub(crate) fn is_gone(&self) -> bool {
        if self.alive() {
            return false;
        }
        self.signal(Signal::KILL);
        !self.alive()
    }

    /// Whether anything of the group still runs. A zombie does not.
    pub(crate) fn alive(&self) -> bool {
        if !self.is_ours() || test_kill_process_group(self.id) == Err(Errno::SRCH) {
            return false;
        }
        // A zombie still counts for the test above, so we have to look closer.
        self.count_running() != Some(0)
    }

    /// How many members run; `None` where the system does not say.
    pub(crate) fn count_running(&self) -> Option<usize> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let processes = std::fs::read_dir("/proc").ok()?;
        let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let group = self.id.as_raw_nonzero().get();
        let runs =
            |id: &i32| Stat::of(*id).is_some_and(|stat| stat.group == group && stat.runs(*id));
        Some(ids.filter(runs).count())
    }

    /// A number can come back only after its group is empty, with a new process for a leader. If the
    /// leader is another one than ours, our group is gone.
    fn is_ours(&self) -> bool {
        match (self.born, Stat::of(self.id.as_raw_nonzero().get())) {
            (Some(born), Some(stat)) => born == stat.started,
            _ => true,
        }
    }
}

/// What `/proc/PID/stat` says of a process.
struct Stat {
    zombie: bool,
    group: i32,
    started: u64,
}

impl Stat {
    fn of(id: i32) -> Option<Self> {
        Self::parse(&std::fs::read(format!("/proc/{id}/stat")).ok()?)
    }

    fn parse(stat: &[u8]) -> Option<Self> {
        // The name stands in parentheses and may hold anything, parentheses too.
        let end = stat.iter().rposition(|byte| *byte == b')')?;
        let mut fields = std::str::from_utf8(stat.get(end + 1..)?).ok()?.split_ascii_whitespace();
        let state = fields.next()?;
        let group = fields.nth(1)?.parse().ok()?;
        let started = fields.nth(16)?.parse().ok()?;
        Some(Self { zombie: matches!(state, "Z" | "X" | "x"), group, started })
    }

    /// A process whose first thread has ended looks like a zombie while its other threads run.
    fn runs(&self, id: i32) -> bool {
        let threads = || std::fs::read_dir(format!("/proc/{id}/task")).map_or(0, Iterator::count);
        !self.zombie || threads() > 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_may_hold_anything() {
        let line = b"42 (a) R 1 (b)) Z 1 77 5 0 -1 4 0 0 0 0 1 2 3 4 20 0 1 0 98765 1 2 3\n";
        let stat = Stat::parse(line).unwrap();
        assert!(stat.zombie);
        assert_eq!((stat.group, stat.started), (77, 98765));
        assert!(Stat::parse(b"").is_none());
        assert!(Stat::parse(b"42 (x) R").is_none());
    }

    #[test]
    fn we_see_ourselves() {
        let own = rustix::process::getpgrp();
        assert!(Group::led_by(own).alive());
        assert!(Group::led_by(own).count_running() >= Some(1));
    }
}
