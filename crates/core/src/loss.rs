//! Why a grant ended before its holder released it.

use std::fmt;

/// Why a guard can no longer be trusted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LossCause {
    /// The lease expired: this process, its machine or its heartbeat was stopped for too long.
    Expired,
    /// The store has another grant in its place, or none: another client was granted the lock, or the entry was deleted.
    TakenOver,
    /// An operator broke it.
    Broken,
    /// The store could not be reached until the lease expired.
    StoreUnreachable,
    /// The session that carried the grant has ended.
    SessionGone,
    /// It was held as long as `max_hold` allows.
    MaxHold,
    /// `progress()` was not called in time, so renewal stopped.
    NoProgress,
    /// It was released, or its guard was dropped, while work still ran under it.
    Released,
}

impl fmt::Display for LossCause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Expired => "its lease ran out",
            Self::TakenOver => "its grant was removed or replaced at the store",
            Self::Broken => "an operator broke it",
            Self::StoreUnreachable => "the store was out of reach until the lease ran out",
            Self::SessionGone => "its session ended",
            Self::MaxHold => "it was held as long as max_hold allows",
            Self::NoProgress => "no progress was reported in time",
            Self::Released => "it was released",
        })
    }
}

impl LossCause {
    /// The name for scripts, logs and metrics.
    #[must_use]
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Expired => "expired",
            Self::TakenOver => "taken_over",
            Self::Broken => "broken",
            Self::StoreUnreachable => "store_unreachable",
            Self::SessionGone => "session_gone",
            Self::MaxHold => "max_hold",
            Self::NoProgress => "no_progress",
            Self::Released => "released",
        }
    }
}
