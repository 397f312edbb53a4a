//! The machine's commands and effects.
//!
//! Commands carry everything a replica needs to apply them: no clock, no random number and no connection is consulted. The
//! first effect is for the caller; the second, if any, is for the waiter that is granted.

use std::num::NonZeroU64;

use crate::types::{Label, LockName, OwnerId, Token, Ttl};

/// The number of a waiter: unique per machine and rising, so that the order of tickets is the order of
/// arrival.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ticket(NonZeroU64);

impl Ticket {
    /// The highest ticket, 2^63 - 1. Counting never gets there.
    pub const MAX: u64 = (1 << 63) - 1;

    /// The ticket with that number, read back from a log or a wire; `None` for 0 and above
    /// [`Ticket::MAX`].
    #[must_use]
    pub const fn new(number: u64) -> Option<Self> {
        match NonZeroU64::new(number) {
            Some(ticket) if number <= Self::MAX => Some(Self(ticket)),
            _ => None,
        }
    }

    /// The ticket as a number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// One lease, by the number that is never used again: what a [`Command::Expire`] names. A grant or a
/// position that came later has another number, so an old `Expire` cannot hit it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Lease {
    /// The lease of a grant.
    Held(Token),
    /// The lease of a position in the queue: a waiter that stops renewing must not stall the others.
    Queued(Ticket),
}

/// What the machine can do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    /// Take the name, or wait for it. A repeat by the same owner is a retry: it gets the same token or
    /// ticket, with this TTL and label.
    Acquire {
        /// What to lock.
        name: LockName,
        /// Drawn for this one acquisition.
        owner: OwnerId,
        /// How long the grant, and before it the position in the queue, lives without a renewal.
        ttl: Ttl,
        /// The holder, for people.
        label: Label,
        /// Whether to queue if another owner holds the name.
        queue: bool,
    },
    /// Keep the lease: the holder's grant, or the waiter's position. It leaves the machine as it was; only
    /// the queue learns from its effect. So a store that logs commands need not log this one.
    Renew {
        /// The locked name.
        name: LockName,
        /// The holder or waiter.
        owner: OwnerId,
    },
    /// Give the name back. For the holder only: a waiter leaves by [`Command::Cancel`].
    Release {
        /// The locked name.
        name: LockName,
        /// The holder.
        owner: OwnerId,
    },
    /// Undo an acquire whose outcome the caller may not know: ends what that owner has on the name, be
    /// it a grant or a position.
    Cancel {
        /// The requested name.
        name: LockName,
        /// The caller of that acquire.
        owner: OwnerId,
    },
    /// The lease has run out. No effect if that lease is over already.
    Expire {
        /// The locked name.
        name: LockName,
        /// Which grant or position.
        lease: Lease,
    },
    /// An operator takes the name from its holder.
    Break {
        /// The locked name.
        name: LockName,
    },
}

impl Command {
    /// The one name that this command may change.
    #[must_use]
    pub fn name(&self) -> &LockName {
        match self {
            Self::Acquire { name, .. }
            | Self::Renew { name, .. }
            | Self::Release { name, .. }
            | Self::Cancel { name, .. }
            | Self::Expire { name, .. }
            | Self::Break { name } => name,
        }
    }
}

/// The result of a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Effect {
    /// The owner holds the name: by a new grant or, for a retry, by the one it had. Its lease restarts.
    Granted {
        /// The locked name.
        name: LockName,
        /// The holder.
        owner: OwnerId,
        /// The fencing token; unchanged for a retry.
        token: Token,
        /// The lease.
        ttl: Ttl,
        /// The position that this grant ends, if the owner had been waiting.
        ticket: Option<Ticket>,
    },
    /// The owner is in the queue; after a retry or a renewal, it still is. The lease of its position restarts.
    Queued {
        /// The locked name.
        name: LockName,
        /// The waiter.
        owner: OwnerId,
        /// Its position; unchanged for a retry and a renewal.
        ticket: Ticket,
        /// The lease.
        ttl: Ttl,
    },
    /// Another owner holds it, and the caller did not want to wait.
    Held {
        /// The locked name.
        name: LockName,
        /// The caller.
        owner: OwnerId,
        /// The token of the grant that is in the way.
        by: Token,
    },
    /// The grant's lease restarts.
    Renewed {
        /// The locked name.
        name: LockName,
        /// The holder.
        owner: OwnerId,
        /// Its token, unchanged.
        token: Token,
        /// The lease.
        ttl: Ttl,
    },
    /// The holder gave the name back.
    Released {
        /// The name.
        name: LockName,
        /// The former holder.
        owner: OwnerId,
        /// The token that is no longer in force.
        token: Token,
    },
    /// A waiter left the queue.
    Withdrawn {
        /// The name.
        name: LockName,
        /// The former waiter.
        owner: OwnerId,
        /// The position that it gave up.
        ticket: Ticket,
    },
    /// The caller has nothing of that kind on the name; nothing changed.
    NotHeld {
        /// The name.
        name: LockName,
        /// The caller.
        owner: OwnerId,
    },
    /// A grant or a position ended because its lease ran out.
    Expired {
        /// The name.
        name: LockName,
        /// Whose it was.
        owner: OwnerId,
        /// What ended.
        lease: Lease,
    },
    /// An operator ended the grant.
    Broken {
        /// The name.
        name: LockName,
        /// The former holder.
        owner: OwnerId,
        /// The token that is no longer in force.
        token: Token,
        /// Drawn by the break: above the broken token and below that of any later grant. An operator
        /// who enters a fence with it shuts out the broken holder at once, and no later one.
        floor: Token,
    },
    /// The name was free; nothing changed.
    NotBroken {
        /// The name.
        name: LockName,
    },
    /// The tokens have run out: no new owner is granted or queued, and nothing changed.
    Exhausted {
        /// The name.
        name: LockName,
        /// The caller.
        owner: OwnerId,
    },
}

impl Effect {
    /// The name it is about.
    #[must_use]
    pub fn name(&self) -> &LockName {
        match self {
            Self::Granted { name, .. }
            | Self::Queued { name, .. }
            | Self::Held { name, .. }
            | Self::Renewed { name, .. }
            | Self::Released { name, .. }
            | Self::Withdrawn { name, .. }
            | Self::NotHeld { name, .. }
            | Self::Expired { name, .. }
            | Self::Broken { name, .. }
            | Self::NotBroken { name }
            | Self::Exhausted { name, .. } => name,
        }
    }
}
