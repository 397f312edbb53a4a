//! Three servers that are one store, one of which will fail, and clients that use one of them.

use std::net::SocketAddr;
use std::time::Duration;

use crate::{Mode, Proxy};
use fencepost::Fencepost;

use crate::connect;
use crate::time::LIMIT;

/// One client's routes to the servers of a store.
pub struct Routes {
    proxies: Vec<Proxy>,
    scheme: String,
    /// What comes after the hosts.
    rest: String,
}

impl Routes {
    /// To the servers that this URL names.
    pub fn to(url: &str) -> Self {
        let (scheme, rest) = url.split_once("://").unwrap();
        let (hosts, rest) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
        let way = |host: &str| Proxy::to(host.parse::<SocketAddr>().unwrap()).unwrap();
        let proxies = hosts.split(',').map(way).collect();
        Self { proxies, scheme: scheme.into(), rest: rest.into() }
    }

    /// A client that knows all servers and uses this one until it fails. It has taken a lock with each of these TTLs: on stores
    /// with sessions, their sessions are on this server as well.
    pub async fn client_at(&self, at: usize, ttls: &[Duration]) -> Fencepost {
        self.shut_but(at);
        let client = connect(&self.url()).await;
        for ttl in ttls {
            let lock = client.lock("warm").ttl(*ttl).wait_timeout(LIMIT).acquire().await;
            lock.unwrap().release().await.unwrap();
        }
        self.set(Mode::Pass);
        assert!((0..self.proxies.len()).all(|index| self.used(index) == (index == at)));
        client
    }

    /// Closes all routes but the one to this server.
    pub fn shut_but(&self, at: usize) {
        let others = self.proxies.iter().enumerate().filter(|(index, _)| *index != at);
        others.for_each(|(_, way)| way.set_mode(Mode::Refuse));
    }

    /// Sets the mode of all routes.
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

/// Three servers, the one that will fail, a client that uses it, and a client that does not.
pub struct Fixture<T> {
    /// The servers.
    pub three: T,
    /// The one that will fail.
    pub victim: usize,
    ways: Routes,
    /// Uses the victim.
    pub ours: Fencepost,
    /// Does not use it.
    pub theirs: Fencepost,
    _other_ways: Routes,
}

/// Which server will fail.
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

impl<T> Fixture<T> {
    /// `url` names the three; the clients have taken locks with these TTLs.
    pub async fn with(
        three: T,
        url: &str,
        victim: usize,
        [ours, theirs]: [&[Duration]; 2],
    ) -> Self {
        let (ways, other_ways) = (Routes::to(url), Routes::to(url));
        let ours = ways.client_at(victim, ours).await;
        let theirs = other_ways.client_at((victim + 1) % 3, theirs).await;
        Self { three, victim, ways, ours, theirs, _other_ways: other_ways }
    }

    /// Our client uses another server by now.
    pub fn has_moved_on(&self) -> bool {
        (0..3).any(|at| at != self.victim && self.ways.used(at))
    }
}
