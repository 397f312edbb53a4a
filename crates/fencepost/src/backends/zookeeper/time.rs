//! What time it is, by the ensemble's leader.
//!
//! ZooKeeper can not be asked for the time, but it writes it into whatever is written: `mtime` is the wall clock of
//! the leader that carried the write out. So there is one node that is written for nothing else. What was read
//! is used for a while, with our own monotonic clock added to it: counted from when we heard of it, so it is never
//! ahead of the leader's. Before anything is taken for over it is read anew, since another leader may have
//! another clock.
//!
//! Only records go by it. No lease does.

use std::time::Duration;

use fencepost_core::Moment;

use super::faults::{Code, Fault};
use super::ops::Make;
use super::session::Session;
use super::shared::Shared;

/// For how long a reading is used.
const USED: Duration = Duration::from_secs(5);
/// How often the node may vanish before our eyes.
const VANISHED: usize = 8;

/// The leader's time in milliseconds, and when we heard of it.
pub(super) type Reading = (i64, Moment);

impl Shared {
    /// The leader's time, in milliseconds; a little late, if anything.
    pub(super) async fn leader_time(&self, session: &Session) -> Result<i64, Fault> {
        let reading = *self.reading();
        match reading.map(|(time, heard)| (time, self.now().since(heard))) {
            Some((time, age)) if age < USED => {
                Ok(time.saturating_add(i64::try_from(age.as_millis()).unwrap_or(i64::MAX)))
            }
            _ => self.leader_time_now(session).await,
        }
    }

    /// The same, asked for now.
    pub(super) async fn leader_time_now(&self, session: &Session) -> Result<i64, Fault> {
        let node = format!("{}/clock", self.records());
        for _ in 0..VANISHED {
            match session.set(&node, b"").await {
                Ok((stat, _)) => {
                    *self.reading() = Some((stat.mtime, self.now()));
                    return Ok(stat.mtime);
                }
                Err(Fault::Said(Code::NoNode)) => {
                    self.make_shelf(session, &self.records()).await?;
                    match session.create(&node, b"", Make::Persistent, self.access).await {
                        Ok(_) | Err(Fault::Said(Code::NodeExists)) => {}
                        Err(fault) => return Err(fault),
                    }
                }
                Err(fault) => return Err(fault),
            }
        }
        Err(Fault::NotNow(format!("the node {node} keeps vanishing")))
    }
}
