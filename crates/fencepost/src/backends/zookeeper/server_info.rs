//! The servers and their limits, for `explain`: read by their four-letter words, one connection each.
//!
//! `srvr` is allowed by default; `conf` is not, and without it we only know the timeout that our own session was granted.
//! Settings that are known to be unsafe are unfit for correctness; the docs name those that cannot be known.

use std::future::poll_fn;
use std::task::{Poll, ready};
use std::time::Duration;

use super::client::{FrameStream, Servers};
use super::shared::Shared;
use crate::backend::short;
use crate::guarantees::Correctness;
use crate::race::{First, race};
use crate::url::Host;

/// The timeout of a server's answer.
const REPLY_TIMEOUT: Duration = Duration::from_millis(500);
/// Longer than the answer to any of these words.
const LONGEST: usize = 64 << 10;
/// The node in which the servers keep the members of the ensemble.
const CONFIG: &str = "/zookeeper/config";

/// What was read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ServerInfo {
    servers: Vec<(String, Server)>,
    /// From the servers that report them.
    limits: Vec<Limits>,
    /// The timeout that our own session requested, and the one it was granted.
    session: Option<(Duration, Duration)>,
    members: Option<usize>,
}

/// The session timeouts that a server grants, in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Limits {
    tick: u64,
    shortest: u64,
    longest: u64,
}

/// The answer of one server.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Server {
    Serves {
        mode: String,
        version: String,
    },
    /// It runs, and has no quorum.
    Waits,
    /// It runs, and may not answer.
    Silent,
    Away,
}

impl ServerInfo {
    pub(super) async fn read(shared: &Shared) -> Self {
        let servers = &shared.servers;
        let requests = servers.hosts.iter().map(|host| async {
            let (srvr, conf) =
                futures_util::future::join(ask(servers, host, "srvr"), ask(servers, host, "conf"))
                    .await;
            (host.to_string(), Server::read(srvr.as_deref()), conf.as_deref().and_then(limits))
        });
        let control = shared.control();
        let config = control.data(CONFIG);
        let limit = servers.clock.alarm(servers.clock.now() + REPLY_TIMEOUT);
        let replies = futures_util::future::join_all(requests);
        let (replies, config) = futures_util::future::join(replies, race(config, limit)).await;
        let session = control.timeouts();
        let mut server_info = Self { session, ..Self::default() };
        for (host, server, limits) in replies {
            server_info.servers.push((host, server));
            server_info.limits.extend(limits);
        }
        if let First::Left(Ok((config, _))) = config {
            let text = String::from_utf8_lossy(&config).into_owned();
            let count = text.lines().filter(|line| line.starts_with("server.")).count();
            server_info.members = (count > 0).then_some(count);
        }
        server_info
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
            [] => "unknown (srvr is not in 4lw.commands.whitelist)".to_owned(),
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
                    None => "unknown".to_owned(),
                };
                format!("{known}; for all limits, add conf to 4lw.commands.whitelist")
            }
            [range] => format!("{range}, by its sessions' limits"),
            ranges => format!("{}: the servers have different limits", ranges.join(" or ")),
        };
        lines.push(("TTL", limits));
        lines
    }

    /// Whether a known setting makes it unfit.
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
        // A server's report about its clients reaches the leader within half a tick, from an observer within one
        // (client/lease_credit.rs).
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

/// The lease of a session with this timeout.
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

/// The server's answer to a word; `None` if there is none.
async fn ask(servers: &Servers, host: &Host, word: &str) -> Option<String> {
    let reply = async {
        let mut frame_stream = FrameStream::open(host, servers.tls.as_ref()).await.ok()?;
        frame_stream.put_raw(word.as_bytes());
        // It closes the connection after its answer.
        poll_fn(|context| {
            if ready!(frame_stream.poll_flush(context)).is_err() {
                return Poll::Ready(());
            }
            while frame_stream.rest().len() < LONGEST
                && ready!(frame_stream.poll_fill(context)).is_ok()
            {}
            Poll::Ready(())
        })
        .await;
        let text = String::from_utf8_lossy(frame_stream.rest()).into_owned();
        (!text.is_empty()).then_some(text)
    };
    match race(reply, servers.clock.alarm(servers.clock.now() + REPLY_TIMEOUT)).await {
        First::Left(reply) => reply,
        First::Right(()) => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DEFAULT: Limits = Limits { tick: 2000, shortest: 4000, longest: 40000 };

    #[test]
    fn server_status_is_parsed() {
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
    fn server_info_is_shown() {
        let (mode, version) = ("leader".into(), "3.8.0".into());
        let servers = vec![
            ("a:2181".into(), Server::Serves { mode, version }),
            ("b:2181".into(), Server::Away),
        ];
        let limits = vec![DEFAULT; 2];
        let server_info = ServerInfo { servers, limits, members: Some(3), ..ServerInfo::default() };
        let lines = server_info.lines();
        assert!(lines.contains(&("servers", "a:2181 leader, b:2181 does not answer".into())));
        assert!(lines.contains(&("quorum", "yes".into())));
        assert!(lines.contains(&("members", "3, a majority is 2".into())));
        assert!(
            lines.iter().any(|(what, value)| *what == "TTL" && value.contains("2.6s to 26.6s"))
        );
        assert_eq!(server_info.correctness(), Correctness::Fit);
        let none =
            ServerInfo { servers: vec![("a:1".into(), Server::Waits)], ..ServerInfo::default() };
        assert!(none.lines().iter().any(|(what, it)| *what == "quorum" && it.starts_with("no")));
    }

    /// Without `conf` only our own session's timeout is known.
    #[test]
    fn session_limits_are_shown_as_far_as_known() {
        let ttl = |asked, given| {
            let session = Some((Duration::from_secs(asked), Duration::from_secs(given)));
            let lines = ServerInfo { session, ..ServerInfo::default() }.lines();
            lines.into_iter().find(|(what, _)| *what == "TTL").unwrap().1
        };
        assert!(ttl(45, 10).starts_with("6.6s at most"), "{}", ttl(45, 10));
        assert!(ttl(45, 45).starts_with("30.0s is kept"), "{}", ttl(45, 45));
        assert!(ttl(45, 60).starts_with("40.0s at least"), "{}", ttl(45, 60));
    }

    #[test]
    fn unsafe_limits_are_unfit() {
        let unfit = |server_info: &ServerInfo| match server_info.correctness() {
            Correctness::Fit => String::new(),
            Correctness::Unfit { remedy, .. } => remedy,
        };
        let mut server_info = ServerInfo { limits: vec![DEFAULT], ..ServerInfo::default() };
        assert_eq!(unfit(&server_info), "");
        assert_eq!(unfit(&ServerInfo::default()), "", "unknown");
        let (mode, version) = ("observer".into(), "3.8.0".into());
        server_info.servers.push(("a:1".into(), Server::Serves { mode, version }));
        assert!(unfit(&server_info).contains("observers"));
        server_info.limits[0].shortest = 8000;
        assert_eq!(unfit(&server_info), "");
        server_info.limits.push(DEFAULT);
        assert!(unfit(&server_info).contains("the same"));
        assert!(server_info.lines().iter().any(|(_, it)| it.contains("different limits")));
        let low = Limits { shortest: 3999, ..DEFAULT };
        assert!(
            unfit(&ServerInfo { limits: vec![low], ..ServerInfo::default() }).contains("two ticks")
        );
    }
}
