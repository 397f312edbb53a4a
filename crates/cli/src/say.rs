//! Lines for people on stderr.

use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// `--quiet`: print only errors and warnings.
static QUIET: AtomicBool = AtomicBool::new(false);

/// From now on [`note`] prints nothing.
pub(crate) fn be_quiet() {
    QUIET.store(true, Ordering::Relaxed);
}

/// Whether `--quiet` was given.
pub(crate) fn is_quiet() -> bool {
    QUIET.load(Ordering::Relaxed)
}

/// Prints a line on stderr. A closed stderr is not an error.
pub(crate) fn say(message: &str) {
    let _ = writeln!(std::io::stderr(), "{}fencepost: {}", clear_line(), line(message));
}

/// Prints a line on stderr, unless `--quiet` was given.
pub(crate) fn note(message: &str) {
    if !is_quiet() {
        say(message);
    }
}

/// Whether the terminal shows the status line now.
static DRAWN: AtomicBool = AtomicBool::new(false);

/// From now on the next line replaces the status line.
pub(crate) fn line_is_drawn() {
    DRAWN.store(true, Ordering::Relaxed);
}

/// What must be written before another line, to remove the status line.
pub(crate) fn clear_line() -> &'static str {
    if DRAWN.swap(false, Ordering::Relaxed) { "\r\x1b[K" } else { "" }
}

/// Makes text from other clients fit for one line: escapes control characters.
pub(crate) fn line(text: &str) -> String {
    let escape = |c: char| if c.is_control() { c.escape_debug().collect() } else { c.to_string() };
    text.chars().map(escape).collect()
}
