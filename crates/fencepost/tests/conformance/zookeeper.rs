//! `zookeeper:` for the suite, with one server and with three.

use std::io;

use fencepost_testkit::{ZooKeeper, ZooKeeperBuilder, ZooKeeperEnsemble};

use crate::served::ServerKind;

/// Short ticks for short leases, and sessions as long as the longest lease.
fn builder() -> ZooKeeperBuilder {
    ZooKeeper::builder().tick_time(200).max_session_timeout(36 * 60 * 60 * 1000)
}

impl ServerKind for ZooKeeper {
    const SINGLE: &'static str = "zookeeper";
    const THREE: &'static str = "zookeeper-ensemble";

    fn start() -> io::Result<Self> {
        builder().start()
    }

    fn start_three() -> io::Result<ZooKeeperEnsemble> {
        ZooKeeperEnsemble::with(&builder())
    }

    fn url(hosts: &str, case: usize) -> String {
        format!("zookeeper://{hosts}/case/{case}")
    }
}
