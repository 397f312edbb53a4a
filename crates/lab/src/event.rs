//! The events of a lab, from which all output is made.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

/// One of the two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Actor {
    /// The one that is frozen or killed.
    A,
    /// The next one.
    B,
}

impl fmt::Display for Actor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::B => "B",
        })
    }
}

/// What happened to a worker.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Action {
    /// It requested the lock.
    Asked,
    /// It was granted the lock.
    Granted {
        /// The fencing token.
        token: u64,
    },
    /// It read the resource.
    Read {
        /// What it read.
        value: i64,
    },
    /// The lab stopped its process (SIGSTOP).
    Frozen,
    /// The lab killed its process (SIGKILL).
    Killed,
    /// The deadline of its guard, as of its last renewal, has passed.
    LeaseEnded {
        /// The store frees the lock only when the holder's session has timed out, which is later.
        session_continues: bool,
    },
    /// The lab continued its process (SIGCONT).
    Woken,
    /// Its guard is lost. The worker does not check it.
    Lost {
        /// Why.
        cause: String,
    },
    /// Its write was accepted.
    Wrote {
        /// What it wrote.
        value: i64,
    },
    /// Its write was refused: a higher token has entered.
    Refused {
        /// What it would have written.
        value: i64,
        /// The error of the fence.
        why: String,
    },
    /// It released the lock.
    Released,
    /// Its release failed, because it had lost the lock.
    NotHeld {
        /// The error of the library.
        why: String,
    },
}

/// An event. In JSON it is an object with `at_ms`, `who`, `what` and the fields of that kind.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// The time since the start.
    #[serde(rename = "at_ms", serialize_with = "as_millis")]
    pub at: Duration,
    /// The worker.
    pub who: Actor,
    /// What happened.
    #[serde(flatten)]
    pub what: Action,
}

/// The first event of `who` that `is` accepts.
pub(crate) fn first(events: &[Event], who: Actor, is: impl Fn(&Action) -> bool) -> Option<&Event> {
    events.iter().find(|event| event.who == who && is(&event.what))
}

/// The token that `who` was granted.
pub(crate) fn token(events: &[Event], who: Actor) -> Option<u64> {
    events.iter().find_map(|event| match event.what {
        Action::Granted { token } if event.who == who => Some(token),
        _ => None,
    })
}

fn as_millis<S: Serializer>(span: &Duration, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_f64(millis(*span))
}

/// Milliseconds with three digits after the point.
pub(crate) fn millis(span: Duration) -> f64 {
    (span.as_secs_f64() * 1e6).round() / 1e3
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let who = self.who;
        write!(f, "{:>7.2}s  {who} ", self.at.as_secs_f64())?;
        match &self.what {
            Action::Asked => write!(f, "asks for the lock"),
            Action::Granted { token } => write!(f, "is granted the lock, token {token}"),
            Action::Read { value } => write!(f, "reads {value}"),
            Action::Frozen => write!(f, "is frozen (SIGSTOP)"),
            Action::Killed => write!(f, "is killed (SIGKILL)"),
            Action::LeaseEnded { session_continues } => {
                let session = if *session_continues {
                    ", but the store waits for the end of its session"
                } else {
                    ""
                };
                write!(f, "can no longer be sure of the lock{session}")
            }
            Action::Woken => write!(f, "wakes (SIGCONT)"),
            Action::Lost { cause } => {
                write!(f, "has a lost guard ({cause}), but does not check it")
            }
            Action::Wrote { value } => write!(f, "writes {value}"),
            Action::Refused { value, why } => write!(f, "would write {value}. Refused: {why}"),
            Action::Released => write!(f, "releases the lock"),
            Action::NotHeld { why } => write!(f, "tries to release the lock: {why}"),
        }
    }
}
