//! Clients that are not ours beside our command, on the same locks: each in a process of its own.
//!
//! `scripts/clients` installs what they need; their programs are in `clients/`.

pub mod contender;
pub mod mixed;
pub mod servers;
pub mod site;
pub mod worker;
