//! What a person sees while a lock is waited for.

use std::convert::Infallible;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use fencepost::Fencepost;
use fencepost::backend::{LockInfo, short};
use fencepost::clock::{BootClock, Clock as _};

use crate::exit::say;

/// A lock that is free is taken long before this: nothing flickers.
const FIRST_LOOK: Duration = Duration::from_millis(150);
const EVERY: Duration = Duration::from_secs(1);

/// Shows who holds `name` until it is dropped: on a terminal one line that is kept up to date, anywhere
/// else one line after a second.
pub(crate) async fn show(fp: &Fencepost, name: &str, own_label: &str) -> Infallible {
    let mut line = Line::default();
    if !std::io::stderr().is_terminal() {
        BootClock.alarm(BootClock.now() + EVERY).await;
        if let Ok(info) = fp.inspect(name).await {
            say(&describe(&info, own_label));
        }
        return std::future::pending().await;
    }
    BootClock.alarm(BootClock.now() + FIRST_LOOK).await;
    loop {
        match fp.inspect(name).await {
            Ok(info) => line.draw(&describe(&info, own_label)),
            Err(error) => line.draw(&error.to_string()),
        }
        BootClock.alarm(BootClock.now() + EVERY).await;
    }
}

fn describe(info: &LockInfo, own_label: &str) -> String {
    let holder = match &info.holder {
        Some(holder) => {
            let known = |span: Option<Duration>| span.map_or_else(|| "?".to_owned(), short);
            let (held, left) = (known(holder.held_for), known(holder.remaining));
            format!("held by {} for {held}, lease {left} left", holder.label)
        }
        None => "free".to_owned(),
    };
    let ahead = info.waiters.iter().position(|waiter| waiter.label.as_str() == own_label);
    let queue = match ahead {
        Some(ahead) => format!("{ahead} ahead of {} waiting", info.waiting),
        None => format!("{} waiting", info.waiting),
    };
    format!("waiting for \"{}\": {holder}; {queue}", info.name)
}

/// A line on the terminal that is drawn over, and gone when we are.
#[derive(Default)]
struct Line {
    drawn: bool,
}

impl Line {
    fn draw(&mut self, text: &str) {
        self.drawn = true;
        let known = rustix::termios::tcgetwinsize(std::io::stderr())
            .map_or(0, |size| usize::from(size.ws_col));
        let width = if known == 0 { 80 } else { known };
        let text = format!("fencepost: {text}");
        // One column is left free, or some terminals wrap.
        let fits: String =
            text.chars().filter(|c| !c.is_control()).take(width.saturating_sub(1)).collect();
        let mut stderr = std::io::stderr();
        let _ = write!(stderr, "\r\x1b[K{fits}").and_then(|()| stderr.flush());
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        if self.drawn {
            let mut stderr = std::io::stderr();
            let _ = write!(stderr, "\r\x1b[K").and_then(|()| stderr.flush());
        }
    }
}
