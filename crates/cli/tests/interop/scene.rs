//! Redis servers with several makes of client on them: our command, and workers that use the real packages.

use std::ops::Deref;
use std::process::Command;

use fencepost_testkit::Redis;
use fencepost_testkit::command::{LIMIT, wait_for};
use fencepost_testkit::interop::site::Site;
use fencepost_testkit::interop::worker::{PINNED, TOOLS, Worker, assert_installed, python};

/// Whose lock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    Fencepost,
    RedisPy,
    NpmRedlock,
}

/// Fresh servers, and our command on them.
pub(crate) struct Scene {
    site: Site,
    pub(crate) servers: Vec<Redis>,
}

impl Deref for Scene {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Scene {
    /// One server, or several of which a majority counts.
    pub(crate) fn with(servers: usize) -> Self {
        let servers: Vec<_> = (0..servers).map(|_| Redis::builder().start().unwrap()).collect();
        let url = match &*servers {
            [server] => server.url(),
            servers => {
                let hosts: Vec<_> = servers.iter().map(|s| s.address().to_string()).collect();
                // They have just been started.
                format!("redlock://{}?restarted=vote", hosts.join(","))
            }
        };
        Self { site: Site::on(url), servers }
    }

    /// Waits until one of ours stands in line.
    pub(crate) fn wait_for_a_waiter(&self, name: &str) {
        wait_for("a waiter", LIMIT, || self.show_of(name)["waiting"] == 1);
    }

    /// Waits until the lease has ended on every server.
    pub(crate) fn wait_until_free(&self, name: &str) {
        wait_for("the end of the lease", LIMIT, || {
            self.servers.iter().all(|server| server.command(&["GET", name]).unwrap().is_nil())
        });
    }

    /// The lock's value, which a majority of the servers has, and how many do. A lease of before may still run
    /// on the others.
    pub(crate) fn held(&self, name: &str) -> (String, usize) {
        let values = self.servers.iter().map(|server| server.command(&["GET", name]).unwrap());
        let values: Vec<_> = values.filter_map(|value| value.text().ok()).collect();
        let count = |value| values.iter().filter(|other| *other == value).count();
        let value = values.iter().max_by_key(|value| count(*value)).expect("somebody has the lock");
        assert!(count(value) * 2 > self.servers.len(), "{values:?}");
        (value.clone(), count(value))
    }

    /// Nobody changed the lock or took it away on any server. One may have been late to give it.
    pub(crate) fn assert_kept(&self, name: &str, before: &(String, usize)) {
        let (value, servers) = self.held(name);
        assert_eq!(value, before.0);
        assert!(servers >= before.1, "{servers} servers of {}", before.1);
    }

    /// A client of another make, on all the servers.
    pub(crate) fn worker(&self, make: Make, name: &str, ttl_ms: u32) -> Worker {
        self.worker_on(&self.servers, make, name, ttl_ms)
    }

    /// A client of another make, on some of the servers.
    pub(crate) fn worker_on(
        &self,
        servers: &[Redis],
        make: Make,
        name: &str,
        ttl_ms: u32,
    ) -> Worker {
        let ports: Vec<_> = servers.iter().map(|server| server.port().to_string()).collect();
        let mut command = match make {
            Make::RedisPy => python("redis_py.py"),
            Make::NpmRedlock => {
                assert_installed("package-lock.json", "node/done.json");
                let mut command = Command::new("node");
                command.arg(format!("{PINNED}/npm_redlock.js"));
                command.env("NODE_PATH", format!("{TOOLS}/node/node_modules"));
                command
            }
            Make::Fencepost => unreachable!("that is us"),
        };
        command.args([&ports.join(","), name, &ttl_ms.to_string()]);
        Worker::start(command, &self.store)
    }
}
