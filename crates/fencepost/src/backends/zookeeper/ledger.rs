//! Records of what was done once per key, as nodes that stay (record.rs is the map, and the rules).
//!
//! *Why one success is recorded:* every step is one write that the leader carries out whole, or not at all. A record
//! that is not there is created, which only one can do. A record that is there is replaced only if its node has
//! still the version that was read, so nothing happened to it since the rules were asked. Versions begin anew with
//! a node: so whoever removes records sets their directory in the same step, and whoever replaces one asks in the
//! same step whether the directory has still the version that was read *before* the record. These directories are
//! made to stay, at most 256 of them, so their versions never begin anew.
//! *Retries:* if the answer is lost, the record is read again and the rules are asked again. They give the same
//! answer to the same token, so what was done already is found done.
//! *Time* is the leader's wall clock (time.rs), never a client's. A leader whose clock is wrong, or jumps, keeps
//! records for too long or not long enough; it does not let two settle one.
//! *Where that ends:* with the data, as for the locks: servers that come back without their latest writes have lost
//! the records in them. And a server that was cut off with a leader that is none any more may show, for as long
//! as it does not know, a record as it was.
//!
//! *What is left behind:* a record whose time is over is removed by whoever meets it, and each finish looks at a few
//! others (shelves.rs).

use std::sync::Arc;

use fencepost_core::{LockName, Token};

use super::ZooKeeper;
use super::faults::{Code, Fault};
use super::names::RESERVED;
use super::ops::{Make, Op};
use super::record::{self, Next, Record, Site};
use super::session::Session;
use super::shared::{PATIENCE, Shared};
use super::shelves::there;
use super::wire::Stat;
use crate::backend::BoxFuture;
use crate::error::{Error, Result};
use crate::ledger::{Claim, Claimed, Entry, Finish, Ledger};

/// The version of a node is not the one that was read; there is none; there is one.
const LATE: [i32; 3] = [-103, -101, -110];

/// A record as it was read.
struct Found {
    /// Of the directory, read before.
    shelf: Option<i32>,
    /// Of the node, if there is one.
    version: Option<i32>,
    /// Unless its time is over.
    record: Option<(Record, Stat)>,
    now: i64,
}

impl Shared {
    pub(super) fn records(&self) -> String {
        format!("{}/{RESERVED}/records", self.chroot)
    }

    /// Reads the record, asks what is to be done, and does it if nothing has happened meanwhile; as often as it
    /// takes. `decide` is told whether an earlier attempt may have been carried out.
    async fn step<T>(
        self: &Arc<Self>,
        name: &LockName,
        decide: impl Fn(Option<Entry>, bool) -> Next<T>,
    ) -> Result<T> {
        let site = Site::of(&self.records(), name);
        let (give_up, mut again) = (self.now() + PATIENCE, false);
        loop {
            let session = self.control();
            let attempt = async {
                let found = self.read_record(&session, &site).await?;
                let entry = found.record.as_ref();
                let entry = entry.map(|(record, stat)| record.entry(name, stat, found.now));
                self.carry_out(&session, &site, &found, decide(entry, again)).await
            };
            match attempt.await {
                Ok(Some(answer)) => return Ok(answer),
                // Somebody was faster: what they did decides.
                Ok(None) if self.now() < give_up => {}
                Ok(None) => {
                    return Err(Error::unreachable(format!(
                        "the record of \"{name}\" keeps changing at ZooKeeper: try again"
                    )));
                }
                Err(Fault::Cut(_) | Fault::Gone) if self.now() < give_up => {
                    again = true;
                    self.breathe().await;
                }
                Err(fault) => return Err(fault.into_error()),
            }
        }
    }

    async fn read_record(&self, session: &Session, site: &Site) -> Result<Found, Fault> {
        // In this order: a session is answered in the order in which it asks.
        let synced = session.sync(&site.node);
        let (shelf, node) = (session.data(&site.shard), session.data(&site.node));
        let (synced, shelf, node) = (synced.await, there(shelf.await)?, there(node.await)?);
        synced?;
        let shelf = shelf.map(|(_, stat)| stat.version);
        let mut found = Found { shelf, version: None, record: None, now: 0 };
        if let Some((data, stat)) = node {
            let record = Record::read(&data).ok_or_else(|| {
                Fault::Refused(format!(
                    "the node {} is no record of ours: remove it, or use another path",
                    site.node
                ))
            })?;
            found.version = Some(stat.version);
            found.now = self.leader_time(session).await?;
            if record.is_over(&stat, found.now) {
                found.now = self.leader_time_now(session).await?;
            }
            found.record = Some((record, stat)).filter(|(it, stat)| !it.is_over(stat, found.now));
        }
        Ok(found)
    }

    /// None if something happened to the record since it was read.
    async fn carry_out<T>(
        self: &Arc<Self>,
        session: &Arc<Session>,
        site: &Site,
        found: &Found,
        next: Next<T>,
    ) -> Result<Option<T>, Fault> {
        let known = found.shelf.zip(found.version);
        let (ops, answer) = match (next, known) {
            (Next::Tell(answer), known) => {
                if let Some((shelf, version)) = known.filter(|_| found.record.is_none()) {
                    let over = vec![(site.node.clone(), version)];
                    self.bury(session, site.shard.clone(), shelf, over);
                }
                return Ok(Some(answer));
            }
            (Next::Put(data, answer), None) => {
                let made = session.create(&site.node, &data, Make::Persistent, self.access);
                return match made.await {
                    Ok(_) => Ok(Some(answer)),
                    Err(Fault::Said(Code::NodeExists)) => Ok(None),
                    Err(Fault::Said(Code::NoNode)) => {
                        self.make_shelf(session, &site.shard).await?;
                        Ok(None)
                    }
                    Err(fault) => Err(fault),
                };
            }
            (Next::Put(data, answer), Some((shelf, version))) => {
                let set = Op::set_version(&site.node, &data, version);
                ([Op::check(&site.shard, shelf), set], answer)
            }
            (Next::Remove(answer), Some((shelf, version))) => {
                let set = Op::set_version(&site.shard, b"", shelf);
                ([set, Op::delete_version(&site.node, version)], answer)
            }
            (Next::Remove(_), None) => return Ok(None),
        };
        match session.multi(&ops).await? {
            None => Ok(Some(answer)),
            Some((_, error)) if LATE.contains(&error) => Ok(None),
            Some((_, error)) => Err(Fault::of(error, "the server")),
        }
    }
}

impl Ledger for ZooKeeper {
    fn claim(&self, claim: Claim) -> BoxFuture<'_, Result<Claimed>> {
        Box::pin(async move {
            self.shared.step(&claim.name, |found, _| record::claim(found, &claim)).await
        })
    }

    fn finish(&self, finish: Finish) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let decide = |found: Option<Entry>, _| record::finish(found.as_ref(), &finish);
            let finished = self.shared.step(&finish.name, decide).await?;
            self.shared.sweep_records(&finish.name, finish.token);
            Ok(finished)
        })
    }

    fn look_up(&self, name: LockName) -> BoxFuture<'_, Result<Option<Entry>>> {
        Box::pin(async move { self.shared.step(&name, |found, _| Next::Tell(found)).await })
    }

    fn entries(&self, prefix: &str) -> BoxFuture<'_, Result<Vec<Entry>>> {
        let prefix = prefix.to_owned();
        Box::pin(async move {
            let give_up = self.shared.now() + PATIENCE;
            loop {
                match self.shared.all_entries(&prefix).await {
                    Ok(entries) => return Ok(entries),
                    Err(Fault::Cut(_) | Fault::Gone) if self.shared.now() < give_up => {
                        self.shared.breathe().await;
                    }
                    Err(fault) => return Err(fault.into_error()),
                }
            }
        })
    }

    fn forget(&self, name: LockName, token: Token) -> BoxFuture<'_, Result<bool>> {
        Box::pin(async move {
            let decide = |found: Option<Entry>, again: bool| match found {
                Some(entry) if entry.token == token => Next::Remove(true),
                Some(_) => Next::Tell(false),
                // If we asked before, it may have gone by that.
                None => Next::Tell(again),
            };
            self.shared.step(&name, decide).await
        })
    }
}
