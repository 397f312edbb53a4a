//! Three servers that are one store, and the network between them.
//!
//! What must hold: a wait for the cluster waits for the members that can take part: those that run, are not frozen and are
//! not cut off.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use crate::peers::Peers;
use crate::ports::{free_port, on_free_port};
use crate::server::Server;
use crate::wait::until;

const MEMBERS: usize = 3;
/// How long an election and its consequences may take.
const SETTLED: Duration = Duration::from_secs(30);

/// A kind of server, alone or in a cluster.
pub trait Clustered: Deref<Target = Server> + Sized {
    /// The scheme of its URL.
    const SCHEME: &'static str;

    /// Whether it is ours and serves reads as new as the leader's; asked once, with a short timeout. Fails if it cannot be
    /// asked.
    fn serves(&self) -> io::Result<bool>;

    /// Which of these leads, if all the others follow it; asked once.
    fn leader_among(servers: &[&Self]) -> Option<usize>;

    /// Waits until a server that was launched serves.
    fn wait_until_up(&self) -> io::Result<()> {
        self.wait_until(|| self.serves())
    }
}

/// Three members. Dropping it kills them and removes their files.
#[derive(Debug)]
pub struct Cluster<S> {
    members: Vec<Member<S>>,
}

/// One server of a cluster, and its part of the network between them.
#[derive(Debug)]
pub struct Member<S> {
    server: S,
    index: usize,
    peers: Arc<Peers>,
}

impl<S: Clustered> Cluster<S> {
    /// Starts the members with `launch` and waits until all serve. `launch` gets the client port of each, the peer ports, and the
    /// doors through which they reach each other.
    pub(crate) fn launch<const PORTS: usize>(
        launch: impl Fn(&[u16], &[[u16; PORTS]], &Peers) -> io::Result<Vec<S>>,
    ) -> io::Result<Self> {
        let cluster = on_free_port(|first| {
            let mut for_clients = vec![first];
            while for_clients.len() < MEMBERS {
                for_clients.push(free_port()?);
            }
            let mut for_peers = [[0; PORTS]; MEMBERS];
            for port in for_peers.iter_mut().flatten() {
                *port = free_port()?;
            }
            let peers = Arc::new(Peers::new(&for_peers)?);
            let servers = launch(&for_clients, &for_peers, &peers)?.into_iter().enumerate();
            let member = |(index, server)| Member { server, index, peers: Arc::clone(&peers) };
            let members: Vec<_> = servers.map(member).collect();
            // Together: none serves before most have started.
            members.iter().try_for_each(|member| member.server.wait_until_up())?;
            Ok(Self { members })
        })?;
        cluster.leader()?;
        Ok(cluster)
    }

    /// The members, in a fixed order.
    #[must_use]
    pub fn members(&self) -> &[Member<S>] {
        &self.members
    }

    /// `SCHEME://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses = self.members.iter().map(|member| member.address().to_string());
        format!("{}://{}", S::SCHEME, addresses.collect::<Vec<_>>().join(","))
    }

    /// Waits until one of the members that can take part leads and the others follow. Returns its index.
    pub fn leader(&self) -> io::Result<usize> {
        let mut leader = None;
        until(SETTLED, "one member leads and the others follow", || {
            let members: Vec<_> = self.taking_part().collect();
            let servers: Vec<_> = members.iter().map(|member| &member.server).collect();
            leader = S::leader_among(&servers).map(|at| members[at].index);
            Ok(leader.is_some())
        })
        .map_err(|error| self.failure(&error))?;
        leader.ok_or_else(|| io::Error::other("there is no leader"))
    }

    /// Waits until every member that can take part serves reads as new as the leader's.
    pub fn wait_until_healthy(&self) -> io::Result<()> {
        until(SETTLED, "every member serves", || {
            for member in self.taking_part() {
                if !member.serves()? {
                    return Ok(false);
                }
            }
            Ok(true)
        })
        .map_err(|error| self.failure(&error))
    }

    fn taking_part(&self) -> impl Iterator<Item = &Member<S>> {
        self.members.iter().filter(|member| member.takes_part())
    }

    fn failure(&self, error: &io::Error) -> io::Error {
        let mut logs = self.taking_part().map(|member| member.failure(error).to_string());
        let text = logs.next().unwrap_or_else(|| format!("no member takes part: {error}"));
        io::Error::new(error.kind(), text)
    }
}

impl<S: Clustered> Member<S> {
    /// Cuts the member off from the others, in both directions: when this returns, their connections are closed and new ones are
    /// refused. Clients still reach it; it needs a moment to notice.
    pub fn cut_off(&self) {
        self.peers.cut_off(self.index);
    }

    /// Reconnects the member with the others. They need a moment to notice.
    pub fn heal(&self) {
        self.peers.heal(self.index);
    }

    fn takes_part(&self) -> bool {
        self.can_answer() && !self.peers.is_cut_off(self.index)
    }
}

/// A member is a server.
impl<S> Deref for Member<S> {
    type Target = S;

    fn deref(&self) -> &S {
        &self.server
    }
}
