//! Records the first bytes that the command prints, and passes all of them on to stdout.
//!
//! This runs on a thread, so that a stdout that nobody reads does not block the supervisor. The thread ends when no
//! process of the command is left and the pipe is empty. It does not wait for the pipe to be closed, because a process
//! that left the command's group can keep it open for ever.

use std::io::{self, Write as _};
use std::os::fd::{AsFd as _, OwnedFd};

use fencepost::ledger::RecordInfo;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use tokio::sync::oneshot;

use crate::exit::{Failure, say};
use crate::signals::Signals;

pub(crate) struct OutputRecorder {
    /// Closed to stop the thread when the pipe is empty.
    stop: OwnedFd,
    recorded: oneshot::Receiver<RecordedOutput>,
}

#[derive(Default)]
struct RecordedOutput {
    /// The first bytes.
    bytes: Vec<u8>,
    /// How many bytes were printed.
    total: u64,
}

impl OutputRecorder {
    /// Starts the thread, and returns the pipe to which the command must write.
    pub(crate) fn start() -> Result<(Self, OwnedFd), Failure> {
        let failed = |error: io::Error| {
            Failure::internal(format!("cannot record the command's output: {error}"))
        };
        let (output, pipe) = io::pipe().map_err(failed)?;
        let (stopped, stop) = io::pipe().map_err(failed)?;
        let (output, stopped) = (OwnedFd::from(output), OwnedFd::from(stopped));
        let (send, recorded) = oneshot::channel();
        std::thread::Builder::new()
            .name("fencepost-output".into())
            .spawn(move || {
                let _ = send.send(pass_through(&output, &stopped));
            })
            .map_err(failed)?;
        Ok((Self { stop: stop.into(), recorded }, pipe.into()))
    }

    /// Returns the recorded output, at most as much as a record can hold. Waits until all of it is passed on, or a
    /// signal asks this process to end.
    pub(crate) async fn end(self, signals: &mut Signals) -> Vec<u8> {
        drop(self.stop);
        let recorded = tokio::select! {
            recorded = self.recorded => recorded.unwrap_or_default(),
            _ = signals.next_ending() => {
                say("stdout is not read, so the command's output is not recorded");
                return Vec::new();
            }
        };
        if recorded.total > recorded.bytes.len() as u64 {
            say(&format!(
                "the command printed {} bytes: the first {} are recorded",
                recorded.total,
                recorded.bytes.len()
            ));
        }
        recorded.bytes
    }
}

fn pass_through(output: &OwnedFd, stopped: &OwnedFd) -> RecordedOutput {
    let (mut recorded, mut stdout_is_open) = (RecordedOutput::default(), true);
    let mut buffer = [0; 16 * 1024];
    while wait_for_output(output, stopped) {
        let length = match rustix::io::read(output, &mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(rustix::io::Errno::INTR) => continue,
            Err(_) => break,
        };
        let bytes = &buffer[..length];
        let room = RecordInfo::MAX_RESULT.saturating_sub(recorded.bytes.len());
        recorded.bytes.extend_from_slice(&bytes[..length.min(room)]);
        recorded.total += length as u64;
        if stdout_is_open {
            let mut stdout = io::stdout().lock();
            // If the reader closes stdout, continue: later callers need the recorded output.
            stdout_is_open = stdout.write_all(bytes).and_then(|()| stdout.flush()).is_ok();
        }
    }
    recorded
}

/// Waits for output. `false` if the pipe is empty after the stop.
fn wait_for_output(output: &OwnedFd, stopped: &OwnedFd) -> bool {
    let at_once = Timespec { tv_sec: 0, tv_nsec: 0 };
    let ready =
        |flags: PollFlags| flags.intersects(PollFlags::IN | PollFlags::HUP | PollFlags::ERR);
    loop {
        let (output, stopped) = (output.as_fd(), stopped.as_fd());
        let mut both = [PollFd::new(&output, PollFlags::IN), PollFd::new(&stopped, PollFlags::IN)];
        if poll(&mut both, None).is_err() {
            continue; // interrupted
        }
        if ready(both[0].revents()) {
            return true;
        }
        if ready(both[1].revents()) {
            // Check again: output may have arrived between the two results.
            let mut last = [PollFd::new(&output, PollFlags::IN)];
            return poll(&mut last, Some(&at_once)).is_ok() && ready(last[0].revents());
        }
    }
}
