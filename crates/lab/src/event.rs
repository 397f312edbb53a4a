//! What happened, to whom, and when: the list that everything shown is made from.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize, Serializer};

/// One of the two workers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Who {
    /// The one that is frozen or killed.
    A,
    /// The next one.
    B,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::A => "A",
            Self::B => "B",
        })
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "what", rename_all = "snake_case")]
#[non_exhaustive]
pub enum What {
    /// It asks for the lock.
    Asked,
    /// It has the lock.
    Granted {
        /// The fencing token.
        token: u64,
    },
    /// It read the resource, in a transaction of its own.
    Read {
        /// What it read.
        value: i64,
    },
    /// The lab stopped its process (SIGSTOP).
    Frozen,
    /// The lab killed its process (SIGKILL).
    Killed,
    /// The last moment for which its guard was good, as it was told with its last renewal.
    LeaseOver {
        /// The store keeps the lock until the holder's session has timed out, which is later.
        session_goes_on: bool,
    },
    /// The lab let its process go on (SIGCONT).
    Woken,
    /// Its guard tells that the lock is lost. The worker does not look.
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
        /// What the fence said.
        why: String,
    },
    /// It gave the lock back.
    Released,
    /// It wanted to give the lock back, and had lost it.
    NotHeld {
        /// What the library said.
        why: String,
    },
}

/// Something that happened. For programs it is an object: `at_ms`, `who`, `what` and what belongs to it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Event {
    /// Since the beginning.
    #[serde(rename = "at_ms", serialize_with = "as_millis")]
    pub at: Duration,
    /// To whom.
    pub who: Who,
    /// What.
    #[serde(flatten)]
    pub what: What,
}

/// The first of these that happened to `who`.
pub(crate) fn first(events: &[Event], who: Who, is: impl Fn(&What) -> bool) -> Option<&Event> {
    events.iter().find(|event| event.who == who && is(&event.what))
}

/// The token that `who` was granted.
pub(crate) fn token(events: &[Event], who: Who) -> Option<u64> {
    events.iter().find_map(|event| match event.what {
        What::Granted { token } if event.who == who => Some(token),
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
            What::Asked => write!(f, "asks for the lock"),
            What::Granted { token } => write!(f, "has the lock, token {token}"),
            What::Read { value } => write!(f, "reads {value}"),
            What::Frozen => write!(f, "is frozen (SIGSTOP)"),
            What::Killed => write!(f, "is killed (SIGKILL)"),
            What::LeaseOver { session_goes_on } => {
                let till = if *session_goes_on {
                    ", but has a session: the store waits for its end"
                } else {
                    ""
                };
                write!(f, "can not be sure of the lock any longer{till}")
            }
            What::Woken => write!(f, "wakes (SIGCONT)"),
            What::Lost { cause } => {
                write!(f, "is told by its guard: lost, {cause}. It does not look")
            }
            What::Wrote { value } => write!(f, "writes {value}"),
            What::Refused { value, why } => write!(f, "would write {value}. Refused: {why}"),
            What::Released => write!(f, "gives the lock back"),
            What::NotHeld { why } => write!(f, "wants to give the lock back: {why}"),
        }
    }
}
