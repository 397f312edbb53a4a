//! The conformance suite on our own backends.

#[path = "conformance/memory.rs"]
mod memory;
#[cfg(feature = "redis")]
#[path = "conformance/redis.rs"]
mod redis;
#[cfg(feature = "sqlite")]
#[path = "conformance/sqlite.rs"]
mod sqlite;
#[cfg(feature = "zookeeper")]
#[path = "conformance/zookeeper.rs"]
mod zookeeper;

use std::process::ExitCode;

fn main() -> ExitCode {
    fencepost::conformance::main(vec![
        Box::new(memory::InMemory),
        #[cfg(feature = "sqlite")]
        Box::new(sqlite::InFile),
        #[cfg(feature = "redis")]
        Box::new(redis::OneServer),
        #[cfg(feature = "redis")]
        Box::new(redis::FiveServers),
        #[cfg(feature = "zookeeper")]
        Box::new(zookeeper::OneServer),
    ])
}
