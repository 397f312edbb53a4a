//! The holder of a lock, as a store shows it.

use std::fmt;
use std::time::Duration;

use crate::span::short;
use crate::types::{Label, Token, Ttl, Value};

/// Who holds a lock. If the store is shared with third-party clients, such a holder may have no token, and
/// the store may not know all of this.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HolderInfo {
    /// What a person reads as the holder.
    pub label: Label,
    /// The fencing token of the grant; `None` for a third-party client without tokens.
    pub token: Option<Token>,
    /// The lease's TTL.
    pub ttl: Option<Ttl>,
    /// How long ago the grant was made.
    pub held_for: Option<Duration>,
    /// How long the lease runs unless renewed, if the store knows.
    pub remaining: Option<Duration>,
    /// It was taken without a lease: it does not end by itself.
    pub no_expiry: bool,
    /// The value that it publishes, if it leads an election.
    pub value: Option<Value>,
}

impl HolderInfo {
    /// A holder of which only its label is known.
    ///
    /// ```
    /// use fencepost_core::{HolderInfo, Label, Token, Ttl};
    ///
    /// let holder = HolderInfo::new(Label::new("web-3:4711")?)
    ///     .with_token(Token::new(42)?)
    ///     .with_ttl(Ttl::MIN);
    /// assert_eq!(holder.token, Some(Token::new(42)?));
    /// assert_eq!(holder.remaining, None);
    /// # Ok::<(), fencepost_core::Invalid>(())
    /// ```
    #[must_use]
    pub const fn new(label: Label) -> Self {
        Self {
            label,
            token: None,
            ttl: None,
            held_for: None,
            remaining: None,
            no_expiry: false,
            value: None,
        }
    }

    /// A holder of which only its existence is known.
    #[must_use]
    pub fn third_party() -> Self {
        Self::new(Label::new("another client").expect("a fixed label is valid"))
    }

    /// Sets the token.
    #[must_use]
    pub fn with_token(mut self, token: impl Into<Option<Token>>) -> Self {
        self.token = token.into();
        self
    }

    /// Sets the TTL of its lease.
    #[must_use]
    pub fn with_ttl(mut self, ttl: impl Into<Option<Ttl>>) -> Self {
        self.ttl = ttl.into();
        self
    }

    /// Sets how long it has held the lock.
    #[must_use]
    pub fn with_held_for(mut self, held_for: impl Into<Option<Duration>>) -> Self {
        self.held_for = held_for.into();
        self
    }

    /// Sets how long its lease still runs.
    #[must_use]
    pub fn with_remaining(mut self, remaining: impl Into<Option<Duration>>) -> Self {
        self.remaining = remaining.into();
        self
    }

    /// Sets that it was taken without a lease.
    #[must_use]
    pub const fn with_no_expiry(mut self, no_expiry: bool) -> Self {
        self.no_expiry = no_expiry;
        self
    }

    /// Sets what it publishes.
    #[must_use]
    pub fn with_value(mut self, value: impl Into<Option<Value>>) -> Self {
        self.value = value.into();
        self
    }
}

/// As a clause: "is held by ...".
impl fmt::Display for HolderInfo {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let token = self.token.map_or_else(|| "no token".into(), |token| format!("token {token}"));
        let held = self.held_for.map_or_else(String::new, |span| format!(" for {}", short(span)));
        let lease = match self.remaining {
            Some(left) => format!("its lease ends in {} unless renewed", short(left)),
            None if self.no_expiry => "its lease does not expire".into(),
            None => "the store does not say when its lease ends".into(),
        };
        write!(out, "is held by {} ({token}){held}, {lease}", self.label)
    }
}
