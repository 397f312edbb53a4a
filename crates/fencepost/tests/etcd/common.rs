//! Shared by the etcd tests: a server, and what `etcdctl` sees of it.

use std::sync::{Arc, Weak};
use std::time::Duration;

use fencepost_testkit::{Etcd, Slot};

/// A TTL that does not expire during a test.
pub(crate) const LONG: Duration = Duration::from_mins(2);
/// Long enough for an election and a move to another member within a third of it, and short enough to see renewals.
pub(crate) const LEASE: Duration = Duration::from_secs(6);
/// Limit for something that should happen at once, an election included; far below [`LONG`].
pub(crate) const SOON: Duration = Duration::from_secs(15);

/// A server that no test disturbs. Tests share it, each with its own lock names.
pub(crate) fn shared() -> Arc<Etcd> {
    static SERVER: Slot<Etcd> = Slot::new(Weak::new());
    fencepost_testkit::shared(&SERVER, || Etcd::builder().start()).unwrap()
}

/// The leases of the holder and the waiters, in queue order, as they appear in the keys.
pub(crate) fn queue(etcd: &Etcd, name: &str) -> Vec<String> {
    let prefix = format!("{name}/");
    let words = ["get", "--prefix", "--keys-only", "--sort-by=CREATE", "--order=ASCEND", &prefix];
    let keys = etcd.etcdctl(&words).unwrap();
    let ends = keys.lines().filter_map(|key| key.strip_prefix(&prefix));
    ends.filter(|end| !end.contains('/')).map(str::to_owned).collect()
}

/// All leases of the server, as the keys name them: `etcdctl lease list` pads an id with zeros, a key does not.
pub(crate) fn leases(etcd: &Etcd) -> Vec<String> {
    let list = etcd.etcdctl(&["lease", "list"]).unwrap();
    let leases = list.lines().filter(|line| !line.starts_with("found"));
    leases.map(|lease| lease.trim_start_matches('0').to_owned()).collect()
}

/// The remaining TTL of this lease in whole seconds, rounded down; `None` if it is gone.
pub(crate) fn remaining_ttl(etcd: &Etcd, lease: &str) -> Option<Duration> {
    let output = etcd.etcdctl(&["lease", "timetolive", lease]).unwrap();
    let (_, rest) = output.split_once("remaining(")?;
    let (seconds, _) = rest.split_once('s').unwrap();
    seconds.parse().ok().map(Duration::from_secs)
}
