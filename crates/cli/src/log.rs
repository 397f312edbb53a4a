//! What the library logs, on stderr: near misses and outages as lines like our own, and whatever `FENCEPOST_LOG` asks
//! for in full.

use std::fmt::{Debug, Write as _};
use std::io::Write as _;

use tracing::field::{Field, Visit};
use tracing::{Event, Subscriber};
use tracing_subscriber::layer::{Context, Layer, SubscriberExt as _};
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, fmt, registry};

use crate::exit::{is_quiet, say};

/// What a user must know without having asked.
const SHOWN: &str = "fencepost::rails=warn,fencepost::outage=warn";

/// What `elect --json` calls an outage.
const OUTAGE: &str = "fencepost::outage";

/// Sets it up, once. With `json` each line is an object.
pub(crate) fn to_stderr(json: bool) {
    let wanted = std::env::var("FENCEPOST_LOG").ok().filter(|wanted| !wanted.is_empty());
    match wanted {
        Some(wanted) => {
            let filter = EnvFilter::new(wanted);
            fmt().with_env_filter(filter).with_writer(std::io::stderr).init();
        }
        None if is_quiet() => {}
        None => registry().with(EnvFilter::new(SHOWN)).with(Lines { json }).init(),
    }
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
            let line = serde_json::json!({ "event": event, "name": name, "message": message });
            // A stderr that is gone does not stop us.
            let _ = writeln!(std::io::stderr(), "{line}");
            return;
        }
        match name {
            Some(name) => say(&format!("lock \"{name}\": {message}")),
            None => say(&message),
        }
    }
}

/// What an event says, and of which lock.
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
