//! What only ZooKeeper has: sessions, nodes that others see, ensembles. Against real servers.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod addresses;
mod breaks;
mod common;
mod cuts;
mod drains;
mod elections;
mod ensemble;
mod frozen;
mod hands;
mod lines;
mod members;
mod mended;
mod nodes;
mod outages;
mod raw;
mod records;
mod scripts;
mod sessions;
mod told_in_time;
mod ttls;
