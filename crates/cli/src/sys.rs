//! The one file with `unsafe`: what must happen between fork and exec, and signal masks.
//!
//! Between the fork of a program with threads and the exec only async-signal-safe calls are allowed: no
//! allocation, no locks. Everything in the two closures here is a bare system call, either rustix's, which
//! makes them directly, or one that POSIX lists as async-signal-safe.

#![expect(
    unsafe_code,
    reason = "fork hooks and signal masks have no safe interface in std or rustix"
)]

use std::io;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt as _;
use std::process::Command;

use rustix::io::{FdFlags, fcntl_setfd};
use rustix::process::{Pid, getpid};

use crate::watchdog_record::Record;

/// What the command's process does before it becomes the command.
pub(crate) struct ChildSetup {
    /// Us; if we are gone, so is the command.
    pub(crate) parent: Pid,
    /// The watchdog's inbox, to announce the group before any code of the user's runs.
    pub(crate) leash: OwnedFd,
    /// What shows that the holder lives, to be inherited.
    pub(crate) presence: Option<OwnedFd>,
    /// Become the foreground group of the terminal on stdin.
    pub(crate) foreground: bool,
}

/// Makes `command` start as the leader of its own process group, set up as told.
pub(crate) fn prepare_child(command: &mut Command, setup: ChildSetup) {
    command.process_group(0);
    // SAFETY: the closure allocates nothing and takes no lock, see the head of this file.
    unsafe {
        command.pre_exec(move || {
            die_with(setup.parent)?;
            // std has just set SIGPIPE to its default: a watchdog that is gone must be an error, not a
            // death that looks like the command's own.
            libc::signal(libc::SIGPIPE, libc::SIG_IGN);
            let record = Record::Group(getpid()).to_bytes();
            rustix::io::write(&setup.leash, &record)?;
            libc::signal(libc::SIGPIPE, libc::SIG_DFL);
            if let Some(presence) = &setup.presence {
                fcntl_setfd(presence, FdFlags::empty())?;
            }
            if setup.foreground {
                // Here and not in the parent: the command must not find itself in the background when
                // it first reads the terminal. A terminal that went away is the command's to notice.
                blocking(libc::SIGTTOU, || {
                    let _ = rustix::termios::tcsetpgrp(rustix::stdio::stdin(), getpid());
                });
            }
            Ok(())
        });
    }
}

/// Makes `command` start in a session of its own, so that what is sent to our group or by our terminal
/// does not reach it, with nothing open but its stdio and `presence`, and deaf to every signal from its first
/// moment on: only its pipe may end a watchdog.
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

/// Ends this process by `signal`, as if it had never been caught, or its whole process group. Leaves no core file of
/// ours: what is to be seen is in the command's. Returns only if the system does not do it.
pub(crate) fn die_by(signal: rustix::process::Signal, whole_group: bool) {
    let number = signal.as_raw();
    // SAFETY: `set` and `none` are written before they are read; the default action needs no handler.
    unsafe {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        libc::setrlimit(libc::RLIMIT_CORE, &raw const none);
        libc::signal(number, libc::SIG_DFL);
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), number);
        libc::pthread_sigmask(libc::SIG_UNBLOCK, set.as_ptr(), std::ptr::null_mut());
        if whole_group {
            libc::kill(0, number);
        }
        libc::raise(number);
    }
}

/// Blocks every signal that can be blocked. A program that is executed then inherits that.
fn block_all_signals() {
    // SAFETY: `set` is written by sigfillset before it is read.
    unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigfillset(set.as_mut_ptr());
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Lets this thread write to a terminal that is lent to the command, also after `stty tostop`: SIGTTOU would
/// stop us, and with us the renewals.
pub(crate) fn write_from_the_background() {
    // SAFETY: `set` is written by sigemptyset before it is read.
    unsafe {
        let mut set = MaybeUninit::uninit();
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), libc::SIGTTOU);
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), std::ptr::null_mut());
    }
}

/// Makes `group` the foreground group of `terminal`, also when we are not it ourselves: SIGTTOU, which
/// would stop us then, is blocked meanwhile.
pub(crate) fn set_foreground(terminal: impl AsFd, group: Pid) -> io::Result<()> {
    blocking(libc::SIGTTOU, || Ok(rustix::termios::tcsetpgrp(terminal, group)?))
}

/// Sets the modes of `terminal`, likewise.
pub(crate) fn set_modes(terminal: impl AsFd, modes: &rustix::termios::Termios) -> io::Result<()> {
    use rustix::termios::{OptionalActions, tcsetattr};
    blocking(libc::SIGTTOU, || Ok(tcsetattr(terminal, OptionalActions::Drain, modes)?))
}

fn blocking<T>(signal: libc::c_int, act: impl FnOnce() -> T) -> T {
    // SAFETY: `set` and `old` are written before they are read; the old mask is put back.
    unsafe {
        let (mut set, mut old) = (MaybeUninit::uninit(), MaybeUninit::uninit());
        libc::sigemptyset(set.as_mut_ptr());
        libc::sigaddset(set.as_mut_ptr(), signal);
        libc::pthread_sigmask(libc::SIG_BLOCK, set.as_ptr(), old.as_mut_ptr());
        let result = act();
        libc::pthread_sigmask(libc::SIG_SETMASK, old.as_ptr(), std::ptr::null_mut());
        result
    }
}

/// Asks the kernel to kill us when the thread that made us ends. That is the main thread, which lives as
/// long as the program.
#[cfg(target_os = "linux")]
fn die_with(parent: Pid) -> io::Result<()> {
    use rustix::process::{Signal, getppid, set_parent_process_death_signal};
    set_parent_process_death_signal(Some(Signal::KILL))?;
    // It may have gone before the request was in place.
    if getppid() == Some(parent) { Ok(()) } else { Err(io::Error::from_raw_os_error(libc::ESRCH)) }
}

/// Only the watchdog stands in for this elsewhere.
#[cfg(not(target_os = "linux"))]
fn die_with(_parent: Pid) -> io::Result<()> {
    Ok(())
}

/// Files that we were started with are the command's business, not the watchdog's. Where the kernel
/// cannot do this (Linux before 5.11) the watchdog keeps them open until the command has ended.
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
