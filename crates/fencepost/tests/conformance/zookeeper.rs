//! `zookeeper:` for the suite, one server and three.

use std::io;

use fencepost_testbed::{ZooKeeper, ZooKeeperBuilder, ZooKeeperEnsemble};

use crate::served::{Servers, verbs};

/// Short ticks for short leases, and sessions as long as the longest.
fn builder() -> ZooKeeperBuilder {
    ZooKeeper::builder().tick_time(200).max_session_timeout(36 * 60 * 60 * 1000)
}

fn url(hosts: &str, case: usize) -> String {
    format!("zookeeper://{hosts}/case/{case}")
}

impl Servers for ZooKeeper {
    const NAME: &'static str = "zookeeper";

    fn start() -> io::Result<Self> {
        builder().start()
    }

    fn url(hosts: &str, case: usize) -> String {
        url(hosts, case)
    }

    verbs!(one);
}

impl Servers for ZooKeeperEnsemble {
    const NAME: &'static str = "zookeeper-ensemble";

    fn start() -> io::Result<Self> {
        Self::with(&builder())
    }

    fn url(hosts: &str, case: usize) -> String {
        url(hosts, case)
    }

    verbs!(several);
}
