//! What a backend keeps under which fault, as data: `explain` prints it, the docs show it, tests check it.

use std::fmt;

use fencepost_core::Ttl;

/// What a store promises.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Guarantees {
    /// The backend, by its URL scheme.
    pub backend: &'static str,
    /// How far its exclusion reaches.
    pub scope: &'static str,
    /// Whether a lock on it may guard against corruption, not only against wasted work.
    pub correctness: Correctness,
    /// Waiters are granted in the order they came.
    pub fifo: bool,
    /// How a waiter is woken.
    pub wake: &'static str,
    /// Whose clock ends a lease.
    pub clock: &'static str,
    /// The longest TTL that it takes.
    pub longest: Ttl,
    /// Whether a renewal may ask for a longer TTL than the grant had.
    pub lengthens: bool,
    /// How well it keeps the records of what was done once per key.
    pub records: Records,
    /// What was found on the server that this client is connected to, as a name and a value each.
    pub found: Vec<(&'static str, String)>,
    /// What is kept under each fault, one row each, in the order of [`Fault::ALL`].
    pub under: [Kept; 7],
}

/// Whether a backend may be used for correctness.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Correctness {
    /// It may.
    Fit,
    /// It may not.
    Unfit {
        /// Why.
        why: String,
        /// What would change that.
        remedy: String,
    },
}

/// How well a store keeps records: what `once` and its kin need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Records {
    /// A record that was told is there until its time is over.
    Kept,
    /// A record may be lost, and the work be done again.
    MayBeLost {
        /// Why.
        why: String,
        /// What would change that.
        remedy: String,
    },
    /// It keeps none.
    None {
        /// Why.
        why: String,
        /// Where to turn.
        remedy: String,
    },
}

impl Records {
    /// Of a store that keeps its records as it keeps its locks.
    #[must_use]
    pub fn like(correctness: &Correctness) -> Self {
        match correctness {
            Correctness::Fit => Self::Kept,
            Correctness::Unfit { why, remedy } => {
                Self::MayBeLost { why: why.clone(), remedy: remedy.clone() }
            }
        }
    }
}

/// A thing that goes wrong.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The holder's process ends without a release.
    HolderCrash,
    /// The holder stands still past its lease, then goes on.
    HolderPause,
    /// The store ends and starts again.
    StoreCrash,
    /// Another node takes over from the store's primary.
    Failover,
    /// A wall clock jumps.
    ClockJump,
    /// The holder and the store can not reach each other.
    Partition,
    /// The store comes back without its latest data.
    DataLoss,
}

impl Fault {
    /// Every fault that a backend has to answer for.
    pub const ALL: [Self; 7] = [
        Self::HolderCrash,
        Self::HolderPause,
        Self::StoreCrash,
        Self::Failover,
        Self::ClockJump,
        Self::Partition,
        Self::DataLoss,
    ];
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::HolderCrash => "holder crash",
            Self::HolderPause => "holder pause",
            Self::StoreCrash => "store crash",
            Self::Failover => "failover",
            Self::ClockJump => "clock jump",
            Self::Partition => "partition",
            Self::DataLoss => "data loss",
        })
    }
}

/// What is left of the two promises that matter most under one fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// P1: the lease intervals of two grants of one name never overlap.
    pub exclusion: Holds,
    /// P2: a later grant of a name has a higher token.
    pub tokens: Holds,
    /// What happens, in a sentence.
    pub note: &'static str,
}

impl Kept {
    /// Both promises hold.
    #[must_use]
    pub const fn both(note: &'static str) -> Self {
        Self { exclusion: Holds::Yes, tokens: Holds::Yes, note }
    }

    /// This fault can not happen to this backend.
    #[must_use]
    pub const fn none_such(note: &'static str) -> Self {
        Self { exclusion: Holds::NotApplicable, tokens: Holds::NotApplicable, note }
    }
}

/// Whether a promise holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Holds {
    /// It does.
    Yes,
    /// It does not.
    No,
    /// The fault can not happen.
    NotApplicable,
}

impl fmt::Display for Holds {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Yes => "yes",
            Self::No => "no",
            Self::NotApplicable => "-",
        })
    }
}

impl Guarantees {
    /// Each fault with what is kept under it.
    pub fn rows(&self) -> impl Iterator<Item = (Fault, Kept)> + '_ {
        Fault::ALL.into_iter().zip(self.under)
    }

    /// The table as Markdown, in the one form that the docs use for every backend.
    #[must_use]
    pub fn markdown(&self) -> String {
        use fmt::Write as _;
        let mut page = String::new();
        let correctness = match &self.correctness {
            Correctness::Fit => "yes".to_owned(),
            Correctness::Unfit { why, remedy } => format!("no: {why}. {remedy}"),
        };
        let records = match &self.records {
            Records::Kept => "kept until their time is over".to_owned(),
            Records::MayBeLost { why, remedy } => format!("may be lost: {why}. {remedy}"),
            Records::None { why, remedy } => format!("none: {why}. {remedy}"),
        };
        let order = if self.fifo { "first come, first served" } else { "not ordered" };
        // Writing to a String can not fail.
        let _ = write!(
            page,
            "| `{}` | |\n|---|---|\n| reaches | {} |\n| for correctness | {correctness} |\n\
             | waiters | {order}; {} |\n| a lease ends by | {} |\n| records (once) | {records} |\n\n\
             | under | exclusion | tokens rise | what happens |\n|---|---|---|---|\n",
            self.backend, self.scope, self.wake, self.clock,
        );
        for (fault, kept) in self.rows() {
            let _ = writeln!(
                page,
                "| {fault} | {} | {} | {} |",
                kept.exclusion, kept.tokens, kept.note
            );
        }
        page
    }
}
