//! The metrics.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// What happened to a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Forwarded without a token.
    Passed,
    /// Entered and forwarded.
    Entered,
    /// Entered and forwarded; the response leaves the outcome unknown.
    Unknown,
    Stale,
    NoToken,
    NoLock,
    Malformed,
    Busy,
    MarksFailed,
    UpstreamFailed,
    UpstreamTimeout,
}

impl Outcome {
    /// In the order of the variants, each with its name in metrics and in the log.
    const ALL: [(Self, &'static str); 11] = [
        (Self::Passed, "passed"),
        (Self::Entered, "entered"),
        (Self::Unknown, "unknown"),
        (Self::Stale, "stale"),
        (Self::NoToken, "no_token"),
        (Self::NoLock, "no_lock"),
        (Self::Malformed, "bad_request"),
        (Self::Busy, "busy"),
        (Self::MarksFailed, "marks_failed"),
        (Self::UpstreamFailed, "upstream_failed"),
        (Self::UpstreamTimeout, "upstream_late"),
    ];

    /// The name in metrics and in the log.
    pub(crate) const fn as_str(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    outcome: &'static str,
}

/// All metrics; each is registered under the name of its field.
macro_rules! metrics {
    ($($name:ident: $kind:ty = $new:expr, $help:literal;)+) => {
        pub(crate) struct Metrics {
            registry: Registry,
            requests: [Counter; Outcome::ALL.len()],
            $(pub(crate) $name: $kind,)+
        }

        impl Metrics {
            pub(crate) fn new() -> Self {
                let mut registry = Registry::with_prefix("fencepost_gateway");
                let by_outcome = Family::<ByOutcome, Counter>::default();
                let requests = Outcome::ALL
                    .map(|(_, outcome)| by_outcome.get_or_create_owned(&ByOutcome { outcome }));
                registry.register("requests", "Requests by outcome", by_outcome);
                $(
                    let $name: $kind = $new;
                    registry.register(stringify!($name), $help, $name.clone());
                )+
                Self { registry, requests, $($name,)+ }
            }
        }
    };
}
metrics! {
    queue_seconds: Histogram = seconds(), "How long requests with a token waited for their lock";
    upstream_seconds: Histogram = seconds(), "How long the upstream took for requests with a token";
    marks_raised: Counter = Counter::default(), "Marks that were raised";
    marks_failed: Counter = Counter::default(), "Transactions on the marks that failed: nothing was forwarded";
    mark_batches: Counter = Counter::default(), "Transactions on the marks; one sync each, if they raised any";
    connections: Gauge = Gauge::default(), "Connections of clients";
    blocked_names: Gauge = Gauge::default(), "Lock names that are blocked because the outcome of a request is unknown";
    waiting: Gauge = Gauge::default(), "Requests that wait for their lock";
    log_lines_lost: Counter = Counter::default(), "Lines of the access log that were dropped";
}

fn seconds() -> Histogram {
    Histogram::new(exponential_buckets(0.0005, 4.0, 9))
}

impl Metrics {
    pub(crate) fn count(&self, outcome: Outcome) {
        self.requests[outcome as usize].inc();
    }

    /// The metrics in Prometheus' text format.
    pub(crate) fn text(&self, blocked: usize, waiting: usize) -> String {
        for (gauge, value) in [(&self.blocked_names, blocked), (&self.waiting, waiting)] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
