//! The command's process group: sends it signals, and checks whether any of its processes still run.

use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group, test_kill_process_group};

use crate::sys;

/// A process group. It is distinguished from a later one with the same id.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Group {
    id: Pid,
    /// The start time of its leader, if the system provides it.
    leader_started: Option<u64>,
}

impl Group {
    /// The group whose leader is now `id`.
    pub(crate) fn led_by(id: Pid) -> Self {
        Self { id, leader_started: Stat::of(id.as_raw_nonzero().get()).map(|stat| stat.started) }
    }

    pub(crate) const fn id(&self) -> Pid {
        self.id
    }

    /// Sends `signal` to every process. An empty group is not an error.
    pub(crate) fn signal(&self, signal: Signal) {
        if self.is_same_group() {
            // This fails if the group is gone, or runs as another user: then we can only wait.
            let _ = kill_process_group(self.id, signal);
        }
    }

    /// Asks every process to end, even one that is stopped.
    pub(crate) fn terminate(&self) {
        self.signal(Signal::TERM);
        self.signal(Signal::CONT);
    }

    /// Whether no process of the group runs, now and later. One listing can miss a process that forks and exits while
    /// the processes are listed. After a KILL no process can fork, so a second listing misses none. The KILL is sent
    /// only if the first listing found the group empty.
    pub(crate) fn is_gone(&self) -> bool {
        if self.alive() {
            return false;
        }
        self.signal(Signal::KILL);
        !self.alive()
    }

    /// Whether a process of the group runs. Zombies do not count.
    pub(crate) fn alive(&self) -> bool {
        if !self.is_same_group() || test_kill_process_group(self.id) == Err(Errno::SRCH) {
            return false;
        }
        // The test above counts zombies, so count the running processes.
        self.count_running() != Some(0)
    }

    /// The number of running processes; `None` if the system does not provide it.
    pub(crate) fn count_running(&self) -> Option<usize> {
        if !cfg!(target_os = "linux") {
            return None;
        }
        let processes = std::fs::read_dir("/proc").ok()?;
        let ids = processes.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
        let group = self.id.as_raw_nonzero().get();
        // Asked first, of every process of the machine: its stat takes the kernel ten times as long.
        let elsewhere = |id: i32| match sys::group_of(id) {
            Ok(found) => found != group,
            // Another error says nothing about its group.
            Err(error) => error.raw_os_error() == Some(libc::ESRCH),
        };
        let runs = |id: i32| Stat::of(id).is_some_and(|stat| stat.group == group && stat.runs(id));
        Some(ids.filter(|id| !elsewhere(*id) && runs(*id)).count())
    }

    /// The id can be used again only after the group is empty, and then with a new leader. So if the leader has another
    /// start time, the group is gone.
    fn is_same_group(&self) -> bool {
        match (self.leader_started, Stat::of(self.id.as_raw_nonzero().get())) {
            (Some(started), Some(stat)) => started == stat.started,
            _ => true,
        }
    }
}

/// Fields of `/proc/PID/stat`.
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
        // The process name is in parentheses, and can contain parentheses itself.
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
    fn process_name_can_contain_any_character() {
        let line = b"42 (a) R 1 (b)) Z 1 77 5 0 -1 4 0 0 0 0 1 2 3 4 20 0 1 0 98765 1 2 3\n";
        let stat = Stat::parse(line).unwrap();
        assert!(stat.zombie);
        assert_eq!((stat.group, stat.started), (77, 98765));
        assert!(Stat::parse(b"").is_none());
        assert!(Stat::parse(b"42 (x) R").is_none());
    }

    #[test]
    fn own_process_group_is_alive() {
        let own = rustix::process::getpgrp();
        assert!(Group::led_by(own).alive());
        assert!(Group::led_by(own).count_running() >= Some(1));
    }

    #[test]
    fn only_running_processes_of_the_group_count() {
        use std::os::unix::process::CommandExt as _;
        let mut sleep = std::process::Command::new("sleep");
        let mut leader = sleep.arg("1000").process_group(0).spawn().unwrap();
        let group = Group::led_by(Pid::from_child(&leader));
        assert_eq!((group.count_running(), group.is_gone()), (Some(1), false));
        group.signal(Signal::KILL);
        let ended = rustix::process::WaitIdOptions::EXITED | rustix::process::WaitIdOptions::NOWAIT;
        rustix::process::waitid(rustix::process::WaitId::Pid(group.id()), ended).unwrap();
        // A zombie is left.
        assert_eq!((group.count_running(), group.is_gone()), (Some(0), true));
        leader.wait().unwrap();
    }
}
