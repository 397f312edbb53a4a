//! What the tests of etcd share: a server, and what `etcdctl` sees of it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_testkit::{Etcd, Slot};

/// A TTL that does not run out during a test: what ends before it did not end by expiry.
pub(crate) const LONG: Duration = Duration::from_mins(2);
/// Room for an election and a move to another member within a third of it, and short enough to see renewals.
pub(crate) const LEASE: Duration = Duration::from_secs(6);
/// How long a thing may take that should happen at once, an election included; far below [`LONG`].
pub(crate) const SOON: Duration = Duration::from_secs(15);

/// A server to which nothing is done: tests share it, each with names of its own.
pub(crate) fn shared() -> Arc<Etcd> {
    static SERVER: Slot<Etcd> = Slot::new(Weak::new());
    fencepost_testkit::shared(&SERVER, || Etcd::builder().start()).unwrap()
}

/// The leases of the holder and of those who wait, in line, as a key shows them.
pub(crate) fn line(etcd: &Etcd, name: &str) -> Vec<String> {
    let prefix = format!("{name}/");
    let words = ["get", "--prefix", "--keys-only", "--sort-by=CREATE", "--order=ASCEND", &prefix];
    let keys = etcd.etcdctl(&words).unwrap();
    let ends = keys.lines().filter_map(|key| key.strip_prefix(&prefix));
    ends.filter(|end| !end.contains('/')).map(str::to_owned).collect()
}

/// All leases that there are.
pub(crate) fn leases(etcd: &Etcd) -> Vec<String> {
    let list = etcd.etcdctl(&["lease", "list"]).unwrap();
    list.lines().filter(|line| !line.starts_with("found")).map(str::to_owned).collect()
}

/// How long the store keeps this lease, in whole seconds, rounded down. None if it is gone.
pub(crate) fn kept_for(etcd: &Etcd, lease: &str) -> Option<Duration> {
    let said = etcd.etcdctl(&["lease", "timetolive", lease]).unwrap();
    let (_, rest) = said.split_once("remaining(")?;
    let (seconds, _) = rest.split_once('s').unwrap();
    seconds.parse().ok().map(Duration::from_secs)
}
