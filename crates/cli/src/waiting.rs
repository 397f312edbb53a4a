//! What a person sees while a lock is waited for.

use std::convert::Infallible;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use fencepost::Fencepost;
use fencepost::backend::{LockInfo, short};
use fencepost::clock::{BootClock, Clock as _};

use crate::out;
use crate::say::{clear_line, is_quiet, line_is_drawn, note, say};
use crate::store::Target;

/// A lock that is free is taken long before this: nothing flickers.
const FIRST_LOOK: Duration = Duration::from_millis(150);
const EVERY: Duration = Duration::from_secs(1);

/// What is waited for, by whom.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'a> {
    pub(crate) at: &'a Target,
    pub(crate) fp: &'a Fencepost,
    pub(crate) name: &'a str,
    /// How we are called in the queue.
    pub(crate) label: &'a str,
}

/// Shows who holds the lock until it is dropped: on a terminal one line that is kept up to date, anywhere
/// else one line after a second. With `--quiet` only a wait that cannot end is shown.
pub(crate) async fn show(wait: Wait<'_>) -> Infallible {
    let Wait { at, fp, name, label } = wait;
    let _line = Line;
    let drawn = std::io::stderr().is_terminal() && !is_quiet();
    BootClock.alarm(BootClock.now() + if drawn { FIRST_LOOK } else { EVERY }).await;
    let mut first = fp.inspect(name).await;
    if let Ok(info) = &first {
        warn_if_nested(at, info);
        if !drawn {
            note(&describe(info, label));
        }
    }
    if !drawn {
        return std::future::pending().await;
    }
    loop {
        match first {
            Ok(info) => Line::draw(&describe(&info, label)),
            Err(error) => Line::draw(&error.to_string()),
        }
        BootClock.alarm(BootClock.now() + EVERY).await;
        first = fp.inspect(name).await;
    }
}

/// A command that waits for the lock that it runs under waits for itself.
fn warn_if_nested(at: &Target, info: &LockInfo) {
    let token = info.holder.as_ref().and_then(|holder| holder.token);
    if token.is_some_and(|token| at.is_held_by_our_parent(info.name.as_str(), token)) {
        say(&format!(
            "\"{}\" is held by the command that started this one, so this waits for its own parent: use another \
             name, or do not lock again",
            info.name
        ));
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
struct Line;

impl Line {
    fn draw(text: &str) {
        line_is_drawn();
        let known = rustix::termios::tcgetwinsize(std::io::stderr())
            .map_or(0, |size| usize::from(size.ws_col));
        let width = if known == 0 { 80 } else { known };
        let text = format!("fencepost: {text}");
        // One column is left free, or some terminals wrap.
        let fits = out::cut(&out::line(&text), width.saturating_sub(1));
        let mut stderr = std::io::stderr();
        let _ = write!(stderr, "\r\x1b[K{fits}").and_then(|()| stderr.flush());
    }
}

impl Drop for Line {
    fn drop(&mut self) {
        let mut stderr = std::io::stderr();
        let _ = write!(stderr, "{}", clear_line()).and_then(|()| stderr.flush());
    }
}
