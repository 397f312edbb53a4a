//! `etcd:` for the suite, one member and three.

use std::io;

use fencepost_testbed::{Etcd, EtcdCluster};

use crate::served::{Servers, verbs};

fn url(hosts: &str, case: usize) -> String {
    format!("etcd://{hosts}?prefix=case-{case}/")
}

impl Servers for Etcd {
    const NAME: &'static str = "etcd";

    fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    fn url(hosts: &str, case: usize) -> String {
        url(hosts, case)
    }

    verbs!(one);
}

impl Servers for EtcdCluster {
    const NAME: &'static str = "etcd-cluster";

    fn start() -> io::Result<Self> {
        Self::start()
    }

    fn url(hosts: &str, case: usize) -> String {
        url(hosts, case)
    }

    verbs!(several);
}
