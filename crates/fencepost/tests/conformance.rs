//! The conformance suite on our own backends.

#[cfg(feature = "etcd")]
#[path = "conformance/etcd.rs"]
mod etcd;
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
        #[cfg(feature = "etcd")]
        Box::new(etcd::Alone::default()),
        #[cfg(feature = "etcd")]
        Box::new(etcd::Three::default()),
        #[cfg(feature = "zookeeper")]
        Box::new(zookeeper::Alone::default()),
        #[cfg(feature = "zookeeper")]
        Box::new(zookeeper::Three::default()),
    ])
}
