//! Three servers that are one store.
//!
//! What must hold: who waits for the ensemble waits for the members that can take part, that is, which run,
//! are not frozen and are not cut off.

use std::fs;
use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::ZooKeeper;
use super::builder::{Builder, directory};
use crate::peers::Peers;
use crate::ports::{free_port, on_free_port};
use crate::wait::until;

const MEMBERS: usize = 3;
/// How long an election and what follows may take.
const SETTLED: Duration = Duration::from_secs(30);

/// Three members. Dropping it kills them and removes their files.
#[derive(Debug)]
pub struct Ensemble {
    members: Vec<Member>,
}

/// One server of an ensemble, and its part of the network between them.
#[derive(Debug)]
pub struct Member {
    zookeeper: ZooKeeper,
    index: usize,
    peers: Arc<Peers>,
}

impl Ensemble {
    /// Starts three members and waits until all serve.
    pub fn start() -> io::Result<Self> {
        Self::with(&Builder::default())
    }

    /// Starts three members with these options and waits until all serve.
    pub fn with(options: &Builder) -> io::Result<Self> {
        let ensemble = on_free_port(|first| {
            let ports = (0..MEMBERS)
                .map(|_| Ok([free_port()?, free_port()?]))
                .collect::<io::Result<Vec<_>>>()?;
            let peers = Arc::new(Peers::new(&ports)?);
            let mut builder = options.clone().config("initLimit", "20").config("syncLimit", "6");
            for (number, [quorum, election]) in (1..).zip(&ports) {
                let value = format!("127.0.0.1:{quorum}:{election}");
                builder = builder.config(&format!("server.{number}"), &value);
            }
            let mut members = Vec::new();
            for index in 0..MEMBERS {
                let port = if index == 0 { first } else { free_port()? };
                let directory = directory()?;
                fs::write(directory.path().join("data/myid"), (index + 1).to_string())?;
                let zookeeper = builder.launch(directory, port, Some(peers.door(index)))?;
                members.push(Member { zookeeper, index, peers: Arc::clone(&peers) });
            }
            // Not one after the other: none serves before most have started.
            members.iter().try_for_each(|member| member.zookeeper.wait_until_up())?;
            Ok(Self { members })
        })?;
        ensemble.leader()?;
        Ok(ensemble)
    }

    /// The members. They stay in this order.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// `zookeeper://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses = self.members.iter().map(|member| member.address().to_string());
        format!("zookeeper://{}", addresses.collect::<Vec<_>>().join(","))
    }

    /// Waits until one of the members that can take part leads and the others of them follow, and gives its
    /// index.
    pub fn leader(&self) -> io::Result<usize> {
        let mut leader = None;
        until(SETTLED, "one member leads and the others follow", || {
            leader = self.followed_leader();
            Ok(leader.is_some())
        })
        .map_err(|error| self.failure(&error))?;
        leader.ok_or_else(|| io::Error::other("there is no leader"))
    }

    /// Waits until every member that can take part gives sessions and reads what the leader has.
    pub fn wait_until_healthy(&self) -> io::Result<()> {
        until(SETTLED, "every member serves", || Ok(self.taking_part().all(|one| one.serves())))
            .map_err(|error| self.failure(&error))
    }

    fn taking_part(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.takes_part())
    }

    /// The leader if the others follow, asked once.
    fn followed_leader(&self) -> Option<usize> {
        let mut leader = None;
        for member in self.taking_part() {
            match member.mode()?.as_str() {
                "follower" => {}
                "leader" if leader.is_none() => leader = Some(member.index),
                _ => return None,
            }
        }
        leader
    }

    fn failure(&self, error: &io::Error) -> io::Error {
        let mut logs =
            self.taking_part().map(|member| member.zookeeper.server.failure(error).to_string());
        let text = logs.next().unwrap_or_else(|| format!("no member takes part: {error}"));
        io::Error::new(error.kind(), text)
    }
}

impl Member {
    /// Cuts the member off from the others, in both directions: when this returns, their connections are
    /// closed and new ones are refused. Clients still reach it; it needs a moment to notice that it is alone.
    pub fn cut_off(&self) {
        self.peers.cut_off(self.index);
    }

    /// Lets the member and the others reach each other again. They need a moment to notice.
    pub fn heal(&self) {
        self.peers.heal(self.index);
    }

    fn takes_part(&self) -> bool {
        self.zookeeper.server.can_answer() && !self.peers.is_cut_off(self.index)
    }
}

/// A member is a server.
impl Deref for Member {
    type Target = ZooKeeper;

    fn deref(&self) -> &ZooKeeper {
        &self.zookeeper
    }
}
