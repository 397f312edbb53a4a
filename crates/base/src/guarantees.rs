//! What a backend keeps under which fault, as data: `explain` prints it, the docs show it, tests check it.

use std::fmt;

use fencepost_core::Ttl;

/// What a store promises.
///
/// ```
/// use fencepost_base::guarantees::{Correctness, Faults, Guarantees, Kept};
///
/// let nothing = Kept::neither("this is an example");
/// let faults = Faults { holder_pause: Kept::both("the lease ends"), ..Faults::all(nothing) };
/// let guarantees = Guarantees::new("mine", faults)
///     .with_scope("all who use this server")
///     .with_wake("all look again every second")
///     .with_clock("the server's wall clock")
///     .with_fifo(true);
/// assert!(matches!(guarantees.correctness, Correctness::Unfit { .. }));
/// assert_eq!(guarantees.rows().count(), 7);
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Guarantees {
    /// The backend, by its URL scheme.
    pub backend: &'static str,
    /// The version of the layout on the store (`docs/layouts/`). A store of another version is refused. `None` if
    /// nothing outlives the process.
    pub layout: Option<u32>,
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
    /// The longest TTL that it grants.
    pub max_ttl: Ttl,
    /// Whether a renewal may ask for a longer TTL than the grant had.
    pub can_extend: bool,
    /// How well it keeps the records of what was done once per key.
    pub records: Records,
    /// The settings of the server that this client is connected to, as a name and a value each.
    pub server_info: Vec<(&'static str, String)>,
    /// What is kept under each fault.
    pub faults: Faults,
}

/// What is kept under each fault. Another fault would be another field, so that every backend has to answer for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Faults {
    /// Under [`Fault::HolderCrash`].
    pub holder_crash: Kept,
    /// Under [`Fault::HolderPause`].
    pub holder_pause: Kept,
    /// Under [`Fault::StoreCrash`].
    pub store_crash: Kept,
    /// Under [`Fault::Failover`].
    pub failover: Kept,
    /// Under [`Fault::ClockJump`].
    pub clock_jump: Kept,
    /// Under [`Fault::Partition`].
    pub partition: Kept,
    /// Under [`Fault::DataLoss`].
    pub data_loss: Kept,
}

impl Faults {
    /// The same under every fault.
    #[must_use]
    pub const fn all(kept: Kept) -> Self {
        Self {
            holder_crash: kept,
            holder_pause: kept,
            store_crash: kept,
            failover: kept,
            clock_jump: kept,
            partition: kept,
            data_loss: kept,
        }
    }

    /// What is kept under this fault.
    #[must_use]
    pub const fn under(&self, fault: Fault) -> Kept {
        match fault {
            Fault::HolderCrash => self.holder_crash,
            Fault::HolderPause => self.holder_pause,
            Fault::StoreCrash => self.store_crash,
            Fault::Failover => self.failover,
            Fault::ClockJump => self.clock_jump,
            Fault::Partition => self.partition,
            Fault::DataLoss => self.data_loss,
        }
    }
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

/// How well a store keeps records, which `once`, `claim` and `single_flight` need.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Records {
    /// A record stays until its retention is over.
    Kept,
    /// A record may be lost, and the work may run again.
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
        /// What to use instead.
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
    /// The holder is stopped past its lease, then continues.
    HolderPause,
    /// The store crashes and restarts.
    StoreCrash,
    /// Another node takes over from the store's primary.
    Failover,
    /// A wall clock jumps.
    ClockJump,
    /// The holder and the store cannot reach each other.
    Partition,
    /// The store comes back without its latest data.
    DataLoss,
}

impl Fault {
    /// Every fault for which a backend declares what holds.
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

/// Which of the two most important promises hold under one fault.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
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

    /// Two grants may overlap, and the later one still has the higher token: a fence keeps the earlier one out.
    #[must_use]
    pub const fn tokens_only(note: &'static str) -> Self {
        Self { exclusion: Holds::No, tokens: Holds::Yes, note }
    }

    /// Grants do not overlap, and a later one may have a lower token: a fence can refuse the present holder.
    #[must_use]
    pub const fn exclusion_only(note: &'static str) -> Self {
        Self { exclusion: Holds::Yes, tokens: Holds::No, note }
    }

    /// Neither promise holds.
    #[must_use]
    pub const fn neither(note: &'static str) -> Self {
        Self { exclusion: Holds::No, tokens: Holds::No, note }
    }

    /// This fault cannot happen to this backend.
    #[must_use]
    pub const fn not_applicable(note: &'static str) -> Self {
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
    /// The fault cannot happen.
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
    /// What is kept under each fault, by a backend with this URL scheme. For the rest it promises the least: it is not
    /// for correctness, has no order, cannot extend a lease and keeps no records.
    #[must_use]
    pub fn new(backend: &'static str, faults: Faults) -> Self {
        Self {
            backend,
            layout: None,
            scope: "not stated",
            correctness: Correctness::Unfit {
                why: "the backend does not say that it is".into(),
                remedy: "fence the resource with the token".into(),
            },
            fifo: false,
            wake: "not stated",
            clock: "not stated",
            max_ttl: Ttl::MAX,
            can_extend: false,
            records: Records::None {
                why: "the backend does not say that it keeps any".into(),
                remedy: "use another store".into(),
            },
            server_info: Vec::new(),
            faults,
        }
    }

    /// Sets the version of what lies on the store.
    #[must_use]
    pub fn with_layout(mut self, layout: impl Into<Option<u32>>) -> Self {
        self.layout = layout.into();
        self
    }

    /// Sets how far its exclusion reaches.
    #[must_use]
    pub const fn with_scope(mut self, scope: &'static str) -> Self {
        self.scope = scope;
        self
    }

    /// Sets whether a lock on it may guard against corruption.
    #[must_use]
    pub fn with_correctness(mut self, correctness: Correctness) -> Self {
        self.correctness = correctness;
        self
    }

    /// Sets whether waiters are granted in the order they came.
    #[must_use]
    pub const fn with_fifo(mut self, fifo: bool) -> Self {
        self.fifo = fifo;
        self
    }

    /// Sets how a waiter is woken.
    #[must_use]
    pub const fn with_wake(mut self, wake: &'static str) -> Self {
        self.wake = wake;
        self
    }

    /// Sets whose clock ends a lease.
    #[must_use]
    pub const fn with_clock(mut self, clock: &'static str) -> Self {
        self.clock = clock;
        self
    }

    /// Sets the longest TTL that it takes.
    #[must_use]
    pub const fn with_max_ttl(mut self, max_ttl: Ttl) -> Self {
        self.max_ttl = max_ttl;
        self
    }

    /// Sets whether a renewal may ask for a longer TTL.
    #[must_use]
    pub const fn with_can_extend(mut self, can_extend: bool) -> Self {
        self.can_extend = can_extend;
        self
    }

    /// Sets how well it keeps records.
    #[must_use]
    pub fn with_records(mut self, records: Records) -> Self {
        self.records = records;
        self
    }

    /// Sets what was found on the server.
    #[must_use]
    pub fn with_server_info(mut self, server_info: Vec<(&'static str, String)>) -> Self {
        self.server_info = server_info;
        self
    }

    /// Each fault with what is kept under it, in the order of [`Fault::ALL`].
    pub fn rows(&self) -> impl Iterator<Item = (Fault, Kept)> + '_ {
        Fault::ALL.into_iter().map(|fault| (fault, self.faults.under(fault)))
    }

    /// The table as Markdown, in the one form that the docs use for every backend.
    #[must_use]
    pub fn markdown(&self) -> String {
        use fmt::Write as _;
        let mut page = String::new();
        // A cell is short; the reason and the remedy are a paragraph below.
        let (correctness, unfit) = match &self.correctness {
            Correctness::Fit => ("yes", None),
            Correctness::Unfit { why, remedy } => ("no, see below", Some((why, remedy))),
        };
        let (records, lost) = match &self.records {
            Records::Kept => ("kept until their retention is over", None),
            Records::MayBeLost { why, remedy } => ("may be lost, see below", Some((why, remedy))),
            Records::None { why, remedy } => ("none, see below", Some((why, remedy))),
        };
        let order = if self.fifo { "in order" } else { "not ordered" };
        // Writing to a String cannot fail.
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
        let paragraphs = if unfit == lost {
            vec![("Correctness and records", unfit)]
        } else {
            vec![("Correctness", unfit), ("Records", lost)]
        };
        for (title, reason) in paragraphs {
            if let Some((why, remedy)) = reason {
                let _ = writeln!(page, "\n**{title}.** Why: {why}. Remedy: {remedy}.");
            }
        }
        page
    }
}
