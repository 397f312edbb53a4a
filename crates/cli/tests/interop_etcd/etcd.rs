//! An etcd, or three members of one, with several makes of client on it.

use std::ops::Deref;
use std::process::Command;
use std::sync::Weak;
use std::time::Duration;

use fencepost_testkit::interop::contender::{Contender, Ways};
use fencepost_testkit::interop::mixed::{INCREMENT, Party, Tally, Way, count};
use fencepost_testkit::interop::servers::{Members, Servers};
use fencepost_testkit::interop::site::Site;
use fencepost_testkit::interop::worker::{Worker, python};
use fencepost_testkit::{Etcd, EtcdCluster, Slot, shared};

/// Whose lock it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Make {
    Fencepost,
    /// `etcdctl lock`.
    Lock,
    /// `etcdctl elect`.
    Elect,
    /// The lock service of etcd itself.
    Service,
}

/// Servers, which tests share, and who is on them.
pub(crate) struct Scene {
    site: Site,
    servers: Servers<Etcd>,
}

impl Deref for Scene {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Scene {
    pub(crate) fn with(members: Members) -> Self {
        static ONE: Slot<Etcd> = Slot::new(Weak::new());
        static THREE: Slot<EtcdCluster> = Slot::new(Weak::new());
        let servers = match members {
            Members::One => Servers::one(shared(&ONE, || Etcd::builder().start()).unwrap()),
            Members::Three => Servers::three(shared(&THREE, EtcdCluster::start).unwrap()),
        };
        Self { site: Site::on(servers.url()), servers }
    }

    /// A member, each time the next one.
    pub(crate) fn member(&self) -> &Etcd {
        self.servers.member()
    }

    /// Starts one that holds the lock as soon as it gets it.
    pub(crate) fn contend(&self, make: Make, ttl: u32) -> Contender {
        self.contend_for(make, &self.name, ttl)
    }

    /// Starts one that holds a lock as soon as it gets it. An election's lease is of 60 s, whatever one asks
    /// for.
    pub(crate) fn contend_for(&self, make: Make, name: &str, ttl: u32) -> Contender {
        let ttl_text = ttl.to_string();
        let line = match make {
            Make::Fencepost => return self.ours(name, ttl),
            Make::Service => {
                let mut worker = Worker::start(self.service(name, ttl), &self.store);
                worker.tell("acquire");
                return Contender::new(worker, Ways::WORKER);
            }
            Make::Lock => ["lock", "--ttl", &ttl_text, name],
            Make::Elect => ["elect", "--", name, "node-3"],
        };
        let mut command = self.member().etcdctl_command();
        command.args(["-w", "fields"]).args(line);
        Contender::new(Worker::spawn(command, self.store.dir.path()), Ways::ETCDCTL)
    }

    fn service(&self, name: &str, ttl: u32) -> Command {
        let mut command = python("etcd_lock_service.py");
        command.args([&self.member().port().to_string(), name, &ttl.to_string()]);
        command
    }

    /// One who counts under a lock.
    pub(crate) fn party<'a>(&'a self, number: usize, make: Make, name: &'a str) -> Party<'a> {
        let way = match make {
            Make::Fencepost => self.our_way(name),
            Make::Lock => Way::Command(Box::new(move || {
                // Not ETCD_LOCK_REV: that one is no token.
                let script = format!(
                    "token=$(etcdctl --endpoints=$member get -w fields $ETCD_LOCK_KEY | \
                     sed -n 's/^\"CreateRevision\" : //p'); {INCREMENT}"
                );
                let member = self.member();
                let mut command = member.etcdctl_command();
                command.env("member", member.address().to_string());
                command.args(["lock", name, "--", "sh", "-c", &script]);
                command
            })),
            Make::Elect => Way::Holder(Box::new(move || self.contend_for(make, name, 60))),
            Make::Service => Way::Worker(Worker::start(self.service(name, 10), &self.store)),
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
