//! What kind of ensemble this is, for `explain`: asked by the servers' four-letter words, one connection each.
//!
//! `srvr` is allowed unless the servers are told otherwise; `conf` is not, and then we know of the limits of a session
//! what our own was given. What is known to be unsafe is unfit for correctness; what is not known is in the docs.

use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::Duration;

use super::client::{Pipe, Servers};
use super::shared::Shared;
use crate::backend::short;
use crate::guarantees::Correctness;
use crate::race::{First, race};
use crate::url::Host;

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
    /// By those who tell.
    limits: Vec<Limits>,
    /// What our own session asked for and was given.
    session: Option<(Duration, Duration)>,
    members: Option<usize>,
}

/// What sessions a server grants, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    tick: u64,
    shortest: u64,
    longest: u64,
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
        let control = shared.control();
        let config = control.data(CONFIG);
        let limit = servers.clock.alarm(servers.clock.now() + TELL);
        let told = futures_util::future::join_all(asked);
        let (told, config) = futures_util::future::join(told, race(config, limit)).await;
        let session = control.timeouts();
        let mut found = Self { session, ..Self::default() };
        for (host, server, limits) in told {
            found.servers.push((host, server));
            found.limits.extend(limits);
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
        let mut ranges: Vec<String> = Vec::new();
        for Limits { shortest, longest, .. } in &self.limits {
            let [shortest, longest] = [shortest, longest].map(|it| Duration::from_millis(*it));
            let range = format!("{} to {}", lease(shortest), lease(longest));
            if !ranges.contains(&range) {
                ranges.push(range);
            }
        }
        let limits = match ranges.as_slice() {
            [] => {
                let known = match self.session {
                    Some((asked, given)) if given < asked => {
                        format!("{} at most, by maxSessionTimeout", lease(given))
                    }
                    Some((asked, given)) if given > asked => {
                        format!("{} at least, by minSessionTimeout", lease(given))
                    }
                    Some((_, given)) => format!("{} is kept", lease(given)),
                    None => "not told".to_owned(),
                };
                format!("{known}; for all limits, add conf to 4lw.commands.whitelist")
            }
            [range] => format!("{range}, by its sessions' limits"),
            ranges => format!("{}: the servers have different limits", ranges.join(" or ")),
        };
        lines.push(("TTL", limits));
        lines
    }

    /// Whether what is known speaks against it.
    pub(super) fn correctness(&self) -> Correctness {
        let same = |one: &Limits| {
            let first = self.limits.first().unwrap_or(one);
            (one.shortest, one.longest) == (first.shortest, first.longest)
        };
        if !self.limits.iter().all(same) {
            return Correctness::Unfit {
                why:
                    "its servers have different limits for a session, so one that moves to another \
                      server may end before its guard knows"
                        .into(),
                remedy: "give all servers the same minSessionTimeout and maxSessionTimeout".into(),
            };
        }
        // What a server says of its clients reaches the leader within half a tick, from an observer within one
        // (client/beat.rs).
        let observed = self
            .servers
            .iter()
            .any(|(_, server)| matches!(server, Server::Serves { mode, .. } if mode == "observer"));
        let ticks = if observed { 4 } else { 2 };
        if self.limits.iter().any(|one| one.shortest < ticks * one.tick) {
            let why = if observed { " through an observer" } else { "" };
            return Correctness::Unfit {
                why: format!(
                    "its servers grant sessions of less than {ticks} ticks, which may end{why} before their \
                     guard knows"
                ),
                remedy: if observed {
                    "set minSessionTimeout to four ticks or more, or name no observers in the URL"
                        .into()
                } else {
                    "leave minSessionTimeout at two ticks (its default) or more".into()
                },
            };
        }
        Correctness::Fit
    }
}

/// The lease that a session of this timeout carries.
fn lease(timeout: Duration) -> String {
    short(timeout * 2 / 3)
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

fn limits(conf: &str) -> Option<Limits> {
    let after = |start: &str| conf.lines().find_map(|line| line.strip_prefix(start)?.parse().ok());
    let (tick, shortest) = (after("tickTime=")?, after("minSessionTimeout=")?);
    Some(Limits { tick, shortest, longest: after("maxSessionTimeout=")? })
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

    const DEFAULT: Limits = Limits { tick: 2000, shortest: 4000, longest: 40000 };

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
        assert_eq!(limits(conf), Some(DEFAULT));
        assert_eq!(limits("conf is not executed because"), None);
    }

    #[test]
    fn what_was_found_is_told() {
        let (mode, version) = ("leader".into(), "3.8.0".into());
        let servers = vec![
            ("a:2181".into(), Server::Serves { mode, version }),
            ("b:2181".into(), Server::Away),
        ];
        let limits = vec![DEFAULT; 2];
        let found = Found { servers, limits, members: Some(3), ..Found::default() };
        let lines = found.lines();
        assert!(lines.contains(&("servers", "a:2181 leader, b:2181 does not answer".into())));
        assert!(lines.contains(&("quorum", "yes".into())));
        assert!(lines.contains(&("members", "3, a majority is 2".into())));
        assert!(
            lines.iter().any(|(what, value)| *what == "TTL" && value.contains("2.6s to 26.6s"))
        );
        assert_eq!(found.correctness(), Correctness::Fit);
        let none = Found { servers: vec![("a:1".into(), Server::Waits)], ..Found::default() };
        assert!(none.lines().iter().any(|(what, it)| *what == "quorum" && it.starts_with("no")));
    }

    /// Without `conf` there is what our own session was given.
    #[test]
    fn limits_of_a_session_are_shown_as_far_as_they_are_known() {
        let ttl = |asked, given| {
            let session = Some((Duration::from_secs(asked), Duration::from_secs(given)));
            let lines = Found { session, ..Found::default() }.lines();
            lines.into_iter().find(|(what, _)| *what == "TTL").unwrap().1
        };
        assert!(ttl(45, 10).starts_with("6.6s at most"), "{}", ttl(45, 10));
        assert!(ttl(45, 45).starts_with("30.0s is kept"), "{}", ttl(45, 45));
        assert!(ttl(45, 60).starts_with("40.0s at least"), "{}", ttl(45, 60));
    }

    #[test]
    fn limits_that_are_unsafe_are_unfit() {
        let unfit = |found: &Found| match found.correctness() {
            Correctness::Fit => String::new(),
            Correctness::Unfit { remedy, .. } => remedy,
        };
        let mut found = Found { limits: vec![DEFAULT], ..Found::default() };
        assert_eq!(unfit(&found), "");
        assert_eq!(unfit(&Found::default()), "", "not told");
        let (mode, version) = ("observer".into(), "3.8.0".into());
        found.servers.push(("a:1".into(), Server::Serves { mode, version }));
        assert!(unfit(&found).contains("observers"));
        found.limits[0].shortest = 8000;
        assert_eq!(unfit(&found), "");
        found.limits.push(DEFAULT);
        assert!(unfit(&found).contains("the same"));
        assert!(found.lines().iter().any(|(_, it)| it.contains("different limits")));
        let low = Limits { shortest: 3999, ..DEFAULT };
        assert!(unfit(&Found { limits: vec![low], ..Found::default() }).contains("two ticks"));
    }
}
