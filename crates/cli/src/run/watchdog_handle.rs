//! The parent's handle of a watchdog: starts it, sends it records, and ends it.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use super::watchdog;
use crate::sys;
use crate::watchdog_record::Record;

/// A running watchdog.
pub(crate) struct WatchdogHandle {
    process: Child,
    pipe: OwnedFd,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WatchdogStatus {
    Watching,
    /// It killed the group, and ended when the group was gone.
    Acted,
    /// It was killed.
    Gone,
}

impl WatchdogHandle {
    /// Starts a watchdog for the lock `name`. It keeps `presence` open until it ends, so that the store does not take
    /// the holder for dead while a process of its group may still run.
    pub(crate) fn start(name: &str, presence: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        // Both ends are non-blocking: the watchdog waits in poll, and if it is stuck and the pipe is full, a write must
        // fail instead of blocking.
        let (inbox, pipe) = io::pipe()?;
        let (inbox, pipe) = (OwnedFd::from(inbox), OwnedFd::from(pipe));
        rustix::io::ioctl_fionbio(&inbox, true)?;
        rustix::io::ioctl_fionbio(&pipe, true)?;
        let presence = presence.map(|file| file.try_clone_to_owned()).transpose()?;
        let mut command = Command::new(own_program()?);
        command
            .arg0("fencepost")
            .args([watchdog::COMMAND, name])
            .current_dir("/")
            .stdin(Stdio::from(inbox))
            .stdout(Stdio::null());
        sys::prepare_watchdog(&mut command, presence);
        Ok(Self { process: command.spawn()?, pipe })
    }

    /// Sends a record. An error means that the watchdog is gone or stuck.
    pub(crate) fn send(&self, record: Record) -> io::Result<()> {
        rustix::io::write(&self.pipe, &record.to_bytes())?;
        Ok(())
    }

    /// Continues it, in case it was stopped: a stopped watchdog cannot end the group.
    pub(crate) fn wake(&self) {
        // The child is not reaped yet, so no other process has its id.
        let _ = kill_process(Pid::from_child(&self.process), Signal::CONT);
    }

    /// A copy of our end of the pipe, through which the command's process sends its group.
    pub(crate) fn pipe(&self) -> io::Result<OwnedFd> {
        self.pipe.as_fd().try_clone_to_owned()
    }

    pub(crate) fn status(&mut self) -> WatchdogStatus {
        match self.process.try_wait() {
            Ok(None) => WatchdogStatus::Watching,
            Ok(Some(status)) if status.code() == Some(watchdog::ACTED.into()) => {
                WatchdogStatus::Acted
            }
            _ => WatchdogStatus::Gone,
        }
    }

    /// Ends it, when the group is gone or it is stuck. After this it cannot send signals, so the group's id can be freed.
    /// It is killed because it may be starting still: it would end by itself only after that.
    pub(crate) fn kill(mut self) {
        // Both fail only if it has already ended.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The path of this program, valid even if the file was replaced since the start.
pub(crate) fn own_program() -> io::Result<std::path::PathBuf> {
    let link = std::path::Path::new("/proc/self/exe");
    if link.exists() { Ok(link.to_owned()) } else { std::env::current_exe() }
}
