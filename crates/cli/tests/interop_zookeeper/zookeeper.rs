//! A ZooKeeper, or three members of one, with several makes of client on it.

use std::ops::Deref;
use std::process::Command;
use std::sync::Weak;
use std::time::Duration;

use fencepost_testkit::interop::contender::{Contender, Ways};
use fencepost_testkit::interop::mixed::{Party, Tally, Way, count};
use fencepost_testkit::interop::servers::{Members, Servers};
use fencepost_testkit::interop::site::Site;
use fencepost_testkit::interop::worker::{TOOLS, Worker, assert_installed, python};
use fencepost_testkit::{Slot, ZooKeeper, ZooKeeperEnsemble, java_classpath, shared};

/// Whose lock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    /// Ours, whose nodes are called as Curator's are.
    Ours,
    /// Ours with `?style=kazoo`.
    OursAsKazoo,
    /// kazoo's, as it is.
    Kazoo,
    /// kazoo's with `extra_lock_patterns=["-lock-"]`.
    WideKazoo,
    /// Curator's `InterProcessMutex`.
    Curator,
}

/// Servers, which tests share, and who is on them.
pub(crate) struct Scene {
    site: Site,
    as_kazoo: Site,
    servers: Servers<ZooKeeper>,
}

impl Deref for Scene {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Scene {
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

    /// A member, each time the next one.
    pub(crate) fn member(&self) -> &ZooKeeper {
        self.servers.member()
    }

    /// Our command, as this make of ours.
    pub(crate) fn site(&self, make: Make) -> &Site {
        match make {
            Make::Ours => &self.site,
            Make::OursAsKazoo => &self.as_kazoo,
            Make::Kazoo | Make::WideKazoo | Make::Curator => unreachable!("that is not us"),
        }
    }

    /// A worker of another make, for one lock. Its session ends when it has not been heard of for so long.
    pub(crate) fn worker(&self, make: Make, name: &str, session: Duration) -> Worker {
        let mut command = match make {
            Make::Kazoo | Make::WideKazoo => python("kazoo_lock.py"),
            Make::Curator => java("CuratorLock"),
            Make::Ours | Make::OursAsKazoo => unreachable!("that is us"),
        };
        let hosts = self.member().address().to_string();
        command.args([&hosts, &format!("/{name}"), &session.as_millis().to_string()]);
        if make == Make::WideKazoo {
            command.arg("-lock-");
        }
        Worker::start(command, &self.store)
    }

    /// Starts one that holds the lock as soon as it gets it.
    pub(crate) fn contend(&self, make: Make, ttl: u32) -> Contender {
        self.contend_for(make, &self.name, ttl)
    }

    /// Starts one that holds a lock as soon as it gets it.
    pub(crate) fn contend_for(&self, make: Make, name: &str, ttl: u32) -> Contender {
        match make {
            Make::Ours | Make::OursAsKazoo => self.site(make).ours(name, ttl),
            Make::Kazoo | Make::WideKazoo | Make::Curator => {
                let mut worker = self.worker(make, name, Duration::from_secs(ttl.into()));
                worker.tell("acquire");
                Contender::new(worker, Ways::WORKER)
            }
        }
    }

    /// One who counts under a lock.
    pub(crate) fn party<'a>(&'a self, number: usize, make: Make, name: &'a str) -> Party<'a> {
        let way = match make {
            Make::Ours | Make::OursAsKazoo => self.site(make).our_way(name),
            Make::Kazoo | Make::WideKazoo | Make::Curator => {
                Way::Worker(self.worker(make, name, Duration::from_secs(10)))
            }
        };
        Party { who: format!("{make:?}-{number}"), way }
    }

    /// Has this crew count, each under its lock.
    pub(crate) fn count(&self, crew: &[(Make, &str)], pause: Duration) -> Tally {
        let parties = crew.iter().enumerate();
        let parties = parties.map(|(number, (make, name))| self.party(number, *make, name));
        count(self.store.dir.path(), pause, parties.collect())
    }
}

/// A worker in Java, with Curator.
pub(crate) fn java(class: &str) -> Command {
    assert_installed(&format!("{class}.java"), &format!("java/{class}.java"));
    let mut command = Command::new("java");
    // It lives for seconds and does little.
    command.args(["-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xmx64m"]);
    command.arg("-Dorg.slf4j.simpleLogger.defaultLogLevel=error");
    command.args(["-cp", &format!("{TOOLS}/java:{}", java_classpath().unwrap()), class]);
    command
}
