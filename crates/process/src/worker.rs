//! The worker's side.

use std::io::{self, BufRead as _, Write as _};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Makes the kernel kill this process when its parent ends. A frozen process does not notice that its input is closed.
pub fn end_with_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}

/// The lines from the parent. When the parent ends, this process exits as after a crash.
#[must_use]
pub fn orders() -> UnboundedReceiver<String> {
    let (sender, orders) = unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(io::Result::ok) {
            if sender.send(line).is_err() {
                return;
            }
        }
        std::process::exit(3);
    });
    orders
}

/// Sends a line to the parent.
pub fn say(line: &str) {
    let mut out = io::stdout().lock();
    // A failure means that the parent is gone.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
