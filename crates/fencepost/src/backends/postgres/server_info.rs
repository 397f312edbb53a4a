//! The server's version and settings: read when we connect and every few seconds, since they decide what a lock on it
//! guarantees.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::time::Duration;

use tokio_postgres::Row;

use super::maintenance::GC_CALLS;
use super::reply;
use crate::backend::short;
use crate::clock::wall;
use crate::error::{Error, Result};
use crate::guarantees::Correctness;
use crate::postgres::Pool;
use crate::store_error::StoreError;

/// How far the server's clock may differ from ours and still be fit for correctness.
const CLOCKS_AGREE: Duration = Duration::from_secs(1);
/// The oldest supported server: the fence needs `pg_current_xact_id()`, which came with 13, and PostgreSQL no longer
/// supports older versions.
const OLDEST: i32 = 130_000;

/// A logical subscriber is no standby, and neither is a program that only copies the log or takes a backup. A role
/// without the right does not see the state of other connections.
const READ: &str = "
SELECT pg_catalog.current_setting('server_version') AS version,
       pg_catalog.current_setting('server_version_num')::pg_catalog.int4 AS number,
       pg_catalog.pg_is_in_recovery() AS recovering,
       pg_catalog.current_setting('fsync') AS fsync,
       pg_catalog.current_setting('synchronous_commit') AS synchronous_commit,
       pg_catalog.current_setting('synchronous_standby_names') AS demanded,
       pg_catalog.current_setting('full_page_writes') AS full_page_writes,
       (pg_catalog.date_part('epoch', pg_catalog.clock_timestamp())
         OPERATOR(pg_catalog.*) 1000000)::pg_catalog.int8 AS time,
       (SELECT pg_catalog.min(pg_catalog.concat(w.sender_host, ':', w.sender_port))
          FROM pg_catalog.pg_stat_wal_receiver w WHERE w.sender_host IS NOT NULL) AS primary,
       ARRAY(SELECT pg_catalog.concat(r.application_name) FROM pg_catalog.pg_stat_replication r
              WHERE r.sync_state OPERATOR(pg_catalog.=) 'sync') AS in_step,
       ARRAY(SELECT pg_catalog.concat(r.application_name) FROM pg_catalog.pg_stat_replication r
              WHERE pg_catalog.concat(r.sync_state) OPERATOR(pg_catalog.<>) 'sync'
                AND pg_catalog.concat(r.state) OPERATOR(pg_catalog.<>) 'backup'
                AND pg_catalog.concat(r.application_name) OPERATOR(pg_catalog.<>) 'pg_basebackup'
                AND pg_catalog.concat(r.application_name) OPERATOR(pg_catalog.<>) 'pg_receivewal'
                AND NOT EXISTS (SELECT FROM pg_catalog.pg_replication_slots s
                                 WHERE s.active_pid OPERATOR(pg_catalog.=) r.pid
                                   AND s.slot_type OPERATOR(pg_catalog.=) 'logical')) AS behind,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_stat_replication r WHERE r.state IS NULL) AS hidden,
       (SELECT pg_catalog.count(*) FROM pg_catalog.pg_replication_slots s
         WHERE s.slot_type OPERATOR(pg_catalog.=) 'physical' AND NOT s.active) AS absent,
       ARRAY(SELECT c.relname::pg_catalog.text FROM pg_catalog.pg_class c, pg_catalog.pg_namespace n
              WHERE n.nspname OPERATOR(pg_catalog.=) 'fencepost' AND c.relnamespace OPERATOR(pg_catalog.=) n.oid
                AND c.relname OPERATOR(pg_catalog.=) ANY ('{locks,tokens,records,marks}'::pg_catalog.name[])
                AND c.relpersistence OPERATOR(pg_catalog.<>) 'p') AS unlogged,
       ARRAY(SELECT p.proname::pg_catalog.text FROM pg_catalog.pg_proc p, pg_catalog.pg_namespace n
              WHERE n.nspname OPERATOR(pg_catalog.=) 'fencepost' AND p.pronamespace OPERATOR(pg_catalog.=) n.oid
                AND pg_catalog.has_schema_privilege(n.oid, 'USAGE')
                AND pg_catalog.has_function_privilege(p.oid, 'EXECUTE')) AS callable
";

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ServerInfo {
    version: String,
    number: i32,
    recovering: bool,
    fsync: String,
    synchronous_commit: String,
    full_page_writes: String,
    /// The address of a standby's primary, if it is readable.
    primary: Option<String>,
    /// Which standbys a commit waits for: the setting `synchronous_standby_names`.
    demanded: String,
    /// Standbys that are connected and have every commit before the reply.
    in_step: Vec<String>,
    /// Standbys that do not, or whose state is hidden from us, and that are connected now or were since this client
    /// connected.
    behind: BTreeSet<String>,
    /// Standbys whose state is hidden from this role.
    hidden: u64,
    /// Standbys for which the server keeps its log, and that are not connected.
    absent: u64,
    /// Tables and sequences of ours that a crash empties.
    unlogged: Vec<String>,
    /// The difference between the server's clock and ours, in either direction.
    off: Duration,
    /// Our functions that exist and that this role may call.
    callable: BTreeSet<String>,
}

impl ServerInfo {
    pub(super) async fn read(pool: &Pool) -> Result<Self, StoreError> {
        let before = wall();
        let received = pool.call_outside(READ, &[]).await?;
        let row = received.value.first().ok_or_else(|| reply::unexpected_reply("what it is"))?;
        Self::of(row, before, wall()).map_err(|_| reply::unexpected_reply("what it is"))
    }

    /// `before` and `after` are our wall clock at the request and at the reply.
    fn of(row: &Row, before: Duration, after: Duration) -> Result<Self, tokio_postgres::Error> {
        let count = |column| reply::number(row, column).unwrap_or(0);
        let time: i64 = row.try_get("time")?;
        let theirs = Duration::from_micros(u64::try_from(time).unwrap_or(0));
        Ok(Self {
            version: row.try_get("version")?,
            number: row.try_get("number")?,
            recovering: row.try_get("recovering")?,
            fsync: row.try_get("fsync")?,
            synchronous_commit: row.try_get("synchronous_commit")?,
            full_page_writes: row.try_get("full_page_writes")?,
            primary: row.try_get("primary")?,
            demanded: row.try_get("demanded")?,
            in_step: row.try_get("in_step")?,
            behind: row.try_get::<_, Vec<String>>("behind")?.into_iter().collect(),
            hidden: count("hidden"),
            absent: count("absent"),
            unlogged: row.try_get("unlogged")?,
            // A slow reply is not a clock difference.
            off: before.saturating_sub(theirs).max(theirs.saturating_sub(after)),
            callable: row.try_get::<_, Vec<String>>("callable")?.into_iter().collect(),
        })
    }

    /// Remembers earlier findings: a standby that lagged and is disconnected now can still be promoted. It is forgotten
    /// when it is synchronous again, unless another standby had that name all the time.
    pub(super) fn after(mut self, before: &Self) -> Self {
        let back = |name| self.in_step.contains(name) && !before.in_step.contains(name);
        let away: Vec<_> = before.behind.iter().filter(|name| !back(name)).cloned().collect();
        self.behind.extend(away);
        self
    }

    /// Whether one of our functions exists, and this role may call it.
    pub(super) fn may(&self, function: &str) -> bool {
        self.callable.contains(function)
    }

    /// The gc calls that this role may make.
    pub(super) fn gc_calls(&self) -> Vec<&'static str> {
        GC_CALLS.iter().filter(|(function, _)| self.may(function)).map(|(_, sql)| *sql).collect()
    }

    /// Refuses servers that cannot grant locks.
    pub(super) fn check(&self, shown: &str) -> Result<()> {
        if self.number < OLDEST {
            return Err(Error::refused(format!(
                "{shown} is PostgreSQL {}: version {} or later is needed",
                self.version,
                OLDEST / 10_000
            )));
        }
        if self.recovering {
            let primary = match &self.primary {
                Some(primary) => format!("its primary, {primary}"),
                None => "its primary".into(),
            };
            return Err(Error::refused(format!(
                "{shown} is a read-only standby and grants no locks: name {primary}"
            )));
        }
        Ok(())
    }

    /// Whether a crash of the server keeps what it has granted.
    pub(super) fn synced(&self) -> bool {
        self.fsync == "on"
            && self.synchronous_commit != "off"
            && self.full_page_writes == "on"
            && self.unlogged.is_empty()
    }

    /// Whether no standby could take over from this server.
    pub(super) fn alone(&self) -> bool {
        self.in_step.is_empty() && self.demanded.is_empty() && self.none_astray()
    }

    /// Whether every standby that could take over has all grants.
    pub(super) fn in_step(&self) -> bool {
        let waits = ["on", "remote_apply"].contains(&self.synchronous_commit.as_str());
        waits && demands_all(&self.demanded) && self.none_astray()
    }

    /// Whether no known standby could lack the last commits.
    fn none_astray(&self) -> bool {
        self.behind.is_empty() && self.absent == 0
    }

    /// Whether locks here may guard against corruption.
    pub(super) fn correctness(&self) -> Correctness {
        let (mut why, mut remedies) = (Vec::new(), Vec::new());
        if self.fsync != "on" {
            why.push("fsync is off, so a crash forgets the last grants".to_owned());
            remedies.push("set fsync = on".to_owned());
        }
        if self.synchronous_commit == "off" {
            why.push("synchronous_commit is off, so a crash forgets the last grants".into());
            remedies.push(
                "set synchronous_commit = on, for the server, the database or this role".into(),
            );
        }
        if self.full_page_writes != "on" {
            why.push("full_page_writes is off, so a crash may damage what was granted".into());
            remedies.push("set full_page_writes = on".into());
        }
        if !self.unlogged.is_empty() {
            let tables = self.unlogged.join(", ");
            why.push(format!(
                "its tables or sequences {tables} are unlogged, so a crash empties them"
            ));
            remedies.push(
                "run ALTER TABLE fencepost.NAME SET LOGGED for each (or ALTER SEQUENCE)".into(),
            );
        }
        if self.hidden > 0 {
            why.push("this role may not see whether its standbys are synchronous".into());
            remedies.push("allow it: GRANT pg_read_all_stats TO this role".into());
        } else if !self.alone() && !self.in_step() {
            why.push(
                "it has a standby that could be promoted without the last grants, or had one since this client \
                 connected, or an unused replication slot of one"
                    .into(),
            );
            remedies.push(
                "use a server without standbys, or name every one of them in synchronous_standby_names, as \
                 FIRST n (...) with n their number, with synchronous_commit = on"
                    .into(),
            );
        }
        if self.off > CLOCKS_AGREE {
            why.push(format!("its clock differs from this host's by {}", short(self.off)));
            remedies.push("synchronize both clocks (NTP)".into());
        }
        if why.is_empty() {
            return Correctness::Fit;
        }
        Correctness::Unfit { why: why.join("; "), remedy: remedies.join("; ") }
    }

    /// The settings that decided, for `explain`.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let synchronous = self.in_step.len();
        let seen = synchronous + self.behind.len();
        let mut standbys = match seen {
            0 => "none seen".to_owned(),
            _ => format!("{seen}, of which {synchronous} synchronous"),
        };
        if self.absent > 0 {
            let _ = write!(standbys, "; {} slots unused", self.absent);
        }
        if !self.demanded.is_empty() {
            let _ = write!(standbys, "; synchronous_standby_names = '{}'", self.demanded);
        }
        let clock = if self.off > CLOCKS_AGREE {
            format!("differs from this host's by {}", short(self.off))
        } else {
            "within a second of this host's".into()
        };
        vec![
            ("server", format!("PostgreSQL {}", self.version)),
            ("fsync", self.fsync.clone()),
            ("synchronous_commit", self.synchronous_commit.clone()),
            ("full_page_writes", self.full_page_writes.clone()),
            ("standbys", standbys),
            ("clock", clock),
        ]
    }
}

/// Whether a commit waits for every standby that `synchronous_standby_names` names: `FIRST n (...)` with n names, or
/// one name alone. Of `FIRST 1 (a, b)` the second may lag behind, or be the one that is promoted while it is away.
fn demands_all(names: &str) -> bool {
    let names = names.trim();
    let (number, listed) = match names.split_once('(') {
        None => ("1", names),
        Some((head, tail)) => {
            let mut words = head.split_whitespace();
            let number = match (words.next(), words.next()) {
                (Some(first), Some(number)) if first.eq_ignore_ascii_case("first") => number,
                (Some(number), None) => number,
                _ => return false,
            };
            (number, tail.trim_end().trim_end_matches(')'))
        }
    };
    let listed: Vec<&str> = listed.split(',').map(str::trim).collect();
    // A star is any number of names; a comma within quotes only makes us too careful.
    let no_star = listed.iter().all(|name| !name.is_empty() && !["*", "\"*\""].contains(name));
    no_star && number.parse() == Ok(listed.len())
}

#[cfg(test)]
mod tests {
    use super::{ServerInfo, demands_all};
    use crate::guarantees::Correctness;

    fn server_info(demanded: &str, in_step: &[&str], behind: &[&str]) -> ServerInfo {
        let own = |names: &[&str]| names.iter().map(|name| (*name).to_owned()).collect::<Vec<_>>();
        ServerInfo {
            version: "15.0".into(),
            number: 150_000,
            recovering: false,
            fsync: "on".into(),
            synchronous_commit: "on".into(),
            full_page_writes: "on".into(),
            primary: None,
            demanded: demanded.into(),
            in_step: own(in_step),
            behind: own(behind).into_iter().collect(),
            hidden: 0,
            absent: 0,
            unlogged: Vec::new(),
            off: std::time::Duration::ZERO,
            callable: std::collections::BTreeSet::new(),
        }
    }

    #[test]
    fn standby_that_lagged_is_remembered_until_it_is_in_step() {
        let alone = server_info("", &[], &[]);
        assert_eq!(alone.correctness(), Correctness::Fit);
        let seen = server_info("", &[], &["second"]).after(&alone);
        assert_ne!(seen.correctness(), Correctness::Fit);
        let away = server_info("", &[], &[]).after(&seen);
        assert!(!away.alone());
        assert_ne!(away.correctness(), Correctness::Fit);
        let twin = server_info("second", &["second"], &["second"]).after(&away);
        assert_ne!(
            server_info("second", &["second"], &[]).after(&twin).correctness(),
            Correctness::Fit
        );
        let back = server_info("second", &["second"], &[]).after(&away);
        assert_eq!(back.correctness(), Correctness::Fit);
        assert!(back.in_step());
    }

    #[test]
    fn functions_that_the_role_may_not_call_are_not_called() {
        let mut locks_alone = server_info("", &[], &[]);
        assert!(locks_alone.gc_calls().is_empty());
        locks_alone.callable = ["acquire", "gc_locks"].map(str::to_owned).into();
        assert_eq!(locks_alone.gc_calls(), ["SELECT fencepost.gc_locks(3600000)"]);
    }

    #[test]
    fn standby_that_can_be_absent_is_not_in_step() {
        assert_ne!(server_info("FIRST 1 (a, b)", &["a"], &[]).correctness(), Correctness::Fit);
        assert_eq!(server_info("FIRST 2 (a, b)", &["a", "b"], &[]).correctness(), Correctness::Fit);
        // Commits wait until the missing standbys are back.
        assert_eq!(server_info("FIRST 2 (a, b)", &["a"], &[]).correctness(), Correctness::Fit);
    }

    #[test]
    fn synchronous_standby_names_that_demand_all_are_recognized() {
        for all in ["second", "\"Second\"", "FIRST 1 (a)", "first 2 ( a , \"b c\" )", "2 (a, b)"] {
            assert!(demands_all(all), "{all}");
        }
        for some in [
            "",
            "*",
            "a, b",
            "FIRST 1 (a, b)",
            "1 (a, b)",
            "ANY 1 (a)",
            "ANY 2 (a, b)",
            "FIRST 1 (*)",
            "(",
        ] {
            assert!(!demands_all(some), "{some}");
        }
    }
}
