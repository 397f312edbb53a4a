//! What kind of ensemble this is, for `explain`: asked by the servers' four-letter words, one connection each.
//!
//! `srvr` is allowed unless the servers are told otherwise; `conf` is not, and then we do not know the limits
//! of a session. Nothing here decides anything.

use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::Duration;

use super::address::Host;
use super::dial::Servers;
use super::pipe::Pipe;
use super::shared::Shared;
use crate::backend::short;
use crate::race::{First, race};

/// How long a server may take to tell of itself.
const TELL: Duration = Duration::from_millis(500);
/// More than any of these words is answered with.
const LONGEST: usize = 64 << 10;
/// Where the servers keep who belongs to the ensemble.
const CONFIG: &str = "/zookeeper/config";

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Found {
    servers: Vec<(String, Server)>,
    /// The shortest and the longest session, in milliseconds.
    limits: Option<(u64, u64)>,
    members: Option<usize>,
}

/// What one server says.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Server {
    Serves {
        mode: String,
        version: String,
    },
    /// It runs, and has no quorum.
    Waits,
    /// It runs, and may not tell.
    Silent,
    Away,
}

impl Found {
    pub(super) async fn read(shared: &Shared) -> Self {
        let servers = &shared.servers;
        let asked = servers.hosts.iter().map(|host| async {
            let (srvr, conf) =
                futures_util::future::join(ask(servers, host, "srvr"), ask(servers, host, "conf"))
                    .await;
            (host.to_string(), Server::read(srvr.as_deref()), conf.as_deref().and_then(limits))
        });
        let config = shared.control().data(CONFIG);
        let limit = servers.clock.alarm(servers.clock.now() + TELL);
        let told = futures_util::future::join_all(asked);
        let (told, config) = futures_util::future::join(told, race(config, limit)).await;
        let mut found = Self::default();
        for (host, server, limits) in told {
            found.servers.push((host, server));
            found.limits = found.limits.or(limits);
        }
        if let First::Left(Ok((config, _))) = config {
            let text = String::from_utf8_lossy(&config).into_owned();
            let count = text.lines().filter(|line| line.starts_with("server.")).count();
            found.members = (count > 0).then_some(count);
        }
        found
    }

    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let each = self.servers.iter().map(|(host, server)| match server {
            Server::Serves { mode, .. } => format!("{host} {mode}"),
            Server::Waits => format!("{host} without a quorum"),
            Server::Silent => format!("{host} answers"),
            Server::Away => format!("{host} does not answer"),
        });
        let mut lines = vec![("servers", each.collect::<Vec<_>>().join(", "))];
        let mut versions: Vec<&str> = Vec::new();
        for (_, server) in &self.servers {
            if let Server::Serves { version, .. } = server
                && !versions.contains(&version.as_str())
            {
                versions.push(version);
            }
        }
        let version = match versions.as_slice() {
            [] => "not told (srvr is not in 4lw.commands.whitelist)".to_owned(),
            versions => format!("ZooKeeper {}", versions.join(", ")),
        };
        lines.push(("version", version));
        if let Some(count) = self.members {
            lines.push(("members", format!("{count}, a majority is {}", count / 2 + 1)));
        }
        let serves = |server: &Server| matches!(server, Server::Serves { .. } | Server::Silent);
        let quorum = self.servers.iter().any(|(_, server)| serves(server));
        lines.push(("quorum", if quorum { "yes" } else { "no: nobody is granted" }.to_owned()));
        let limits = self.limits.map_or_else(
            || "not told (conf is not in 4lw.commands.whitelist)".to_owned(),
            |(shortest, longest)| {
                let lease = |timeout: u64| short(Duration::from_millis(timeout * 2 / 3));
                format!("{} to {}, by its sessions' limits", lease(shortest), lease(longest))
            },
        );
        lines.push(("TTL", limits));
        lines
    }
}

impl Server {
    fn read(srvr: Option<&str>) -> Self {
        let Some(text) = srvr else { return Self::Away };
        let after = |start: &str| text.lines().find_map(|line| line.strip_prefix(start));
        match (after("Mode: "), after("Zookeeper version: ")) {
            (Some(mode), Some(version)) => {
                let version = version.split(['-', ',']).next().unwrap_or_default();
                Self::Serves { mode: mode.trim().to_owned(), version: version.trim().to_owned() }
            }
            _ if text.contains("not currently serving") => Self::Waits,
            _ => Self::Silent,
        }
    }
}

fn limits(conf: &str) -> Option<(u64, u64)> {
    let after = |start: &str| conf.lines().find_map(|line| line.strip_prefix(start)?.parse().ok());
    Some((after("minSessionTimeout=")?, after("maxSessionTimeout=")?))
}

/// What a server answers to a word; `None` if it does not.
async fn ask(servers: &Servers, host: &Host, word: &str) -> Option<String> {
    let told = async {
        let mut pipe = Pipe::open(host, servers.tls.as_ref()).await.ok()?;
        pipe.put_raw(word.as_bytes());
        // It closes the connection when all is said.
        poll_fn(|context| {
            if ready!(pipe.poll_flush(context)).is_err() {
                return Poll::Ready(());
            }
            while pipe.rest().len() < LONGEST && ready!(pipe.poll_fill(context)).is_ok() {}
            Poll::Ready(())
        })
        .await;
        let text = String::from_utf8_lossy(pipe.rest()).into_owned();
        (!text.is_empty()).then_some(text)
    };
    match race(told, servers.clock.alarm(servers.clock.now() + TELL)).await {
        First::Left(told) => told,
        First::Right(()) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn servers_are_read() {
        let text = "Zookeeper version: 3.8.0-5a02a05, built on 2022-02-25 08:49 UTC\nLatency min/avg/max: \
                    0/0.0/0\nMode: follower\nNode count: 5\n";
        let (mode, version) = ("follower".into(), "3.8.0".into());
        assert_eq!(Server::read(Some(text)), Server::Serves { mode, version });
        let waits = "This ZooKeeper instance is not currently serving requests\n";
        assert_eq!(Server::read(Some(waits)), Server::Waits);
        let refused = "srvr is not executed because it is not in the whitelist.\n";
        assert_eq!(Server::read(Some(refused)), Server::Silent);
        assert_eq!(Server::read(None), Server::Away);
        let conf = "tickTime=2000\nminSessionTimeout=4000\nmaxSessionTimeout=40000\n";
        assert_eq!(limits(conf), Some((4000, 40000)));
        assert_eq!(limits("conf is not executed because"), None);
    }

    #[test]
    fn what_was_found_is_told() {
        let (mode, version) = ("leader".into(), "3.8.0".into());
        let servers = vec![
            ("a:2181".into(), Server::Serves { mode, version }),
            ("b:2181".into(), Server::Away),
        ];
        let found = Found { servers, limits: Some((4000, 40000)), members: Some(3) };
        let lines = found.lines();
        assert!(lines.contains(&("servers", "a:2181 leader, b:2181 does not answer".into())));
        assert!(lines.contains(&("quorum", "yes".into())));
        assert!(lines.contains(&("members", "3, a majority is 2".into())));
        assert!(
            lines.iter().any(|(what, value)| *what == "TTL" && value.contains("2.6s to 26.6s"))
        );
        let none = Found { servers: vec![("a:1".into(), Server::Waits)], ..Found::default() };
        assert!(none.lines().iter().any(|(what, it)| *what == "quorum" && it.starts_with("no")));
    }
}
