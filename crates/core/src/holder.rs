//! What a store tells of the holder of a lock.

use std::time::Duration;

use crate::span::short;
use crate::types::{Label, Token, Ttl, Value};

/// Who holds a lock. Where a store is shared with clients that are not ours, such a holder may have no
/// token, and the store may not know all of this.
#[derive(Clone, Debug, PartialEq)]
pub struct HolderInfo {
    /// What a person reads as the holder.
    pub label: Label,
    /// The fencing token of the grant; `None` for another make of client that has none.
    pub token: Option<Token>,
    /// The lease's TTL.
    pub ttl: Option<Ttl>,
    /// How long ago the grant was made.
    pub held_for: Option<Duration>,
    /// How long the lease runs unless renewed, where the store tells.
    pub remaining: Option<Duration>,
    /// It was taken without a lease: it does not end by itself.
    pub endless: bool,
    /// What it says of itself, if it leads an election.
    pub value: Option<Value>,
}

impl HolderInfo {
    /// A holder of which only its existence is known.
    #[must_use]
    pub fn stranger() -> Self {
        let label = Label::new("another client").expect("a fixed label is valid");
        Self {
            label,
            token: None,
            ttl: None,
            held_for: None,
            remaining: None,
            endless: false,
            value: None,
        }
    }

    /// The holder as a clause: "is held by ...".
    #[must_use]
    pub fn in_words(&self) -> String {
        let token = self.token.map_or_else(|| "no token".into(), |token| format!("token {token}"));
        let held = self.held_for.map_or_else(String::new, |span| format!(" for {}", short(span)));
        let lease = match self.remaining {
            Some(left) => format!("its lease runs another {} unless renewed", short(left)),
            None if self.endless => "its lease has no end".into(),
            None => "the store does not tell how long its lease runs".into(),
        };
        format!("is held by {} ({token}){held}, {lease}", self.label)
    }
}
