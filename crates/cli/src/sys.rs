//! The one file with `unsafe`: hooks between fork and exec, signal masks, and process groups.
//!
//! After the fork of a program with threads, only async-signal-safe calls are allowed until the exec: no allocation, no
//! locks. The two closures here make only system calls, through rustix, which makes them directly, or through libc
//! functions that POSIX lists as async-signal-safe.

#![expect(unsafe_code, reason = "these have no safe interface in std or rustix")]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, getpid};

use crate::watchdog_record::Record;

/// What the command's process does before exec.
pub(crate) struct ChildSetup {
    /// This process: the kernel kills the command when it ends.
    pub(crate) parent: Pid,
    /// The pipe to the watchdog, which must know the group before any code of the user runs.
    pub(crate) watchdog: OwnedFd,
    /// The presence file, which the command inherits.
    pub(crate) presence: Option<OwnedFd>,
    /// Become the foreground group of the terminal on stdin.
    pub(crate) foreground: bool,
}

/// Makes `command` start as the leader of its own process group, with this setup.
pub(crate) fn prepare_child(command: &mut Command, setup: ChildSetup) {
    command.process_group(0);
    // SAFETY: the closure allocates nothing and takes no lock, see the head of this file.
    unsafe {
        command.pre_exec(move || {
            die_with(setup.parent)?;
            // std has just set SIGPIPE to its default. If the watchdog is gone, the write must fail, and not kill the
            // process, which would look like the command's own death.
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            let record = Record::Group(getpid()).to_bytes();
            rustix::io::write(&setup.watchdog, &record)?;
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            if let Some(presence) = &setup.presence {
                fcntl_setfd(presence, FdFlags::empty())?;
            }
            if setup.foreground {
                // Not in the parent: the command must be in the foreground when it first reads the terminal. If the
                // terminal is gone, the command notices that itself.
                blocking(libc::SIGTTOU, || {
                    let _ = rustix::termios::tcsetpgrp(rustix::stdio::stdin(), getpid());
                });
            }
            Ok(())
        });
    }
}

/// Makes `command` start in a session of its own, so that signals to our group or from our terminal do not reach it,
/// with only its stdio and `presence` open, and with all signals blocked from the start: only its pipe ends a watchdog.
pub(crate) fn prepare_watchdog(command: &mut Command, presence: Option<OwnedFd>) {
    // SAFETY: as above.
    unsafe {
        command.pre_exec(move || {
            block_all_signals();
            rustix::process::setsid()?;
            close_on_exec_from(3);
            if let Some(presence) = &presence {
                fcntl_setfd(presence, FdFlags::empty())?;
            }
            Ok(())
        });
    }
}

/// Ends this process, or its whole process group, by the default action of `signal`. Writes no core file: the command's
/// own core file is the useful one. Returns only if the system does not end the process.
pub(crate) fn die_by(signal: rustix::process::Signal, whole_group: bool) {
    let number = signal.as_raw();
    // SAFETY: `none` outlives the call; the default action needs no handler.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(number, libc::SIG_DFL);
    }
    change_mask(libc::SIG_UNBLOCK, number);
    // SAFETY: these send signals, and touch no memory of ours.
    unsafe {
        if whole_group {
            libc::kill(0, number);
        }
        libc::raise(number);
    }
}

/// The process group of a process; zero for a thread of the kernel, which rustix takes for impossible.
pub(crate) fn group_of(process: i32) -> io::Result<i32> {
    // SAFETY: it touches no memory of ours.
    match unsafe { libc::getpgid(process) } {
        -1 => Err(io::Error::last_os_error()),
        group => Ok(group),
    }
}

/// Blocks every signal that can be blocked. A program that is executed inherits the mask.
fn block_all_signals() {
    // SAFETY: `set` is written by sigfillset before it is read.
    unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigfillset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Lets this thread write to a terminal that is lent to the command, even after `stty tostop`: SIGTTOU would stop this
/// process, and the renewals with it.
pub(crate) fn write_from_the_background() {
    change_mask(libc::SIG_BLOCK, libc::SIGTTOU);
}

/// Makes `group` the foreground group of `terminal`. SIGTTOU is blocked meanwhile: it would stop this process if that is
/// not in the foreground itself.
pub(crate) fn set_foreground(terminal: impl AsFd, group: Pid) -> io::Result<()> {
    blocking(libc::SIGTTOU, || Ok(rustix::termios::tcsetpgrp(terminal, group)?))
}

/// Sets the modes of `terminal`, with SIGTTOU blocked.
pub(crate) fn set_modes(terminal: impl AsFd, modes: &rustix::termios::Termios) -> io::Result<()> {
    use rustix::termios::{OptionalActions, tcsetattr};
    blocking(libc::SIGTTOU, || Ok(tcsetattr(terminal, OptionalActions::Drain, modes)?))
}

fn blocking<T>(signal: libc::c_int, act: impl FnOnce() -> T) -> T {
    let old = change_mask(libc::SIG_BLOCK, signal);
    let result = act();
    // SAFETY: `old` is a whole mask.
    unsafe { libc::pthread_sigmask(libc::SIG_SETMASK, &raw const old, std::ptr::null_mut()) };
    result
}

/// Adds one signal to this thread's mask, or removes it. Returns the old mask.
fn change_mask(how: libc::c_int, signal: libc::c_int) -> libc::sigset_t {
    // SAFETY: `set` is written by sigemptyset before it is read; `old` is valid when zeroed.
    unsafe {
        let (mut set, mut old) = (MaybeUninit::uninit(), MaybeUninit::zeroed());
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(how, set.as_ptr(), old.as_mut_ptr());
        old.assume_init()
    }
}

/// Asks the kernel to kill this process when the thread that started it ends. That is the main thread, which lives as
/// long as the program.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // The parent may have ended before the request.
    if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// Other systems cannot do this: there only the watchdog ends the command.
#[cfg(not(target_os = "linux"))]
fn die_with(_parent: Pid) -> io::Result<()> {
    Ok(())
}

/// Closes inherited files in the watchdog: they are for the command. If the kernel cannot do this (Linux before 5.11),
/// the watchdog keeps them open until the command has ended.
fn close_on_exec_from(first: libc::c_uint) {
    #[cfg(target_os = "linux")]
    // SAFETY: marks descriptors; closes none before the exec.
    unsafe {
        let (last, flags) = (libc::c_uint::MAX, libc::CLOSE_RANGE_CLOEXEC);
        libc::syscall(libc::SYS_close_range, first, last, flags);
    }
    #[cfg(not(target_os = "linux"))]
    let _ = first;
}
