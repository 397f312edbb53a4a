//! The conformance suite on our own backends.

#[cfg(feature = "etcd")]
mod etcd;
mod memory;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "etcd", feature = "zookeeper"))]
mod served;
#[cfg(feature = "sqlite")]
mod sqlite;
#[cfg(feature = "zookeeper")]
mod zookeeper;

use std::process::ExitCode;

fn main() -> ExitCode {
    fencepost_conformance::main(vec![
        Box::new(memory::InMemory),
        #[cfg(feature = "sqlite")]
        Box::new(sqlite::InFile),
        #[cfg(feature = "redis")]
        Box::new(redis::OneServer),
        #[cfg(feature = "redis")]
        Box::new(redis::FiveServers),
        #[cfg(feature = "etcd")]
        served::Served::<fencepost_testkit::Etcd>::single(),
        #[cfg(feature = "etcd")]
        served::Served::<fencepost_testkit::Etcd>::three(),
        #[cfg(feature = "zookeeper")]
        served::Served::<fencepost_testkit::ZooKeeper>::single(),
        #[cfg(feature = "zookeeper")]
        served::Served::<fencepost_testkit::ZooKeeper>::three(),
        #[cfg(feature = "postgres")]
        postgres::OneServer::direct(),
        #[cfg(feature = "postgres")]
        postgres::OneServer::pooled(),
    ])
}
