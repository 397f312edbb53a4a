//! Three servers that are one store.
//!
//! What must hold: who waits for the cluster waits for the members that can take part, that is, which run,
//! are not frozen and are not cut off.
//!
//! A Go program never sends what goes to a loopback address through a proxy. So the members know each other
//! by addresses that exist nowhere (TEST-NET-1, RFC 5737): only the doors of [`Peers`] lead there. A
//! member that found a way around its door would reach nobody.

use std::io;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use super::Etcd;
use super::builder::{Place, launch};
use crate::peers::Peers;
use crate::ports::{free_port, on_free_port};
use crate::wait::until;

const MEMBERS: usize = 3;
/// How long an election and what follows may take.
const SETTLED: Duration = Duration::from_secs(30);

/// Three members. Dropping it kills them and removes their files.
#[derive(Debug)]
pub struct Cluster {
    members: Vec<Member>,
}

/// One server of a cluster, and its part of the network between them.
#[derive(Debug)]
pub struct Member {
    etcd: Etcd,
    index: usize,
    peers: Arc<Peers>,
}

impl Cluster {
    /// Starts three members and waits until all serve.
    pub fn start() -> io::Result<Self> {
        let cluster = on_free_port(|first| {
            let mut places = vec![Place::new(first)?];
            while places.len() < MEMBERS {
                places.push(Place::new(free_port()?)?);
            }
            let ports = (0..MEMBERS).map(|_| Ok([free_port()?])).collect::<io::Result<Vec<_>>>()?;
            let peers = Arc::new(Peers::new(&ports)?);
            let urls: Vec<_> = (1..)
                .zip(&ports)
                .map(|(number, [port])| format!("http://192.0.2.{number}:{port}"))
                .collect();
            let names =
                places.iter().zip(&urls).map(|(place, url)| format!("{}={url}", place.name));
            let all = names.collect::<Vec<_>>().join(",");
            let mut members = Vec::new();
            for (index, place) in places.into_iter().enumerate() {
                let [port] = ports[index];
                let args = [
                    format!("--listen-peer-urls=http://127.0.0.1:{port}"),
                    format!("--initial-advertise-peer-urls={}", urls[index]),
                    "--heartbeat-interval=50".into(),
                    "--election-timeout=500".into(),
                ];
                let etcd = launch(place, false, &all, &args, Some(peers.door(index)))?;
                members.push(Member { etcd, index, peers: Arc::clone(&peers) });
            }
            // Not one after the other: none serves before most have started.
            members.iter().try_for_each(|member| member.etcd.wait_until_up())?;
            Ok(Self { members })
        })?;
        cluster.leader()?;
        Ok(cluster)
    }

    /// The members. They stay in this order.
    #[must_use]
    pub fn members(&self) -> &[Member] {
        &self.members
    }

    /// `etcd://127.0.0.1:PORT,127.0.0.1:PORT,127.0.0.1:PORT`.
    #[must_use]
    pub fn url(&self) -> String {
        let addresses = self.members.iter().map(|member| member.address().to_string());
        format!("etcd://{}", addresses.collect::<Vec<_>>().join(","))
    }

    /// Waits until the members that can take part agree on a leader among them, and gives its index.
    pub fn leader(&self) -> io::Result<usize> {
        let mut leader = None;
        until(SETTLED, "the members agree on a leader", || {
            leader = self.agreed_leader();
            Ok(leader.is_some())
        })
        .map_err(|error| self.failure(&error))?;
        leader.ok_or_else(|| io::Error::other("there is no leader"))
    }

    /// Waits until every member that can take part serves linearizable reads.
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

    fn taking_part(&self) -> impl Iterator<Item = &Member> {
        self.members.iter().filter(|member| member.takes_part())
    }

    /// The leader if there is one that all know, asked once.
    fn agreed_leader(&self) -> Option<usize> {
        let mut ids = Vec::new();
        let mut leaders = Vec::new();
        for member in self.taking_part() {
            let status = member.etcd.ask(&["endpoint", "status", "-w", "fields"]).ok()?;
            ids.push((field(&status, "MemberID")?, member.index));
            leaders.push(field(&status, "Leader")?);
        }
        let leader = *leaders.first()?;
        let agreed = leaders.iter().all(|other| *other == leader);
        ids.into_iter().find(|(id, _)| agreed && *id == leader).map(|(_, index)| index)
    }

    fn failure(&self, error: &io::Error) -> io::Error {
        let mut logs =
            self.taking_part().map(|member| member.etcd.server.failure(error).to_string());
        let text = logs.next().unwrap_or_else(|| format!("no member takes part: {error}"));
        io::Error::new(error.kind(), text)
    }
}

impl Member {
    /// Cuts the member off from the others, in both directions: when this returns, their connections are
    /// closed and new ones are refused. Clients still reach it.
    pub fn cut_off(&self) {
        self.peers.cut_off(self.index);
    }

    /// Lets the member and the others reach each other again. They need a moment to notice.
    pub fn heal(&self) {
        self.peers.heal(self.index);
    }

    fn takes_part(&self) -> bool {
        self.etcd.server.can_answer() && !self.peers.is_cut_off(self.index)
    }
}

/// A member is a server.
impl Deref for Member {
    type Target = Etcd;

    fn deref(&self) -> &Etcd {
        &self.etcd
    }
}

/// One field of what `etcdctl -w fields` says.
fn field(text: &str, name: &str) -> Option<u64> {
    let start = format!("\"{name}\" : ");
    text.lines().find_map(|line| line.strip_prefix(&start)?.trim().parse().ok())
}
