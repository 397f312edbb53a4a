//! The terminal on stdin, lent to the command while it runs.

use std::io::IsTerminal as _;

use rustix::fs::{FileType, fstat};
use rustix::process::{Pid, Signal, getpgrp, getpid, kill_process};
use rustix::stdio::{stdin, stdout};
use rustix::termios::{Termios, tcgetattr, tcgetpgrp};

use super::group::Group;
use crate::sys;

/// Our controlling terminal.
pub(crate) struct Terminal {
    own: Pid,
    /// Its modes at the start, restored if the command dies by a signal.
    modes: Option<Termios>,
    /// Whether the command becomes the foreground group in our place.
    pub(crate) lend: bool,
}

impl Terminal {
    /// The terminal on stdin, if stdin is our controlling terminal.
    pub(crate) fn find() -> Option<Self> {
        if !std::io::stdin().is_terminal() {
            return None;
        }
        let own = getpgrp();
        let foreground = tcgetpgrp(stdin()).ok()? == own;
        // In a pipeline the next program may read the terminal too (`| less`), so lend it only when the command reads.
        let piped =
            fstat(stdout()).is_ok_and(|stat| FileType::from_raw_mode(stat.st_mode).is_fifo());
        sys::write_from_the_background();
        Some(Self { own, modes: tcgetattr(stdin()).ok(), lend: foreground && !piped })
    }

    /// Whether we are its foreground group.
    pub(crate) fn is_ours(&self) -> bool {
        tcgetpgrp(stdin()) == Ok(self.own)
    }

    /// Whether `group` is its foreground group.
    pub(crate) fn is_with(group: &Group) -> bool {
        tcgetpgrp(stdin()) == Ok(group.id())
    }

    /// Lends it to the command. If the terminal is gone, the command notices that itself.
    pub(crate) fn lend_to(group: &Group) {
        let _ = sys::set_foreground(stdin(), group.id());
    }

    /// Takes it back, unless a third group has it by now.
    pub(crate) fn take_back(&self, group: &Group) {
        if Self::is_with(group) {
            let _ = sys::set_foreground(stdin(), self.own);
        }
    }

    /// Takes it back after a command could not be started.
    pub(crate) fn reclaim(&self) {
        if self.lend && !self.is_ours() {
            let _ = sys::set_foreground(stdin(), self.own);
        }
    }

    /// Takes it back from a command that died by a signal, and restores its modes.
    pub(crate) fn take_back_and_restore(&self, group: &Group) {
        self.take_back(group);
        if let (true, Some(modes)) = (self.is_ours(), &self.modes) {
            let _ = sys::set_modes(stdin(), modes);
        }
    }

    /// Stops this process as `signal` stopped the command, so that the shell shows its prompt. The kernel ignores this
    /// in a group without a job-control shell, which could not continue it.
    pub(crate) fn stop_self(signal: Signal) {
        // Not TTOU, which is blocked here, and not STOP, which the kernel never ignores.
        let signal = if signal == Signal::TTIN { signal } else { Signal::TSTP };
        let _ = kill_process(getpid(), signal);
    }
}
