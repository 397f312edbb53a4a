//! `etcd:` for the suite, with one member and with three.

use std::io;

use fencepost_testkit::{Etcd, EtcdCluster};

use crate::served::ServerKind;

impl ServerKind for Etcd {
    const SINGLE: &'static str = "etcd";
    const THREE: &'static str = "etcd-cluster";

    fn start() -> io::Result<Self> {
        Self::builder().start()
    }

    fn start_three() -> io::Result<EtcdCluster> {
        EtcdCluster::start()
    }

    fn url(hosts: &str, case: usize) -> String {
        format!("etcd://{hosts}?prefix=case-{case}/")
    }
}
