//! What kind of server this is: read when we connect and every few seconds, since it decides what a lock
//! on it is worth.

use std::time::Duration;

use tokio_postgres::Row;

use super::answers;
use crate::backend::short;
use crate::clock::wall;
use crate::error::{Error, Result};
use crate::guarantees::Correctness;
use crate::postgres::{Fault, Pool, Use};

/// How far the server's clock may be off ours before we do not trust it with correctness.
const CLOCKS_AGREE: Duration = Duration::from_secs(1);
/// The oldest server that is used: the fence needs `pg_current_xact_id()`, which came with 13, and what is older is
/// not cared for any more.
const OLDEST: i32 = 130_000;

/// A logical subscriber is no standby, and a backup that is being taken is none yet. The state of another's
/// connection is hidden from a role that may not see it.
const READ: &str = "
SELECT current_setting('server_version') AS version,
       current_setting('server_version_num')::int4 AS number,
       pg_is_in_recovery() AS recovering,
       current_setting('fsync') AS fsync,
       current_setting('synchronous_commit') AS synchronous_commit,
       current_setting('full_page_writes') AS full_page_writes,
       (extract(epoch FROM clock_timestamp()) * 1000000)::int8 AS time,
       (SELECT min(sender_host || ':' || sender_port) FROM pg_stat_wal_receiver) AS primary,
       (SELECT count(*) FROM pg_stat_replication r WHERE r.state IS DISTINCT FROM 'backup'
           AND NOT EXISTS (SELECT FROM pg_replication_slots s
                            WHERE s.active_pid = r.pid AND s.slot_type = 'logical')) AS standbys,
       (SELECT count(*) FROM pg_stat_replication r WHERE r.sync_state = 'sync') AS in_step,
       (SELECT count(*) FROM pg_stat_replication r WHERE r.state IS NULL) AS hidden,
       (SELECT count(*) FROM pg_replication_slots s
         WHERE s.slot_type = 'physical' AND NOT s.active) AS absent
";

/// What was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Found {
    version: String,
    number: i32,
    recovering: bool,
    fsync: String,
    synchronous_commit: String,
    full_page_writes: String,
    /// Of a standby, if it may be known.
    primary: Option<String>,
    /// Those that are connected.
    standbys: u64,
    /// Those of them that have every commit before it is answered.
    in_step: u64,
    /// Those of which this role may know no more.
    hidden: u64,
    /// Those that the server keeps its log for, and that are not there.
    absent: u64,
    /// By how much the server's clock is off ours, ahead or behind.
    off: Duration,
}

impl Found {
    pub(super) async fn read(pool: &Pool) -> Result<Self, Fault> {
        let heard = pool.call(Use::Asking, READ, &[]).await?;
        let row = heard.rows.first().ok_or_else(|| answers::odd("what it is"))?;
        Self::of(row, wall()).map_err(|_| answers::odd("what it is"))
    }

    /// `ours` is our wall clock, read when the answer came.
    fn of(row: &Row, ours: Duration) -> Result<Self, tokio_postgres::Error> {
        let count = |column| answers::number(row, column).unwrap_or(0);
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
            standbys: count("standbys"),
            in_step: count("in_step"),
            hidden: count("hidden"),
            absent: count("absent"),
            off: theirs.abs_diff(ours),
        })
    }

    /// Refuses servers that can not arbitrate.
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
                "{shown} is a read-only standby and takes no locks: name {primary}"
            )));
        }
        Ok(())
    }

    /// Whether a crash of the server keeps what it has granted.
    pub(super) fn synced(&self) -> bool {
        self.fsync == "on" && self.synchronous_commit != "off"
    }

    /// Whether nobody could take over from this server.
    pub(super) fn alone(&self) -> bool {
        self.standbys == 0 && self.absent == 0
    }

    /// Whether whoever could take over has all that was granted.
    pub(super) fn in_step(&self) -> bool {
        let waits = ["on", "remote_apply"].contains(&self.synchronous_commit.as_str());
        waits && self.in_step == self.standbys && self.absent == 0
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
        if self.hidden > 0 {
            why.push(
                "it has standbys of which this role may not know whether they are in step".into(),
            );
            remedies.push("allow it: GRANT pg_read_all_stats TO this role".into());
        } else if !self.alone() && !self.in_step() {
            why.push(
                "it has a standby that could be promoted without the last grants, or an unused replication slot \
                 of one"
                    .into(),
            );
            remedies.push(
                "use a server without standbys, or name every one of them in synchronous_standby_names, as \
                 FIRST n (...), with synchronous_commit = on"
                    .into(),
            );
        }
        if self.off > CLOCKS_AGREE {
            why.push(format!("its clock is {} off ours", short(self.off)));
            remedies.push("set both clocks right (NTP)".into());
        }
        if why.is_empty() {
            return Correctness::Fit;
        }
        Correctness::Unfit { why: why.join("; "), remedy: remedies.join("; ") }
    }

    /// For `explain`: what decided.
    pub(super) fn lines(&self) -> Vec<(&'static str, String)> {
        let standbys = match (self.standbys, self.absent) {
            (0, 0) => "none".to_owned(),
            (there, 0) => format!("{there}, of which {} synchronous", self.in_step),
            (there, absent) => {
                format!("{there}, of which {} synchronous; {absent} slots unused", self.in_step)
            }
        };
        let clock = if self.off > CLOCKS_AGREE {
            format!("{} off ours", short(self.off))
        } else {
            "within a second of ours".into()
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
