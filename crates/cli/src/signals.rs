//! The signals that `run` passes on, and that end a wait.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// What is passed on to the command's group.
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

/// Signals as they come in.
pub(crate) struct Signals(Vec<(Signal, unix::Signal)>);

impl Signals {
    /// From here on the listed signals do nothing but come out of [`next`](Self::next).
    ///
    /// A signal that was ignored when we started stays ignored, for us and for the command: that is what
    /// `nohup`, and a shell that starts a job in the background, ask for.
    pub(crate) fn listen() -> io::Result<Self> {
        let ignored = ignored_mask();
        FORWARDED
            .into_iter()
            .filter(|signal| *signal == Signal::CONT || !is_in(ignored, *signal))
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

    /// The next signal that asks us to end.
    pub(crate) async fn next_ending(&mut self) -> Signal {
        loop {
            let signal = self.next().await;
            if signal != Signal::WINCH && signal != Signal::CONT {
                return signal;
            }
        }
    }
}

fn is_in(mask: u64, signal: Signal) -> bool {
    u32::try_from(signal.as_raw() - 1)
        .ok()
        .and_then(|bit| mask.checked_shr(bit))
        .is_some_and(|mask| mask & 1 == 1)
}

/// Which signals we were told to ignore. Nothing where the system does not say.
fn ignored_mask() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    status
        .lines()
        .find_map(|line| line.strip_prefix("SigIgn:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .unwrap_or(0)
}
