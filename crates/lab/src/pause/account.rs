//! What happened in the lab of the pause: judged, in words, and for programs.

use std::time::Duration;

use super::Options;
use crate::event::{Event, What, Who, first, millis, token};
use crate::lanes::Picture;
use crate::verdict::Verdict;

/// What happened, as a whole.
#[derive(Debug)]
pub struct Account {
    /// The lock store.
    pub store: String,
    /// The resource.
    pub resource: &'static str,
    /// The lab had to install the fence in a database of the user's.
    pub installed: bool,
    /// The TTL that the store kept.
    pub ttl: Duration,
    /// Where the store frees a lock later than its lease ends: when.
    pub late: Option<&'static str>,
    /// How it was carried out.
    pub options: Options,
    /// Without the fence, and with it.
    pub halves: [Half; 2],
    /// Whether it shows what it should.
    pub verdict: Verdict,
}

/// One half.
#[derive(Clone, Debug)]
pub struct Half {
    /// Whether the workers used the fence.
    pub fence: bool,
    /// The balance at first.
    pub start: i64,
    /// What it should be in the end: with every addition whose write was accepted.
    pub expected: i64,
    /// What it was.
    pub end: i64,
    /// What happened.
    pub events: Vec<Event>,
    pub(super) ttl: Duration,
}

impl Half {
    /// The lanes of this half.
    #[must_use]
    pub fn picture(&self) -> Picture {
        let title = if self.fence { "With the fence" } else { "Without the fence" };
        Picture::of(title, Some(self.start), &self.events, self.ttl)
    }

    fn at(&self, of: Who, is: impl Fn(&What) -> bool) -> Option<Duration> {
        first(&self.events, of, is).map(|event| event.at)
    }

    /// From the end of A's lease to the grant of B, if it was frozen past it.
    #[must_use]
    pub fn waited_on(&self) -> Option<Duration> {
        let over = self.at(Who::A, |what| matches!(what, What::LeaseOver { .. }))?;
        let granted = self.at(Who::B, |what| matches!(what, What::Granted { .. }))?;
        Some(granted.saturating_sub(over))
    }

    fn froze(&self) -> bool {
        self.at(Who::A, |what| *what == What::Frozen).is_some()
    }

    fn is_refused(&self) -> bool {
        self.at(Who::A, |what| matches!(what, What::Refused { .. })).is_some()
    }

    /// What became of the balance, in a sentence.
    fn outcome(&self) -> String {
        let with = if self.fence { "With" } else { "Without" };
        let lost = self.expected - self.end;
        if self.is_refused() {
            format!("{with} the fence A is refused.")
        } else if lost == 0 {
            format!("{with} the fence nothing is lost.")
        } else {
            format!("{with} the fence A overwrites what B wrote, and {lost} are lost.")
        }
    }

    pub(super) fn judge(&self, fence: bool, verdict: &mut Verdict) {
        let which = if fence { "with the fence" } else { "without the fence" };
        let (first, second) = (token(&self.events, Who::A), token(&self.events, Who::B));
        let words = |token: Option<u64>| token.map_or("none".to_owned(), |token| token.to_string());
        let (a, b) = (words(first), words(second));
        let frozen = self.at(Who::A, |what| *what == What::Frozen);
        let granted = self.at(Who::B, |what| matches!(what, What::Granted { .. }));
        let woken = self.at(Who::A, |what| *what == What::Woken);
        let meanwhile = frozen.is_some() && frozen < granted && granted < woken;
        verdict.check(
            format!("{which}: B is granted the lock while A is frozen, with a higher token"),
            meanwhile && first.is_some() && first < second,
            match (frozen, granted) {
                (Some(frozen), Some(granted)) if meanwhile => {
                    let after = granted.saturating_sub(frozen).as_secs_f64();
                    format!("{after:.2}s after the freeze; tokens {a}, {b}")
                }
                _ if frozen.is_none() => format!("nobody was frozen; tokens {a}, {b}"),
                _ => format!("A was not frozen then; tokens {a}, {b}"),
            },
        );
        let refused = self.is_refused();
        let figures = format!("expected {}, is {}", self.expected, self.end);
        if fence {
            let seen = if refused { "stale" } else { "it was accepted" };
            verdict.check(format!("{which}: A's write is refused"), refused, seen);
            // With what B added: else it could be right because nobody wrote.
            let added = self.at(Who::B, |what| matches!(what, What::Wrote { .. })).is_some();
            let right = added && self.end == self.expected;
            verdict.check(format!("{which}: the balance is right"), right, figures);
        } else {
            let seen = if refused { "stale" } else { "without an error" };
            verdict.check(format!("{which}: A's write is accepted"), !refused, seen);
            let lost = self.end < self.expected;
            verdict.check(format!("{which}: an update is lost"), lost, figures);
        }
    }
}

impl Account {
    /// Whether A was frozen, in both halves.
    #[must_use]
    pub fn froze(&self) -> bool {
        self.halves.iter().all(Half::froze)
    }

    /// What the picture shows.
    #[must_use]
    pub fn title(&self) -> String {
        let holders = if self.froze() {
            "A holder that freezes past its lease"
        } else {
            "Two holders, one after the other"
        };
        let halves = match self.halves.each_ref().map(|half| half.fence) {
            [false, true] => "without and with the fence",
            [true, false] => "with and without the fence",
            [true, true] => "twice with the fence",
            [false, false] => "twice without the fence",
        };
        format!("{holders}, {halves}")
    }

    /// The same at length, for those who do not see it.
    #[must_use]
    pub fn description(&self) -> String {
        let story = if self.froze() {
            "A takes the lock, reads the balance and is frozen. Its lease ends, B is granted the lock with a higher \
             token, reads, writes and releases. A wakes and writes."
        } else {
            "A takes the lock, reads the balance, writes and releases; then B does the same. Nobody is frozen."
        };
        let [first, second] = self.halves.each_ref().map(Half::outcome);
        format!("Time runs down. {story} {first} {second}")
    }

    /// All of it, for programs.
    #[must_use]
    pub fn as_json(&self) -> serde_json::Value {
        let halves: Vec<serde_json::Value> = self
            .halves
            .iter()
            .map(|half| {
                serde_json::json!({
                    "fence": half.fence,
                    "start": half.start,
                    "expected": half.expected,
                    "final": half.end,
                    "lost": half.expected - half.end,
                    "tokens": { "A": token(&half.events, Who::A), "B": token(&half.events, Who::B) },
                    "grant_after_lease_ms": half.waited_on().map(millis),
                    "events": half.events,
                })
            })
            .collect();
        serde_json::json!({
            "lab": "pause",
            "shown": self.verdict.holds(),
            "store": self.store,
            "resource": self.resource,
            "fence_installed": self.installed,
            "ttl_ms": self.ttl.as_millis() as u64,
            "ttl_asked_ms": self.options.ttl.as_millis() as u64,
            "frees_late": self.late,
            "work_ms": self.options.work.as_millis() as u64,
            "halves": halves,
            "checks": self.verdict,
        })
    }
}
