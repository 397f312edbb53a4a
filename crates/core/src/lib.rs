//! The lock rules of Fencepost, and nothing else: no I/O, no clock, no randomness.
//!
//! [`Machine`] is one pure transition function, `apply(command) -> effects`. It stores TTLs and no
//! deadlines: a lease ends only by an [`Command::Expire`], so that two replicas that apply the same
//! commands cannot differ. [`ExpiryQueue`] gets the time and says which `Expire` to issue. [`invariants`] are the promises
//! as predicates. [`records`] has the rules of `once`.

#![forbid(unsafe_code)]

mod command;
mod expiry_queue;
mod holder;
pub mod invariants;
mod loss;
mod machine;
mod moment;
mod queue;
pub mod records;
mod span;
mod table;
mod types;

pub use command::{Command, Effect, Lease, Ticket};
pub use expiry_queue::ExpiryQueue;
pub use holder::HolderInfo;
pub use loss::LossCause;
pub use machine::{Grant, Machine};
pub use moment::Moment;
pub use queue::Waiter;
pub use span::short;
pub use types::{FencingToken, Invalid, Label, LockName, OwnerId, Token, Ttl, Value};
