//! The command's own process.

use std::io;
use std::process::{Child, Command};

use fencepost::Guard;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, getpid, waitid};

use super::Job;
use crate::exit::{self, Failure};
use crate::sys::{self, ChildSetup};

/// The command, started.
pub(crate) struct Spawned {
    process: Child,
    id: Pid,
}

/// How it ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ended {
    /// By itself, with this code.
    Exited(i32),
    /// By this signal.
    Killed(i32),
}

impl Ended {
    /// The exit code that passes it on.
    pub(crate) fn code(self) -> u8 {
        match self {
            Self::Exited(code) => u8::try_from(code).unwrap_or(u8::MAX),
            Self::Killed(signal) => exit::signal_code(signal),
        }
    }
}

impl Spawned {
    /// Starts the command. Must be called on the main thread, which the command's life is tied to.
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
            .env("FENCEPOST_TOKEN", guard.token().to_string())
            .env("FENCEPOST_URL", job.url)
            // What a script around us may have got from `acquire` is of another lock.
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
        let process = command.spawn().map_err(|error| why_not(program, &error))?;
        Ok(Self { id: Pid::from_child(&process), process })
    }

    /// Its process id, which is its group's too.
    pub(crate) const fn id(&self) -> Pid {
        self.id
    }

    /// How it ended, if it has. It stays a zombie, so that its group's number stays reserved.
    pub(crate) fn ended(&self) -> Option<Ended> {
        let look = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
        let status = waitid(WaitId::Pid(self.id), look).ok()??;
        let killed = status.terminating_signal().map(Ended::Killed);
        killed.or_else(|| status.exit_status().map(Ended::Exited))
    }

    /// The signal that stopped it, told once for each time.
    pub(crate) fn stopped(&self) -> Option<Signal> {
        let look = WaitIdOptions::STOPPED | WaitIdOptions::NOHANG;
        let status = waitid(WaitId::Pid(self.id), look).ok()??;
        Signal::from_named_raw(status.stopping_signal()?)
    }

    /// Gives its number back to the system. It has ended before.
    pub(crate) fn reap(mut self) {
        let _ = self.process.wait();
    }
}

fn why_not(program: &std::ffi::OsStr, error: &io::Error) -> Failure {
    let program = program.display().to_string();
    let program = program.escape_debug();
    match error.raw_os_error() {
        Some(libc::ENOENT | libc::ENOTDIR) => Failure::new(
            exit::NOT_FOUND,
            "command_not_found",
            format!("command \"{program}\" not found: check the name, PATH and the #! line"),
        ),
        Some(libc::EAGAIN | libc::ENOMEM | libc::EPIPE | libc::ESRCH | libc::EMFILE) => {
            Failure::internal(format!("can not start \"{program}\": {error}"))
        }
        Some(libc::EACCES) => Failure::new(
            exit::NOT_EXECUTABLE,
            "command_not_executable",
            format!("command \"{program}\" is not executable: give a program, or chmod +x it"),
        ),
        _ => Failure::new(
            exit::NOT_EXECUTABLE,
            "command_not_executable",
            format!("command \"{program}\" can not be executed: {error}"),
        ),
    }
}
