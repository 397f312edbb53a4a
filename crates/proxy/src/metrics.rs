//! What is counted.

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::Registry;

/// What became of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    /// Passed on without a token.
    Passed,
    /// Entered, and passed on.
    Entered,
    /// Entered, and passed on; the response does not say how the request ended.
    Unknown,
    Stale,
    NoToken,
    NoLock,
    Bad,
    Busy,
    MarksFailed,
    UpstreamFailed,
    UpstreamLate,
}

impl Outcome {
    /// In the order of the variants, each with its word in metrics and in the log.
    const ALL: [(Self, &'static str); 11] = [
        (Self::Passed, "passed"),
        (Self::Entered, "entered"),
        (Self::Unknown, "unknown"),
        (Self::Stale, "stale"),
        (Self::NoToken, "no_token"),
        (Self::NoLock, "no_lock"),
        (Self::Bad, "bad_request"),
        (Self::Busy, "busy"),
        (Self::MarksFailed, "marks_failed"),
        (Self::UpstreamFailed, "upstream_failed"),
        (Self::UpstreamLate, "upstream_late"),
    ];

    /// The word in metrics and in the log.
    pub(crate) const fn word(self) -> &'static str {
        Self::ALL[self as usize].1
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ByOutcome {
    outcome: &'static str,
}

/// All figures.
pub(crate) struct Metrics {
    registry: Registry,
    requests: [Counter; Outcome::ALL.len()],
    pub(crate) queue_seconds: Histogram,
    pub(crate) upstream_seconds: Histogram,
    pub(crate) marks_raised: Counter,
    pub(crate) marks_failed: Counter,
    pub(crate) batches: Counter,
    pub(crate) connections: Gauge,
    held_back: Gauge,
    waiting: Gauge,
    pub(crate) log_lines_lost: Counter,
}

impl Metrics {
    pub(crate) fn new() -> Self {
        let mut registry = Registry::with_prefix("fencepost_proxy");
        let by_outcome = Family::<ByOutcome, Counter>::default();
        let requests =
            Outcome::ALL.map(|(_, outcome)| by_outcome.get_or_create_owned(&ByOutcome { outcome }));
        let seconds = || Histogram::new(exponential_buckets(0.0005, 4.0, 9));
        let metrics = Self {
            requests,
            queue_seconds: seconds(),
            upstream_seconds: seconds(),
            marks_raised: Counter::default(),
            marks_failed: Counter::default(),
            batches: Counter::default(),
            connections: Gauge::default(),
            held_back: Gauge::default(),
            waiting: Gauge::default(),
            log_lines_lost: Counter::default(),
            registry: Registry::default(),
        };
        registry.register("requests", "Requests by what became of them", by_outcome);
        registry.register(
            "queue_seconds",
            "How long requests with a token waited for their lock's turn",
            metrics.queue_seconds.clone(),
        );
        registry.register(
            "upstream_seconds",
            "How long the upstream took for requests with a token",
            metrics.upstream_seconds.clone(),
        );
        registry.register("marks_raised", "Marks that were raised", metrics.marks_raised.clone());
        registry.register(
            "marks_failed",
            "Transactions on the marks that failed: nothing was forwarded",
            metrics.marks_failed.clone(),
        );
        registry.register(
            "mark_batches",
            "Transactions on the marks; one sync each, if they raised any",
            metrics.batches.clone(),
        );
        registry.register("connections", "Connections of clients", metrics.connections.clone());
        registry.register(
            "held_back_names",
            "Lock names held back because the end of a request is not known",
            metrics.held_back.clone(),
        );
        registry.register(
            "waiting",
            "Requests that wait for their lock's turn",
            metrics.waiting.clone(),
        );
        registry.register(
            "log_lines_lost",
            "Lines that the access log could not take in time",
            metrics.log_lines_lost.clone(),
        );
        Self { registry, ..metrics }
    }

    pub(crate) fn count(&self, outcome: Outcome) {
        self.requests[outcome as usize].inc();
    }

    /// The text that Prometheus reads.
    pub(crate) fn text(&self, held_back: usize, waiting: usize) -> String {
        for (gauge, value) in [(&self.held_back, held_back), (&self.waiting, waiting)] {
            gauge.set(i64::try_from(value).unwrap_or(i64::MAX));
        }
        let mut text = String::new();
        // To write to a string does not fail.
        let _ = encode(&mut text, &self.registry);
        text
    }
}
