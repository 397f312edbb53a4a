//! The result of the pause lab: its checks, its descriptions and its JSON.

use std::time::Duration;

use super::Options;
use crate::event::{Action, Actor, Event, first, millis, token};
use crate::timeline::Picture;
use crate::verdict::Verdict;

/// The result of the lab.
#[derive(Debug)]
pub struct Outcome {
    /// The lock store.
    pub store: String,
    /// The resource.
    pub resource: &'static str,
    /// Whether the lab installed the fence in a database of the user.
    pub installed: bool,
    /// The TTL that the store granted.
    pub ttl: Duration,
    /// If the store frees a lock later than its lease ends: when.
    pub frees_late: Option<&'static str>,
    /// The options of this run.
    pub options: Options,
    /// Without the fence, and with it.
    pub halves: [Half; 2],
    /// Whether the lab shows what it should.
    pub verdict: Verdict,
}

/// One half of the lab.
#[derive(Clone, Debug)]
pub struct Half {
    /// Whether the workers used the fence.
    pub fence: bool,
    /// The balance at the start.
    pub start: i64,
    /// The balance with every addition whose write was accepted.
    pub expected: i64,
    /// The balance at the end.
    pub end: i64,
    /// The events.
    pub events: Vec<Event>,
    pub(super) ttl: Duration,
}

impl Half {
    /// The timeline of this half.
    #[must_use]
    pub fn picture(&self) -> Picture {
        let title = if self.fence { "With the fence" } else { "Without the fence" };
        Picture::of(title, Some(self.start), &self.events, self.ttl)
    }

    fn at(&self, of: Actor, is: impl Fn(&Action) -> bool) -> Option<Duration> {
        first(&self.events, of, is).map(|event| event.at)
    }

    /// The time from the end of A's lease to B's grant, if A was frozen past it.
    #[must_use]
    pub fn grant_after_lease(&self) -> Option<Duration> {
        let over = self.at(Actor::A, |what| matches!(what, Action::LeaseEnded { .. }))?;
        let granted = self.at(Actor::B, |what| matches!(what, Action::Granted { .. }))?;
        Some(granted.saturating_sub(over))
    }

    fn froze(&self) -> bool {
        self.at(Actor::A, |what| *what == Action::Frozen).is_some()
    }

    fn is_refused(&self) -> bool {
        self.at(Actor::A, |what| matches!(what, Action::Refused { .. })).is_some()
    }

    /// What happened to the balance, in a sentence.
    fn summary(&self) -> String {
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
        let (first, second) = (token(&self.events, Actor::A), token(&self.events, Actor::B));
        let words = |token: Option<u64>| token.map_or("none".to_owned(), |token| token.to_string());
        let (a, b) = (words(first), words(second));
        let frozen = self.at(Actor::A, |what| *what == Action::Frozen);
        let granted = self.at(Actor::B, |what| matches!(what, Action::Granted { .. }));
        let woken = self.at(Actor::A, |what| *what == Action::Woken);
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
            // B must have written: otherwise the balance could be right because nobody wrote.
            let added = self.at(Actor::B, |what| matches!(what, Action::Wrote { .. })).is_some();
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

impl Outcome {
    /// Whether A was frozen in both halves.
    #[must_use]
    pub fn froze(&self) -> bool {
        self.halves.iter().all(Half::froze)
    }

    /// The title of the picture.
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

    /// The description of the picture, for readers who do not see it.
    #[must_use]
    pub fn description(&self) -> String {
        let story = if self.froze() {
            "A acquires the lock, reads the balance and is frozen. Its lease ends, B is granted the lock with a higher \
             token, reads, writes and releases. A wakes and writes."
        } else {
            "A acquires the lock, reads the balance, writes and releases; then B does the same. Nobody is frozen."
        };
        let [first, second] = self.halves.each_ref().map(Half::summary);
        format!("Time runs down. {story} {first} {second}")
    }

    /// The result for programs.
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
                    "tokens": { "A": token(&half.events, Actor::A), "B": token(&half.events, Actor::B) },
                    "grant_after_lease_ms": half.grant_after_lease().map(millis),
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
            "frees_late": self.frees_late,
            "work_ms": self.options.work.as_millis() as u64,
            "halves": halves,
            "checks": self.verdict,
        })
    }
}
