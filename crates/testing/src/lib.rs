//! What the test programs of Fencepost share: clients and time, what must hold on every store, processes. This crate
//! never ships.
//!
//! The servers are in `fencepost_testbed`, which knows nothing of the library under test; this crate knows both.
//! Its functions panic where a test would.

#![allow(clippy::panic, clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(
    clippy::must_use_candidate,
    clippy::new_without_default,
    clippy::return_self_not_must_use,
    reason = "helpers of tests are no interface for others"
)]

mod breaks;
mod clients;
pub mod command;
pub mod elections;
mod errors;
mod guards;
pub mod interop;
mod program;
pub mod records;
mod time;
mod ways;
mod worker;

pub use breaks::broken_holder_learns_at_once;
pub use clients::{connect, has, nothing_is_left, try_connect, two, until_waiting};
pub use errors::{SECRET, fails, log, logged};
pub use guards::{granted, granted_unheard, until_renewed, waits};
pub use program::own_program;
pub use time::{LONG, SOON, ms, now, pass, until, within};
pub use ways::{Scene, Victim, Ways};
pub use worker::{GAP, Worker, lock_as_told, say};
