//! The signals that `run` forwards, and that end a wait.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Forwarded to the command's group.
const FORWARDED: [Signal; 8] = [
    Signal::TERM,
    Signal::INT,
    Signal::HUP,
    Signal::QUIT,
    Signal::USR1,
    Signal::USR2,
    Signal::WINCH,
    Signal::CONT,
];

/// Streams of these signals.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// From now on these signals have no effect except that [`next`](Self::next) returns them.
    ///
    /// A signal that was ignored at the start stays ignored, here and in the command: `nohup`, and a shell that starts
    /// a job in the background, rely on that.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored_mask();
        let is_ignored = |signal: Signal| ignored >> (signal.as_raw() - 1) & 1 == 1;
        FORWARDED
            .into_iter()
            .filter(|signal| *signal == Signal::CONT || !is_ignored(*signal))
            .map(|signal| Ok((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?)))
            .collect::<io::Result<_>>()
            .map(Self)
    }

    /// The next signal. Dropping the future loses none.
    pub(crate) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.0 {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }

    /// The next signal that asks this process to end.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if signal != Signal::WINCH && signal != Signal::CONT {
                return signal;
            }
        }
    }
}

/// The signals that this process ignores since its start. None where the system does not provide it.
fn ignored_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
