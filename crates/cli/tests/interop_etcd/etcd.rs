//! An etcd, or a cluster of three members, with several kinds of client.

use std::ops::Deref;
use std::process::Command;
use std::sync::Weak;
use std::time::Duration;

use fencepost_testkit::interop::contender::{Contender, Protocol};
use fencepost_testkit::interop::mixed::{CountResult, INCREMENT, Party, PartyKind, count};
use fencepost_testkit::interop::servers::{Members, Servers};
use fencepost_testkit::interop::site::Site;
use fencepost_testkit::interop::worker::{Worker, python};
use fencepost_testkit::{Etcd, EtcdCluster, Slot, shared};

/// A kind of client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ClientKind {
    Fencepost,
    /// `etcdctl lock`.
    Lock,
    /// `etcdctl elect`.
    Elect,
    /// The lock service of etcd itself.
    Service,
}

/// Servers, which tests share, and their clients.
pub(crate) struct Fixture {
    site: Site,
    servers: Servers<Etcd>,
}

impl Deref for Fixture {
    type Target = Site;

    fn deref(&self) -> &Site {
        &self.site
    }
}

impl Fixture {
    pub(crate) fn with(members: Members) -> Self {
        static ONE: Slot<Etcd> = Slot::new(Weak::new());
        static THREE: Slot<EtcdCluster> = Slot::new(Weak::new());
        let servers = match members {
            Members::One => Servers::one(shared(&ONE, || Etcd::builder().start()).unwrap()),
            Members::Three => Servers::three(shared(&THREE, EtcdCluster::start).unwrap()),
        };
        Self { site: Site::on(servers.url()), servers }
    }

    /// A member; each call returns the next one.
    pub(crate) fn member(&self) -> &Etcd {
        self.servers.member()
    }

    /// Starts a client that holds the lock as soon as it is granted.
    pub(crate) fn contend(&self, kind: ClientKind, ttl: u32) -> Contender {
        self.contend_for(kind, &self.name, ttl)
    }

    /// Starts a client that holds a lock as soon as it is granted. The lease of `etcdctl elect` is always 60 s.
    pub(crate) fn contend_for(&self, kind: ClientKind, name: &str, ttl: u32) -> Contender {
        let ttl_text = ttl.to_string();
        let line = match kind {
            ClientKind::Fencepost => return self.ours(name, ttl),
            ClientKind::Service => {
                let mut worker = Worker::start(self.service(name, ttl), &self.store);
                worker.send("acquire");
                return Contender::new(worker, Protocol::WORKER);
            }
            ClientKind::Lock => ["lock", "--ttl", &ttl_text, name],
            ClientKind::Elect => ["elect", "--", name, "node-3"],
        };
        let mut command = self.member().etcdctl_command();
        command.args(["-w", "fields"]).args(line);
        Contender::new(Worker::spawn(command, self.store.dir.path()), Protocol::ETCDCTL)
    }

    fn service(&self, name: &str, ttl: u32) -> Command {
        let mut command = python("etcd_lock_service.py");
        command.args([&self.member().port().to_string(), name, &ttl.to_string()]);
        command
    }

    /// A client that counts under a lock.
    pub(crate) fn party<'a>(&'a self, number: usize, kind: ClientKind, name: &'a str) -> Party<'a> {
        let party_kind = match kind {
            ClientKind::Fencepost => self.our_party_kind(name),
            ClientKind::Lock => PartyKind::Command(Box::new(move || {
                // Not ETCD_LOCK_REV, which is not a token.
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
            ClientKind::Elect => {
                PartyKind::Holder(Box::new(move || self.contend_for(kind, name, 60)))
            }
            ClientKind::Service => {
                PartyKind::Worker(Worker::start(self.service(name, 10), &self.store))
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
