//! Keeps what the command prints, and passes it through.
//!
//! A thread of its own reads and writes: a reader of ours that does not read must not hold up the one who looks
//! after the command. It ends when it is told that nothing of the command runs and the pipe is empty, not when the
//! pipe is closed: a process that left the command's group may keep it open for ever.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use fencepost::ledger::Entry;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use crate::exit::{Failure, say};
use crate::signals::Signals;

/// The thread at work.
pub(crate) struct Keeper {
    /// Closed to tell the thread that nothing more will come.
    more: OwnedFd,
    kept: oneshot::Receiver<Kept>,
}

/// What was printed.
#[derive(Default)]
struct Kept {
    /// The beginning of it.
    bytes: Vec<u8>,
    /// How long all of it was.
    total: u64,
}

impl Keeper {
    /// Starts it; the command is to write to the pipe.
    pub(crate) fn start() -> Result<(Self, OwnedFd), Failure> {
        let failed = |error: io::Error| {
            Failure::internal(format!("can not keep the command's output: {error}"))
        };
        let (output, pipe) = io::pipe().map_err(failed)?;
        let (told, more) = io::pipe().map_err(failed)?;
        let (output, told) = (OwnedFd::from(output), OwnedFd::from(told));
        let (send, kept) = oneshot::channel();
        std::thread::Builder::new()
            .name("fencepost-output".into())
            .spawn(move || {
                // Nobody waits for it any more if this fails.
                let _ = send.send(pass_through(&output, &told));
            })
            .map_err(failed)?;
        Ok((Self { more: more.into(), kept }, pipe.into()))
    }

    /// What was printed, at most as much as a record takes. Waits until all of it is passed through, unless a
    /// signal tells us to end.
    pub(crate) async fn end(self, signals: &mut Signals) -> Vec<u8> {
        drop(self.more);
        let kept = tokio::select! {
            kept = self.kept => kept.unwrap_or_default(),
            _ = signals.next_ending() => {
                say("nobody reads what the command printed: it is not kept");
                return Vec::new();
            }
        };
        if kept.total > kept.bytes.len() as u64 {
            say(&format!(
                "the command printed {} bytes: the first {} are kept",
                kept.total,
                kept.bytes.len()
            ));
        }
        kept.bytes
    }
}

/// Reads until nothing more will come.
fn pass_through(output: &OwnedFd, told: &OwnedFd) -> Kept {
    let (mut kept, mut read_by_somebody) = (Kept::default(), true);
    let mut buffer = [0; 16 * 1024];
    while wait_for_more(output, told) {
        let length = match rustix::io::read(output, &mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => break,
        };
        let bytes = &buffer[..length];
        let room = Entry::MAX_RESULT.saturating_sub(kept.bytes.len());
        kept.bytes.extend_from_slice(&bytes[..length.min(room)]);
        kept.total += length as u64;
        if read_by_somebody {
            let mut stdout = io::stdout().lock();
            // A reader that has seen enough does not end the work: others come for what it printed.
            read_by_somebody = stdout.write_all(bytes).and_then(|()| stdout.flush()).is_ok();
        }
    }
    kept
}

/// True if there is something to read; false if there is nothing and nothing will come.
fn wait_for_more(output: &OwnedFd, told: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready =
        |flags: PollFlags| flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
    loop {
        let (output, told) = (output.as_fd(), told.as_fd());
        let mut both = [PollFd::new(&output, PollFlags::IN), PollFd::new(&told, PollFlags::IN)];
        if poll(&mut both, None).is_err() {
            continue; // interrupted
        }
        if ready(both[0].revents()) {
            return true;
        }
        if ready(both[1].revents()) {
            // It may have come between the two answers.
            let mut last = [PollFd::new(&output, PollFlags::IN)];
            return poll(&mut last, Some(&at_once)).is_ok() && ready(last[0].revents());
        }
    }
}
