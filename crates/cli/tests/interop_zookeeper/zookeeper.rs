//! A ZooKeeper, or an ensemble of three members, with several kinds of client.

use std::ops::Deref;
use std::process::Command;
use std::sync::Weak;
use std::time::Duration;

use fencepost_testkit::interop::contender::{Contender, Protocol};
use fencepost_testkit::interop::mixed::{CountResult, Party, PartyKind, count};
use fencepost_testkit::interop::servers::{Members, Servers};
use fencepost_testkit::interop::site::Site;
use fencepost_testkit::interop::worker::{TOOLS, Worker, assert_installed, python};
use fencepost_testkit::{Slot, ZooKeeper, ZooKeeperEnsemble, java_classpath, shared};

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    /// Fencepost, whose nodes have names like Curator's.
    Fencepost,
    /// Fencepost with `?style=kazoo`.
    FencepostAsKazoo,
    /// kazoo with its defaults.
    Kazoo,
    /// kazoo with `extra_lock_patterns=["-lock-"]`.
    WideKazoo,
    /// Curator's `InterProcessMutex`.
    Curator,
}

/// Servers, which tests share, and their clients.
pub(crate) struct Fixture {
    site: Site,
    as_kazoo: Site,
    servers: Servers<ZooKeeper>,
}

impl Deref for Fixture {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Fixture {
    pub(crate) fn with(members: Members) -> Self {
        static ONE: Slot<ZooKeeper> = Slot::new(Weak::new());
        static THREE: Slot<ZooKeeperEnsemble> = Slot::new(Weak::new());
        let servers = match members {
            Members::One => Servers::one(shared(&ONE, || ZooKeeper::builder().start()).unwrap()),
            Members::Three => Servers::three(shared(&THREE, ZooKeeperEnsemble::start).unwrap()),
        };
        let site = Site::on(servers.url());
        let as_kazoo = site.by(format!("{}?style=kazoo", servers.url()));
        Self { site, as_kazoo, servers }
    }

    /// A member; each call returns the next one.
    pub(crate) fn member(&self) -> &ZooKeeper {
        self.servers.member()
    }

    /// The fencepost command in this style.
    pub(crate) fn site(&self, kind: ClientKind) -> &Site {
        match kind {
            ClientKind::Fencepost => &self.site,
            ClientKind::FencepostAsKazoo => &self.as_kazoo,
            ClientKind::Kazoo | ClientKind::WideKazoo | ClientKind::Curator => {
                unreachable!("that is not us")
            }
        }
    }

    /// A third-party client for one lock, with this session timeout.
    pub(crate) fn worker(&self, kind: ClientKind, name: &str, session: Duration) -> Worker {
        let mut command = match kind {
            ClientKind::Kazoo | ClientKind::WideKazoo => python("kazoo_lock.py"),
            ClientKind::Curator => java("CuratorLock"),
            ClientKind::Fencepost | ClientKind::FencepostAsKazoo => unreachable!("that is us"),
        };
        let hosts = self.member().address().to_string();
        command.args([&hosts, &format!("/{name}"), &session.as_millis().to_string()]);
        if kind == ClientKind::WideKazoo {
            command.arg("-lock-");
        }
        Worker::start(command, &self.store)
    }

    /// Starts a client that holds the lock as soon as it is granted.
    pub(crate) fn contend(&self, kind: ClientKind, ttl: u32) -> Contender {
        self.contend_for(kind, &self.name, ttl)
    }

    /// Starts a client that holds a lock as soon as it is granted.
    pub(crate) fn contend_for(&self, kind: ClientKind, name: &str, ttl: u32) -> Contender {
        match kind {
            ClientKind::Fencepost | ClientKind::FencepostAsKazoo => self.site(kind).ours(name, ttl),
            ClientKind::Kazoo | ClientKind::WideKazoo | ClientKind::Curator => {
                let mut worker = self.worker(kind, name, Duration::from_secs(ttl.into()));
                worker.send("acquire");
                Contender::new(worker, Protocol::WORKER)
            }
        }
    }

    /// A client that counts under a lock.
    pub(crate) fn party<'a>(&'a self, number: usize, kind: ClientKind, name: &'a str) -> Party<'a> {
        let party_kind = match kind {
            ClientKind::Fencepost | ClientKind::FencepostAsKazoo => {
                self.site(kind).our_party_kind(name)
            }
            ClientKind::Kazoo | ClientKind::WideKazoo | ClientKind::Curator => {
                PartyKind::Worker(self.worker(kind, name, Duration::from_secs(10)))
            }
        };
        Party { who: format!("{kind:?}-{number}"), kind: party_kind }
    }

    /// Lets these clients count, each under its lock.
    pub(crate) fn count(&self, clients: &[(ClientKind, &str)], pause: Duration) -> CountResult {
        let parties = clients.iter().enumerate();
        let parties = parties.map(|(number, (kind, name))| self.party(number, *kind, name));
        count(self.store.dir.path(), pause, parties.collect())
    }
}

/// A worker in Java, with Curator.
pub(crate) fn java(class: &str) -> Command {
    assert_installed(&format!("{class}.java"), &format!("java/{class}.java"));
    let mut command = Command::new("java");
    // It runs for seconds and does little.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m"]);
    command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error");
    command.args(["-cp", &format!("{TOOLS}/java:{}", java_classpath().unwrap()), class]);
    command
}
