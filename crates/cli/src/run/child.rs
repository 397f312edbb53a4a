//! The command's own process.

use std::io;
use std::process::{Child, Command};

use fencepost::Guard;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, waitid};

use super::Job;
use crate::exit::{self, Failure};
use crate::sys::{self, ChildSetup};

/// The process of a command that was started.
pub(crate) struct Spawned {
    process: Child,
    id: Pid,
}

/// How the command ended: with an exit code, or by a signal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    Exited(i32),
    Killed(i32),
}

impl Ended {
    /// The exit code for fencepost itself.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Exited(code) => u8::try_from(code).unwrap_or(u8::MAX),
            Self::Killed(signal) => exit::signal_code(signal),
        }
    }
}

impl Spawned {
    /// Starts the command. Call it on the main thread: the kernel kills the command when this thread ends.
    pub(crate) fn start(
        guard: &Guard,
        job: Job<'_>,
        setup: impl FnOnce(Pid) -> io::Result<ChildSetup>,
    ) -> Result<Self, Failure> {
        let line = job.command.split_first();
        let (program, arguments) =
            line.ok_or_else(|| Failure::usage("no command is given after `--`"))?;
        let mut command = Command::new(program);
        command
            .args(arguments)
            .env("FENCEPOST_NAME", guard.name().as_str())
            // It is the command's to pass to a fence.
            .env("FENCEPOST_TOKEN", guard.fencing().token().to_string())
            .env("FENCEPOST_URL", job.url)
            // These belong to another lock, which a script around this process may have acquired.
            .env_remove("FENCEPOST_OWNER")
            .env_remove("FENCEPOST_TTL_MS")
            .env_remove("FENCEPOST_KEY");
        if let Some(key) = job.key {
            command.env("FENCEPOST_KEY", key);
        }
        if let Some(stdout) = job.stdout {
            command.stdout(stdout);
        }
        sys::prepare_child(&mut command, setup(getpid())?);
        let process = command.spawn().map_err(|error| spawn_failure(program, &error))?;
        Ok(Self { id: Pid::from_child(&process), process })
    }

    /// The process id, and the id of the process group.
    pub(crate) const fn id(&self) -> Pid {
        self.id
    }

    /// How it ended, if it has. The zombie stays, so that the group's id stays reserved.
    pub(crate) fn ended(&self) -> Option<Ended> {
        let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.id), options).ok()??;
        let killed = status.terminating_signal().map(Ended::Killed);
        killed.or_else(|| status.exit_status().map(Ended::Exited))
    }

    /// The signal that stopped it. Each stop is returned once.
    pub(crate) fn stopped(&self) -> Option<Signal> {
        let options = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.id), options).ok()??;
        Signal::from_named_raw(status.stopping_signal()?)
    }

    /// Reaps the process, which has ended, and frees its id.
    pub(crate) fn reap(mut self) {
        let _ = self.process.wait();
    }
}

fn spawn_failure(program: &std::ffi::OsStr, error: &io::Error) -> Failure {
    let program = program.display().to_string();
    let program = program.escape_debug();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Failure::new(
            exit::NOT_FOUND,
            "command_not_found",
            format!("command \"{program}\" not found: check the name, PATH and the #! line"),
        ),
        Some(libc::EAGAIN | libc::ENOMEM | libc::EPIPE | libc::ESRCH | libc::EMFILE) => {
            Failure::internal(format!("cannot start \"{program}\": {error}"))
        }
        errno => {
            let why = match errno {
                Some(libc::EACCES) => {
                    "is not executable: check the path, or run chmod +x on it".into()
                }
                _ => format!("cannot be executed: {error}"),
            };
            let message = format!("command \"{program}\" {why}");
            Failure::new(exit::NOT_EXECUTABLE, "command_not_executable", message)
        }
    }
}
