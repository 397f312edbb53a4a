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
    /// The modes it had, to be put back if the command dies without doing so.
    modes: Option<Termios>,
    /// Whether the command is to be its foreground group whenever we could be.
    pub(crate) lend: bool,
}

impl Terminal {
    /// The terminal on stdin, if it is one and it controls us.
    pub(crate) fn find() -> Option<Self> {
        if !std::io::stdin().is_terminal() {
            return None;
        }
        let own = getpgrp();
        let foreground = tcgetpgrp(stdin()).ok()? == own;
        // In a pipeline the next program may want the terminal too (`| less`). The command gets it
        // when it asks for it, not before.
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

    /// Hands it to the command. A terminal that went away is the command's to notice.
    pub(crate) fn give(group: &Group) {
        let _ = sys::set_foreground(stdin(), group.id());
    }

    /// Takes it back, unless somebody else has it by now.
    pub(crate) fn take_back(&self, group: &Group) {
        if Self::is_with(group) {
            let _ = sys::set_foreground(stdin(), self.own);
        }
    }

    /// Takes it back from a command that never came to be.
    pub(crate) fn reclaim(&self) {
        if self.lend && !self.is_ours() {
            let _ = sys::set_foreground(stdin(), self.own);
        }
    }

    /// Takes it back from a command that died by a signal and may have left it in disorder.
    pub(crate) fn take_back_and_tidy(&self, group: &Group) {
        self.take_back(group);
        if let (true, Some(modes)) = (self.is_ours(), &self.modes) {
            let _ = sys::set_modes(stdin(), modes);
        }
    }

    /// Stops ourselves as `signal` stopped the command, so that the shell behind us gets its prompt. In a
    /// group that no shell looks after the kernel ignores this, and rightly so.
    pub(crate) fn stop_ourselves(signal: Signal) {
        // We block SIGTTOU, and SIGSTOP would not ask whether anybody can continue us.
        let signal = if signal == Signal::TTIN { signal } else { Signal::TSTP };
        let _ = kill_process(getpid(), signal);
    }
}
