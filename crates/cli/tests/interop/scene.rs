//! Redis servers with several makes of client on them: our command, and workers that use the real packages.

use std::process::{Command, Stdio};

use fencepost_testbed::Redis;

use crate::common::{LIMIT, Running, Store, heard, wait_for};
use crate::worker::{PINNED, TOOLS, Worker, assert_installed, python};

/// Whose lock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    Fencepost,
    RedisPy,
    NpmRedlock,
}

/// Fresh servers, and a directory to work in.
pub(crate) struct Scene {
    pub(crate) store: Store,
    pub(crate) servers: Vec<Redis>,
}

impl Scene {
    /// One server, or several of which a majority counts.
    pub(crate) fn with(servers: usize) -> Self {
        let servers = (0..servers).map(|_| Redis::builder().start().unwrap()).collect();
        Self { store: Store::new(), servers }
    }

    pub(crate) fn url(&self) -> String {
        match &*self.servers {
            [server] => server.url(),
            servers => {
                let hosts: Vec<_> = servers.iter().map(|s| s.address().to_string()).collect();
                // They have just been started.
                format!("redlock://{}?restarted=vote", hosts.join(","))
            }
        }
    }

    /// `fencepost` on these servers.
    pub(crate) fn fencepost(&self, arguments: &[&str]) -> Command {
        let mut command = self.store.fencepost(arguments);
        command.env("FENCEPOST_URL", self.url());
        command
    }

    /// Runs it to its end; exit code, stdout, stderr.
    pub(crate) fn say(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        heard(&self.fencepost(arguments).output().unwrap())
    }

    /// Starts it; it is killed if the test ends first.
    pub(crate) fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.fencepost(arguments);
        Running::new(command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap())
    }

    pub(crate) fn show(&self, name: &str) -> serde_json::Value {
        let (code, out, err) = self.say(&["show", "--json", name]);
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// Waits until one of ours stands in line.
    pub(crate) fn wait_for_a_waiter(&self, name: &str) {
        wait_for("a waiter", LIMIT, || self.show(name)["waiting"] == 1);
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
