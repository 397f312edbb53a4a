//! The postmaster's children: frozen, resumed or ended together.

use std::fs;
use std::io;
use std::process::{Child, Command, Stdio};

use rustix::process::{Pid, Signal, kill_process};

use crate::wait::{SOON, until};

/// The children of a frozen postmaster. Their pids cannot be reused: the postmaster would have to wait for them first.
#[derive(Debug)]
pub(super) struct Frozen {
    children: Vec<Relative>,
    /// Wakes them when this process ends, so that they notice that they are no longer needed.
    waker: Option<Child>,
}

/// A process and its start time, which tells it from a later one with the same pid.
#[derive(Clone, Debug, PartialEq)]
struct Relative {
    pid: i32,
    began: String,
}

impl Frozen {
    /// Freezes all children of this process.
    pub(super) fn all(postmaster: u32) -> io::Result<Self> {
        let mut frozen = Self { children: Vec::new(), waker: None };
        frozen.children = children_of(postmaster)?;
        frozen.signal(Signal::STOP)?;
        let stands = |child: &Relative| !matches!(child.state(), Some('R' | 'S' | 'D'));
        until(SOON, "PostgreSQL is frozen", || Ok(frozen.children.iter().all(stands)))?;
        let pids = frozen.children.iter().map(|child| child.pid.to_string());
        let pids = pids.chain([postmaster.to_string()]).collect::<Vec<_>>().join(" ");
        // `read` ends when the other end of the pipe is closed, which happens when this process ends.
        let waker = Command::new("sh")
            .args(["-c", &format!("read _; kill -CONT {pids} 2>/dev/null")])
            .stdin(Stdio::piped())
            .spawn()?;
        frozen.waker = Some(waker);
        Ok(frozen)
    }

    pub(super) fn thaw(mut self) -> io::Result<()> {
        self.dismiss();
        self.signal(Signal::CONT)
    }

    pub(super) fn kill(&self) -> io::Result<()> {
        self.signal(Signal::KILL)
    }

    /// Waits until all have ended.
    pub(super) fn wait_until_gone(&self) -> io::Result<()> {
        let gone = |child: &Relative| matches!(child.state(), None | Some('Z' | 'X'));
        until(SOON, "all of PostgreSQL has ended", || Ok(self.children.iter().all(gone)))
    }

    fn signal(&self, signal: Signal) -> io::Result<()> {
        for child in self.children.iter().filter(|child| child.state().is_some()) {
            send(child.pid, signal)?;
        }
        Ok(())
    }

    fn dismiss(&mut self) {
        if let Some(mut waker) = self.waker.take() {
            let _ = waker.kill();
            let _ = waker.wait();
        }
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        self.dismiss();
    }
}

impl Relative {
    /// Its state as the kernel writes it, or nothing if it is gone.
    fn state(&self) -> Option<char> {
        let (state, _, now) = stat(self.pid)?;
        (now == *self).then_some(state)
    }
}

/// Ends the server at once, but in order.
pub(super) fn quit(postmaster: u32) -> io::Result<()> {
    send(postmaster.cast_signed(), Signal::QUIT)
}

/// Ends the server after it has written its data.
pub(super) fn interrupt(postmaster: u32) -> io::Result<()> {
    send(postmaster.cast_signed(), Signal::INT)
}

fn send(pid: i32, signal: Signal) -> io::Result<()> {
    let pid = Pid::from_raw(pid).ok_or_else(|| io::Error::other("0 is no process"))?;
    match kill_process(pid, signal) {
        // It has ended meanwhile.
        Err(rustix::io::Errno::SRCH) => Ok(()),
        result => Ok(result?),
    }
}

fn children_of(parent: u32) -> io::Result<Vec<Relative>> {
    let pids =
        fs::read_dir("/proc")?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Ok(pids
        .filter_map(stat)
        .filter(|(_, its_parent, _)| *its_parent == parent)
        .map(|(_, _, child)| child)
        .collect())
}

/// State, parent and start time (the 22nd field) from `/proc/PID/stat`: `pid (name) state parent ...`. The name may contain
/// anything, so fields are counted from its end.
fn stat(pid: i32) -> Option<(char, u32, Relative)> {
    let line = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    let mut fields = line.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    let parent = fields.next()?.parse().ok()?;
    let began = fields.nth(17)?.to_owned();
    Some((state, parent, Relative { pid, began }))
}
