//! Our end of the watchdog: starts it, tells it the deadlines, and starts another one if it is killed.

use std::io;
use std::os::fd::{AsFd as _, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use rustix::process::{Pid, Signal, kill_process};

use super::watchdog;
use crate::sys;
use crate::watchdog_record::Record;

/// How long a watchdog may take to end once it was told that all is done.
const PATIENCE: Duration = Duration::from_secs(1);

/// A running watchdog.
pub(crate) struct Leash {
    process: Child,
    pipe: OwnedFd,
}

/// How a watchdog stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Standing {
    /// It watches.
    Watching,
    /// It killed the group, saw it gone, and ended.
    Acted,
    /// It ended without having been told to: somebody killed it.
    Gone,
}

impl Leash {
    /// Starts a watchdog for the lock `name`. It keeps `presence` open until it ends, so that nobody
    /// takes the holder for gone while anything of its group may still run.
    pub(crate) fn start(name: &str, presence: Option<BorrowedFd<'_>>) -> io::Result<Self> {
        // Not blocking on either end: the watchdog waits in poll, and if it is stuck so that the pipe
        // fills up, we want an error and not to be stuck as well.
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

    /// Tells it something. An error means that it is gone or stuck.
    pub(crate) fn tell(&self, record: Record) -> io::Result<()> {
        rustix::io::write(&self.pipe, &record.to_bytes())?;
        Ok(())
    }

    /// Continues it, in case somebody stopped it: a stopped watchdog watches nothing.
    pub(crate) fn wake(&self) {
        // It is our child and not reaped before it is asked how it stands: the number is its own.
        let _ = kill_process(Pid::from_child(&self.process), Signal::CONT);
    }

    /// A copy of our end of the pipe, for the command's process to announce itself.
    pub(crate) fn pipe(&self) -> io::Result<OwnedFd> {
        self.pipe.as_fd().try_clone_to_owned()
    }

    /// Whether it still watches.
    pub(crate) fn standing(&mut self) -> Standing {
        match self.process.try_wait() {
            Ok(None) => Standing::Watching,
            Ok(Some(status)) if status.code() == Some(watchdog::ACTED.into()) => Standing::Acted,
            _ => Standing::Gone,
        }
    }

    /// Ends it: nothing is left to watch. When this returns it can not send signals any more, so the
    /// group's number may be given back.
    pub(crate) async fn done(mut self) {
        let told = self.tell(Record::Done);
        let give_up = BootClock.now() + PATIENCE;
        let mut gap = Duration::from_micros(200);
        while told.is_ok() && self.standing() == Standing::Watching && BootClock.now() < give_up {
            BootClock.alarm(BootClock.now() + gap).await;
            gap = (gap * 2).min(Duration::from_millis(20));
        }
        self.put_down();
    }

    /// Ends it the hard way, if it has not ended by itself.
    pub(crate) fn put_down(mut self) {
        // Both fail only if it has ended already.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program we are, even if its file was replaced since we started.
pub(crate) fn own_program() -> io::Result<std::path::PathBuf> {
    let link = std::path::Path::new("/proc/self/exe");
    if link.exists() { Ok(link.to_owned()) } else { std::env::current_exe() }
}
