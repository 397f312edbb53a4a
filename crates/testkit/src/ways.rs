//! Three servers that are one store, one of which is to fail, and clients that hang on one of them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{Mode, Proxy};
use fencepost::Fencepost;

use crate::connect;
use crate::time::LIMIT;

/// One client's ways to the servers of a store.
pub struct Ways {
    proxies: Vec<Proxy>,
    scheme: String,
    /// What comes after the hosts.
    rest: String,
}

impl Ways {
    /// To the servers that this URL names.
    pub fn to(url: &str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (hosts, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let way = |host: &str| Proxy::to(host.parse::<SocketAddr>().unwrap()).unwrap();
        let proxies = hosts.split(',').map(way).collect();
        Self { proxies, scheme: scheme.into(), rest: rest.into() }
    }

    /// A client that knows all servers and asks this one, until it fails. It has taken a lock with each of
    /// these TTLs: where there are sessions, those for them hang on this server as well.
    pub async fn client_at(&self, at: usize, ttls: &[Duration]) -> Fencepost {
        self.shut_but(at);
        let client = connect(&self.url()).await;
        for ttl in ttls {
            let lock = client.lock("warm").ttl(*ttl).acquire_within(LIMIT).await;
            lock.unwrap().release().await.unwrap();
        }
        self.set(Mode::Pass);
        assert!((0..self.proxies.len()).all(|index| self.used(index) == (index == at)));
        client
    }

    /// Shuts all ways but the one to this server.
    pub fn shut_but(&self, at: usize) {
        let others = self.proxies.iter().enumerate().filter(|(index, _)| *index != at);
        others.for_each(|(_, way)| way.set_mode(Mode::Refuse));
    }

    /// Has all ways do this.
    pub fn set(&self, mode: Mode) {
        self.proxies.iter().for_each(|way| way.set_mode(mode));
    }

    /// Whether the client is connected to this server.
    fn used(&self, at: usize) -> bool {
        self.proxies[at].connections() > 0
    }

    fn url(&self) -> String {
        let hosts: Vec<_> = self.proxies.iter().map(|way| way.address().to_string()).collect();
        format!("{}://{}{}", self.scheme, hosts.join(","), self.rest)
    }
}

/// Three servers, which one is to fail, a client that hangs on that one, and a client that does not.
pub struct Scene<T> {
    /// The servers.
    pub three: T,
    /// Which one is to fail.
    pub victim: usize,
    ways: Ways,
    /// Hangs on the victim.
    pub ours: Fencepost,
    /// Does not.
    pub theirs: Fencepost,
    _other_ways: Ways,
}

/// Who is to fail.
#[derive(Clone, Copy)]
pub enum Victim {
    /// The one that leads.
    Leader,
    /// Another one.
    Follower,
}

impl Victim {
    /// Its number, while this one leads.
    pub fn under(self, leader: usize) -> usize {
        match self {
            Self::Leader => leader,
            Self::Follower => (leader + 1) % 3,
        }
    }
}

impl<T> Scene<T> {
    /// `url` names the three; the clients have taken locks with these TTLs.
    pub async fn with(
        three: T,
        url: &str,
        victim: usize,
        [ours, theirs]: [&[Duration]; 2],
    ) -> Self {
        let (ways, other_ways) = (Ways::to(url), Ways::to(url));
        let ours = ways.client_at(victim, ours).await;
        let theirs = other_ways.client_at((victim + 1) % 3, theirs).await;
        Self { three, victim, ways, ours, theirs, _other_ways: other_ways }
    }

    /// Our client asks another server by now.
    pub fn has_moved_on(&self) -> bool {
        (0..3).any(|at| at != self.victim && self.ways.used(at))
    }
}
