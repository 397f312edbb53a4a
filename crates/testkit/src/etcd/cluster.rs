//! One member of a cluster.
//!
//! Go programs never use a proxy for loopback addresses. So the members know each other by addresses that exist nowhere
//! (TEST-NET-1, RFC 5737), and only the doors of [`Peers`](crate::peers::Peers) lead there. A member that bypassed its door
//! would reach no other.

use std::io;
use std::net::TcpStream;

use super::Etcd;
use super::builder::{ServerFiles, launch};
use crate::cluster::{Cluster, Clustered};

/// A key that is never written. A read of it needs what any read needs.
const PROBE: &str = "fencepost-testkit-probe";

impl Cluster<Etcd> {
    /// Starts three members and waits until all serve.
    pub fn start() -> io::Result<Self> {
        Self::launch(|for_clients, for_peers, peers| {
            let places = for_clients.iter().map(|port| ServerFiles::new(*port));
            let places = places.collect::<io::Result<Vec<_>>>()?;
            let urls: Vec<_> = (1..)
                .zip(for_peers)
                .map(|(number, [port])| format!("http://192.0.2.{number}:{port}"))
                .collect();
            let names =
                places.iter().zip(&urls).map(|(place, url)| format!("{}={url}", place.name));
            let all = names.collect::<Vec<_>>().join(",");
            let members = places.into_iter().enumerate().map(|(index, place)| {
                let [port] = for_peers[index];
                let args = [
                    format!("--listen-peer-urls=http://127.0.0.1:{port}"),
                    format!("--initial-advertise-peer-urls={}", urls[index]),
                    "--heartbeat-interval=50".into(),
                    "--election-timeout=500".into(),
                ];
                launch(place, false, &all, &args, Some(peers.door(index)))
            });
            members.collect()
        })
    }
}

impl Clustered for Etcd {
    const SCHEME: &'static str = "etcd";

    fn serves(&self) -> io::Result<bool> {
        // If the port is closed, etcdctl would retry only a second later.
        if TcpStream::connect(self.address()).is_err() {
            return Ok(false);
        }
        match self.ask(&["get", PROBE]).and_then(|_| self.ask(&["member", "list"])) {
            Ok(members) => Ok(members.contains(&self.name)),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Err(error),
            Err(_) => Ok(false),
        }
    }

    fn leader_among(servers: &[&Self]) -> Option<usize> {
        let mut ids = Vec::new();
        let mut leaders = Vec::new();
        for server in servers {
            let status = server.ask(&["endpoint", "status", "-w", "fields"]).ok()?;
            ids.push(field(&status, "MemberID")?);
            leaders.push(field(&status, "Leader")?);
        }
        let leader = *leaders.first()?;
        let agreed = leaders.iter().all(|other| *other == leader);
        ids.into_iter().position(|id| agreed && id == leader)
    }
}

/// One field of the output of `etcdctl -w fields`.
fn field(text: &str, name: &str) -> Option<u64> {
    let start = format!("\"{name}\" : ");
    text.lines().find_map(|line| line.strip_prefix(&start)?.trim().parse().ok())
}
