//! The library's log on stderr: near misses and outages in the format of the command's own lines, or what
//! `FENCEPOST_LOG` selects, in full.

use std::fmt::{Debug, Write as _};
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::Targets;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{fmt, registry};

use crate::exit::{Failure, is_quiet, say};
use crate::store::env_var;

const NEAR_MISS: &str = "fencepost::near_miss";
const OUTAGE: &str = "fencepost::outage";

/// Sets up the log, once. With `json` each line is an object.
pub(crate) fn to_stderr(json: bool) -> Result<(), Failure> {
    match env_var("FENCEPOST_LOG") {
        Some(filter) => {
            let targets: Targets = filter.parse().map_err(|error| {
                Failure::usage(format!(
                    "FENCEPOST_LOG is \"{filter}\" ({error}): set it to a level, as in debug, or to targets and \
                     levels, as in warn,fencepost=trace"
                ))
            })?;
            registry().with(fmt::layer().with_writer(std::io::stderr)).with(targets).init();
        }
        None if is_quiet() => {}
        None => {
            let shown = [NEAR_MISS, OUTAGE].map(|target| (target, Level::WARN));
            registry().with(Targets::new().with_targets(shown)).with(Lines { json }).init();
        }
    }
    Ok(())
}

/// Prints each event as one line.
struct Lines {
    json: bool,
}

impl<S: Subscriber> Layer<S> for Lines {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let mut text = Text::default();
        event.record(&mut text);
        let Text { name, message } = text;
        if self.json {
            let outage = event.metadata().target() == OUTAGE;
            let event = if outage { "unreachable" } else { "near_miss" };
            json_line(&serde_json::json!({ "event": event, "name": name, "message": message }));
            return;
        }
        match name {
            Some(name) => say(&format!("lock \"{name}\": {message}")),
            None => say(&message),
        }
    }
}

/// Prints an event as a line of JSON on stderr. A closed stderr is not an error.
pub(crate) fn json_line(event: &serde_json::Value) {
    let _ = writeln!(std::io::stderr(), "{event}");
}

/// The message of an event, and its lock.
#[derive(Default)]
struct Text {
    name: Option<String>,
    message: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        match field.name() {
            "message" => self.message.insert_str(0, &format!("{value:?}")),
            "name" => self.name = Some(format!("{value:?}")),
            other => {
                // Writing to a string does not fail.
                let _ = write!(self.message, " ({other}: {value:?})");
            }
        }
    }
}
