//! A candidate: when it leads, it enters a resource with a fence, and writes there on order.

use std::path::Path;
use std::time::Duration;

use fencepost::{ErrorKind, Fencepost, Leadership, fences};
use fencepost_core::{FencingToken, LockName, Token};
use fencepost_process::worker::say;
use rusqlite::{Connection, TransactionBehavior};
use tokio::sync::mpsc::UnboundedReceiver;

use super::LossWatch;
use crate::fixture::{Verdict, pass};

/// A candidate, its election, and where it writes when it leads.
pub(super) struct Candidate<'a> {
    pub(super) name: &'a str,
    pub(super) ttl: Duration,
    pub(super) label: &'a str,
    pub(super) resource: &'a Path,
}

impl Candidate<'_> {
    /// Campaigns again on order, until it resigns.
    pub(super) async fn campaign(
        &self,
        client: &Fencepost,
        orders: &mut UnboundedReceiver<String>,
    ) -> Verdict {
        let election = client.election(self.name).ttl(self.ttl).label(self.label);
        loop {
            let leadership = match election.campaign(self.label).await {
                Ok(leadership) => leadership,
                Err(error) if error.kind() == ErrorKind::Unreachable => {
                    pass(Duration::from_millis(20)).await;
                    continue;
                }
                Err(error) => return Err(error.into()),
            };
            // A leader enters first: from here on no earlier leader can write.
            let entered = self.write(leadership.term(), true)?;
            say(&format!("leading {} {entered}", leadership.term()));
            if self.reign(leadership, orders).await? {
                return Ok(());
            }
        }
    }

    /// Follows orders as the leader. Returns whether it resigned.
    async fn reign(
        &self,
        leadership: Leadership,
        orders: &mut UnboundedReceiver<String>,
    ) -> Verdict<bool> {
        let mut watch = LossWatch::over(leadership.guard());
        loop {
            match watch.order(orders).await.as_deref() {
                Some("write") => match leadership.check() {
                    Ok(fencing) => say(self.write(fencing.token(), true)?),
                    Err(error) => say(&format!("not sent: {}", error.one_line())),
                },
                // Like a leader that checked before it froze.
                Some("write unchecked") => say(self.write(leadership.term(), true)?),
                Some("write unfenced") => say(self.write(leadership.term(), false)?),
                Some("campaign") => return Ok(false),
                Some("resign") => {
                    leadership.resign().await?;
                    say("resigned");
                    return Ok(true);
                }
                _ => {}
            }
        }
    }

    fn write(&self, term: Token, fenced: bool) -> Verdict<&'static str> {
        let fencing = FencingToken::new(LockName::new(self.name)?, term);
        let mut connection = Connection::open(self.resource)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
        if fenced {
            match fences::sqlite::enter(&tx, &fencing) {
                Ok(()) => {}
                Err(error) if error.kind() == ErrorKind::Stale => return Ok("stale"),
                Err(error) => return Err(error.into()),
            }
        }
        let table = "CREATE TABLE IF NOT EXISTS writes
                     (number INTEGER PRIMARY KEY, term INTEGER NOT NULL, leader TEXT NOT NULL)";
        tx.execute(table, [])?;
        let row = (i64::try_from(term.get())?, self.label);
        tx.execute("INSERT INTO writes (term, leader) VALUES (?, ?)", row)?;
        tx.commit()?;
        Ok("wrote")
    }
}
