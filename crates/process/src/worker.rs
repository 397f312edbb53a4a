//! The worker's side.

use std::io::{self, BufRead as _, Write as _};

use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};

/// Has the kernel kill this process when its parent ends. A frozen process does not see its input end.
pub fn end_with_parent() {
    #[cfg(target_os = "linux")]
    {
        use rustix::process::{Signal, set_parent_process_death_signal};
        let _ = set_parent_process_death_signal(Some(Signal::KILL));
    }
}

/// What the parent says, line by line. When the parent goes away this process ends, as if it had crashed.
#[must_use]
pub fn orders() -> UnboundedReceiver<String> {
    let (said, orders) = unbounded_channel();
    std::thread::spawn(move || {
        for line in io::stdin().lock().lines().map_while(io::Result::ok) {
            if said.send(line).is_err() {
                return;
            }
        }
        std::process::exit(3);
    });
    orders
}

/// Says something to the parent, in one line.
pub fn say(line: &str) {
    let mut out = io::stdout().lock();
    // Whoever would hear of a failure here is the one who is gone.
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}
