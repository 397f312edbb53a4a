//! Lines for people on stderr.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// `--quiet`: nothing but errors and warnings.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From here on [`note`] prints nothing.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether `--quiet` was given.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// One line on stderr. A stderr that is gone does not stop us.
pub(crate) fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "{}fencepost: {}", clear_line(), line(message));
}

/// The same, for what `--quiet` leaves out.
pub(crate) fn note(message: &str) {
    if !is_quiet() {
        say(message);
    }
}

/// Whether a line that is drawn over stands on the terminal now.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// From here on the next line clears the one that is drawn.
pub(crate) fn line_is_drawn() {
    DRAWN.store(true, Ordering::Relaxed);
}

/// What must be written before another line, so that it does not stand behind the drawn one.
pub(crate) fn clear_line() -> &'static str {
    if DRAWN.swap(false, Ordering::Relaxed) { "\r\x1b[K" } else { "" }
}

/// What others wrote, fit for one line: control characters are escaped.
pub(crate) fn line(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_debug().collect() } else { c.to_string() };
    text.chars().map(escape).collect()
}
