//! Third-party clients and our command on the same locks, each in a process of its own.
//!
//! `scripts/clients` installs their packages; the programs are in `clients/`.

pub mod contender;
pub mod mixed;
pub mod servers;
pub mod site;
pub mod worker;
