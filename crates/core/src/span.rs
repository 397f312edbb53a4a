//! Spans of time as people read them.

use std::time::Duration;

/// A span of time for people: `12.3s`, `45ms`, `2m05s`.
#[must_use]
pub fn short(span: Duration) -> String {
    let seconds = span.as_secs();
    match seconds {
        0 => format!("{}ms", span.as_millis()),
        1..60 => format!("{}.{}s", seconds, span.subsec_millis() / 100),
        60..3600 => format!("{}m{:02}s", seconds / 60, seconds % 60),
        _ => format!("{}h{:02}m", seconds / 3600, seconds % 3600 / 60),
    }
}
