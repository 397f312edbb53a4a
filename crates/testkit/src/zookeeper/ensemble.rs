//! One member of an ensemble.

use std::fs;
use std::io;

use super::builder::{Builder, directory};
use super::{ASKED, ZooKeeper};
use crate::cluster::{Cluster, Clustered};

impl Cluster<ZooKeeper> {
    /// Starts three members and waits until all serve.
    pub fn start() -> io::Result<Self> {
        Self::with(&Builder::default())
    }

    /// Starts three members with these options and waits until all serve.
    pub fn with(options: &Builder) -> io::Result<Self> {
        Self::launch(|for_clients, for_peers, peers| {
            let mut builder = options.clone().config("initLimit", "20").config("syncLimit", "6");
            for (number, [quorum, election]) in (1..).zip(for_peers) {
                let value = format!("127.0.0.1:{quorum}:{election}");
                builder = builder.config(&format!("server.{number}"), &value);
            }
            let members = for_clients.iter().enumerate().map(|(index, port)| {
                let directory = directory()?;
                fs::write(directory.path().join("data/myid"), (index + 1).to_string())?;
                builder.launch(directory, *port, Some(peers.door(index)))
            });
            members.collect()
        })
    }
}

impl Clustered for ZooKeeper {
    const SCHEME: &'static str = "zookeeper";

    fn serves(&self) -> io::Result<bool> {
        let ours = self.directory().display().to_string();
        let named = self.four_letter_within("conf", ASKED).is_ok_and(|conf| conf.contains(&ours));
        // It grants sessions.
        Ok(named && self.get_within("/zookeeper", ASKED).is_ok())
    }

    fn leader_among(servers: &[&Self]) -> Option<usize> {
        let mut leader = None;
        for (index, server) in servers.iter().enumerate() {
            match server.mode()?.as_str() {
                "follower" => {}
                "leader" if leader.is_none() => leader = Some(index),
                _ => return None,
            }
        }
        leader
    }
}
