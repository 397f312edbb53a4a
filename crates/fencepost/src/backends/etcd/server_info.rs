//! The members of the cluster, with their versions and health, read when we connect.

use std::time::Duration;

use futures_util::future::{join, join_all};

use super::api;
use super::connection::Connection;
use crate::race::{First, race};

/// The timeout of the members' status.
const TIMEOUT: Duration = Duration::from_millis(500);

/// What was read.
#[derive(Clone, Debug)]
pub(super) struct ServerInfo {
    pub(super) lines: Vec<(&'static str, String)>,
    /// The oldest version among the members that answered.
    pub(super) version: Version,
    /// How many members vote.
    pub(super) voters: usize,
}

/// A version of etcd: major, minor, patch. All zero if it could not be read.
pub(super) type Version = (u32, u32, u32);

impl ServerInfo {
    /// The status of every member that the URL names. A member that does not answer in time is shown so.
    pub(super) async fn read(connection: &Connection) -> Self {
        let clock = connection.clock();
        let limit = clock.now() + TIMEOUT;
        let asked = (0..connection.count()).map(|at| async move {
            match race(connection.status(at), clock.alarm(limit)).await {
                First::Left(answer) => answer.map_err(|error| error.to_string()),
                First::Right(()) => Err("does not answer".to_owned()),
            }
        });
        let (statuses, members) = join(join_all(asked), connection.member_list(limit)).await;
        let members = members.unwrap_or_default();
        let version = statuses.iter().flatten().map(|status| version_of(&status.version)).min();
        let voters = members.iter().filter(|member| !member.is_learner).count();
        let lines = lines(connection, &statuses, &members);
        Self { lines, version: version.unwrap_or_default(), voters }
    }
}

/// Parses `3.4.23` or `3.6.0-rc.1`.
pub(super) fn version_of(text: &str) -> Version {
    let mut parts = text.split(['.', '-', '+']).map(|part| part.parse().unwrap_or(0));
    let mut next = || parts.next().unwrap_or(0);
    (next(), next(), next())
}

fn lines(
    connection: &Connection,
    statuses: &[Result<api::StatusResponse, String>],
    members: &[api::Member],
) -> Vec<(&'static str, String)> {
    let mut versions: Vec<_> =
        statuses.iter().flatten().map(|status| status.version.clone()).collect();
    versions.sort();
    versions.dedup();
    let mut lines = vec![("server", format!("etcd {}", versions.join(", ")))];
    let voters: Vec<_> = members.iter().filter(|member| !member.is_learner).collect();
    if !voters.is_empty() {
        let names: Vec<_> = voters
            .iter()
            .map(|member| if member.name.is_empty() { "(not started)" } else { &*member.name })
            .collect();
        let quorum = voters.len() / 2 + 1;
        lines.push(("members", format!("{}: {}", voters.len(), names.join(", "))));
        lines.push(("quorum", format!("{quorum} of {}; it answers", voters.len())));
    }
    let ttl = "whole seconds, rounded up; at least one and a half election timeouts (2 s with etcd's defaults)";
    lines.push(("TTL", ttl.to_owned()));
    let kept = "for their retention; every change of leader gives them, like all leases, their whole time again";
    lines.push(("records", kept.to_owned()));
    for (at, status) in statuses.iter().enumerate() {
        let health = status.as_ref().map_or_else(String::clone, health_of);
        lines.push(("member", format!("{}: {health}", connection.shown_at(at))));
    }
    lines
}

fn health_of(status: &api::StatusResponse) -> String {
    let id = status.header.as_ref().map(|header| header.member_id);
    let role = match status.leader {
        0 => "has no leader",
        leader if Some(leader) == id => "leader",
        _ if status.is_learner => "learner",
        _ => "follower",
    };
    let term = status.raft_term;
    let mut health = vec![format!("{role}, term {term}")];
    health.extend(status.errors.iter().map(|error| error.escape_debug().to_string()));
    health.join("; ")
}
