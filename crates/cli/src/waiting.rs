//! What a wait shows on stderr.

use std::convert::Infallible;
use std::io::{IsTerminal as _, Write as _};
use std::time::Duration;

use fencepost::Fencepost;
use fencepost::backend::{LockInfo, short};
use fencepost::clock::{BootClock, Clock as _};

use crate::out;
use crate::say::{clear_line, is_quiet, line_is_drawn, note, say};
use crate::store::Target;

/// A free lock is acquired before this, so the status line does not flicker.
const FIRST_UPDATE: Duration = Duration::from_millis(150);
const UPDATE_INTERVAL: Duration = Duration::from_secs(1);

/// A wait for a lock.
#[derive(Clone, Copy)]
pub(crate) struct Wait<'a> {
    pub(crate) at: &'a Target,
    pub(crate) fp: &'a Fencepost,
    pub(crate) name: &'a str,
    /// Our label in the queue.
    pub(crate) label: &'a str,
}

/// Shows the holder, until this is dropped: on a terminal in a status line, elsewhere in one line after a second. With
/// `--quiet` it shows only a wait that cannot end.
pub(crate) async fn show(wait: Wait<'_>) -> Infallible {
    let Wait { at, fp, name, label } = wait;
    let _line = StatusLine;
    let drawn = std::io::stderr().is_terminal() && !is_quiet();
    let delay = if drawn { FIRST_UPDATE } else { UPDATE_INTERVAL };
    BootClock.alarm(BootClock.now() + delay).await;
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
            Ok(info) => StatusLine::draw(&describe(&info, label)),
            Err(error) => StatusLine::draw(&error.one_line()),
        }
        BootClock.alarm(BootClock.now() + UPDATE_INTERVAL).await;
        first = fp.inspect(name).await;
    }
}

/// Warns about a wait for the lock under which this process runs: it would never end.
fn warn_if_nested(at: &Target, info: &LockInfo) {
    let holder = info.holder.as_ref();
    if holder.is_some_and(|holder| at.is_held_by_parent(info.name.as_str(), holder)) {
        say(&format!(
            "\"{}\" is held by the command that started this one, so it waits for its own parent: use another \
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
        Some(ahead) => format!("{} of {}", ahead + 1, info.waiting),
        None => format!("{} waiting", info.waiting),
    };
    format!("waiting for \"{}\" ({queue}): {holder}", info.name)
}

/// A line on the terminal that each update replaces, and that is removed on drop.
struct StatusLine;

impl StatusLine {
    fn draw(text: &str) {
        line_is_drawn();
        let known = rustix::termios::tcgetwinsize(std::io::stderr())
            .map_or(0, |size| usize::from(size.ws_col));
        let width = if known == 0 { 80 } else { known };
        let text = format!("fencepost: {text}");
        // Some terminals wrap a line that fills the last column.
        let fits = out::cut(&out::line(&text), width.saturating_sub(1));
        let mut stderr = std::io::stderr();
        let _ = write!(stderr, "\r\x1b[K{fits}").and_then(|()| stderr.flush());
    }
}

impl Drop for StatusLine {
    fn drop(&mut self) {
        let mut stderr = std::io::stderr();
        let _ = write!(stderr, "{}", clear_line()).and_then(|()| stderr.flush());
    }
}
