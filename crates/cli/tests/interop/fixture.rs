//! Redis servers with several kinds of client: our command, and workers that use the real packages.

use std::ops::Deref;
use std::process::Command;

use fencepost_testkit::Redis;
use fencepost_testkit::command::{LIMIT, wait_for};
use fencepost_testkit::interop::site::Site;
use fencepost_testkit::interop::worker::{PINNED, TOOLS, Worker, assert_installed, python};

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    Fencepost,
    RedisPy,
    NpmRedlock,
}

/// Fresh servers, and our command on them.
pub(crate) struct Fixture {
    site: Site,
    pub(crate) servers: Vec<Redis>,
}

impl Deref for Fixture {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Fixture {
    /// One server, or several of which a majority decides.
    pub(crate) fn with(servers: usize) -> Self {
        let servers: Vec<_> = (0..servers).map(|_| Redis::builder().start().unwrap()).collect();
        let url = match &*servers {
            [server] => server.url(),
            servers => {
                let hosts: Vec<_> = servers.iter().map(|s| s.address().to_string()).collect();
                // The servers have just been started.
                format!("redlock://{}?restarted=vote", hosts.join(","))
            }
        };
        Self { site: Site::on(url), servers }
    }

    /// Waits until fencepost has a waiter in the queue.
    pub(crate) fn wait_for_a_waiter(&self, name: &str) {
        wait_for("a waiter", LIMIT, || self.show_of(name)["waiting"] == 1);
    }

    /// Waits until the lease has ended on every server.
    pub(crate) fn wait_until_free(&self, name: &str) {
        wait_for("the end of the lease", LIMIT, || {
            self.servers.iter().all(|server| server.command(&["GET", name]).unwrap().is_nil())
        });
    }

    /// The lock's value on a majority of the servers, and how many have it. An earlier lease may still run on the others.
    pub(crate) fn held(&self, name: &str) -> (String, usize) {
        let values = self.servers.iter().map(|server| server.command(&["GET", name]).unwrap());
        let values: Vec<_> = values.filter_map(|value| value.text().ok()).collect();
        let count = |value| values.iter().filter(|other| *other == value).count();
        let value = values.iter().max_by_key(|value| count(*value)).expect("the lock is held");
        assert!(count(value) * 2 > self.servers.len(), "{values:?}");
        (value.clone(), count(value))
    }

    /// The lock is unchanged on every server that had it. A late server may have granted it since.
    pub(crate) fn assert_kept(&self, name: &str, before: &(String, usize)) {
        let (value, servers) = self.held(name);
        assert_eq!(value, before.0);
        assert!(servers >= before.1, "{servers} servers of {}", before.1);
    }

    /// A third-party client, on all servers.
    pub(crate) fn worker(&self, kind: ClientKind, name: &str, ttl_ms: u32) -> Worker {
        self.worker_on(&self.servers, kind, name, ttl_ms)
    }

    /// A third-party client, on some of the servers.
    pub(crate) fn worker_on(
        &self,
        servers: &[Redis],
        kind: ClientKind,
        name: &str,
        ttl_ms: u32,
    ) -> Worker {
        let ports: Vec<_> = servers.iter().map(|server| server.port().to_string()).collect();
        let mut command = match kind {
            ClientKind::RedisPy => python("redis_py.py"),
            ClientKind::NpmRedlock => {
                assert_installed("package-lock.json", "node/done.json");
                let mut command = Command::new("node");
                command.arg(format!("{PINNED}/npm_redlock.js"));
                command.env("NODE_PATH", format!("{TOOLS}/node/node_modules"));
                command
            }
            ClientKind::Fencepost => unreachable!("not a third-party client"),
        };
        command.args([&ports.join(","), name, &ttl_ms.to_string()]);
        Worker::start(command, &self.store)
    }
}
