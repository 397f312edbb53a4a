//! `ls --hot`: lists the names with the most waiters.
//!
//! Takes one sample, or many over a span. A grant that began and ended between two samples is missed.

use std::collections::BTreeMap;
use std::time::Duration;

use fencepost::backend::{HolderInfo, LockInfo, short};
use fencepost::clock::{BootClock, Clock as _};
use fencepost::{LockName, Token};
use serde_json::{Value, json};

use crate::args::Ls;
use crate::exit::{self, Failure};
use crate::signals::Signals;
use crate::store::Target;
use crate::{inspect, out};

/// A name with this many waiters at once is hot.
const HOT: usize = 4;
const SAMPLE_INTERVAL: Duration = Duration::from_millis(100);

/// Samples the store, and lists the names that had waiters or changed holders.
pub(crate) async fn ls(args: &Ls, at: &Target, json: bool) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let fp = at.connect_existing().await?;
    let begun = BootClock.now();
    let end = begun + args.over.unwrap_or_default();
    let (mut seen, mut samples) = (Samples::default(), 0_u64);
    let mut ended_by = None;
    loop {
        seen.add(inspect::locks(args, &fp).await?);
        samples += 1;
        let now = BootClock.now();
        if now >= end {
            break;
        }
        let next = end.min(now + SAMPLE_INTERVAL);
        tokio::select! {
            // Stop, and show the samples so far.
            signal = signals.next_ending() => {
                ended_by = Some(signal);
                break;
            }
            () = BootClock.alarm(next) => {}
        }
    }
    let over = BootClock.now().since(begun);
    let names = seen.contended();
    if json {
        let names: Vec<Value> =
            names.iter().map(|(name, contention)| contention.as_json(name)).collect();
        let over_ms = over.as_millis() as u64;
        out::json(&json!({
            "store": at.shown(), "samples": samples, "over_ms": over_ms, "names": names,
        }))?;
    } else {
        at.announce("contended locks in");
        let mut text = table(&names);
        for (name, contention) in names.iter().filter(|(_, contention)| contention.is_hot()) {
            text.extend(["\n", &contention.advice(name), "\n"]);
        }
        out::print(&text)?;
    }
    ended_by.map_or(Ok(exit::OK), |signal| Err(Failure::signal(signal, None)))
}

/// What the samples showed of each name.
#[derive(Default)]
struct Samples(BTreeMap<LockName, Contention>);

#[derive(Default)]
struct Contention {
    /// In the last sample.
    waiting: usize,
    holder: Option<HolderInfo>,
    /// In any sample.
    most: usize,
    handoffs: u64,
    /// The last holder in any sample.
    last: Option<HolderInfo>,
}

impl Samples {
    fn add(&mut self, locks: Vec<LockInfo>) {
        for contention in self.0.values_mut() {
            (contention.waiting, contention.holder) = (0, None);
        }
        for lock in locks {
            let contention = self.0.entry(lock.name).or_default();
            contention.waiting = lock.waiting;
            contention.most = contention.most.max(lock.waiting);
            if let Some(holder) = lock.holder {
                let changed =
                    contention.last.as_ref().is_some_and(|last| last.token != holder.token);
                contention.handoffs += u64::from(changed);
                (contention.last, contention.holder) = (Some(holder.clone()), Some(holder));
            }
        }
    }

    /// The names that had waiters or changed holders, the most contended first.
    fn contended(self) -> Vec<(LockName, Contention)> {
        let mut names: Vec<_> = self
            .0
            .into_iter()
            .filter(|(_, contention)| contention.most > 0 || contention.handoffs > 0)
            .collect();
        // A stable sort: equally contended names stay in alphabetical order.
        names.sort_by_key(|(_, contention)| {
            std::cmp::Reverse((contention.most, contention.handoffs))
        });
        names
    }
}

impl Contention {
    fn is_hot(&self) -> bool {
        self.most >= HOT
    }

    fn advice(&self, name: &LockName) -> String {
        format!(
            "\"{name}\" is hot: it had {} waiters at once. If they work on different items, use a name per \
             item\n({name}/ITEM). If they want the same result, let one compute it for all (fencepost once, \
             single_flight).\nHold the lock for less time. Perhaps you need no lock: fencepost advise",
            self.most
        )
    }

    fn as_json(&self, name: &LockName) -> Value {
        let holder = self.holder.as_ref();
        json!({
            "name": name.as_str(),
            "hot": self.is_hot(),
            "waiting": self.waiting,
            "most_waiting": self.most,
            "handoffs": self.handoffs,
            "holder": holder.map(|holder| holder.label.as_str()),
            "token": holder.and_then(|holder| holder.token).map(Token::get),
            "held_ms": holder.and_then(|holder| holder.held_for).map(|held| held.as_millis() as u64),
        })
    }
}

fn table(names: &[(LockName, Contention)]) -> String {
    let mut rows = out::header(["NAME", "WAITING", "MOST", "HANDOFFS", "HOLDER", "HELD"]);
    for (name, contention) in names {
        let holder = contention.holder.as_ref();
        rows.push(vec![
            name.to_string(),
            contention.waiting.to_string(),
            contention.most.to_string(),
            contention.handoffs.to_string(),
            out::or_dash(holder.map(|holder| &holder.label)),
            out::or_dash(holder.and_then(|holder| holder.held_for).map(short)),
        ]);
    }
    out::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(name: &str, token: Option<u64>, waiting: usize) -> LockInfo {
        let holder =
            token.map(|token| HolderInfo::third_party().with_token(Token::new(token).unwrap()));
        LockInfo::free(LockName::new(name).unwrap())
            .with_holder(holder)
            .with_waiters(waiting, Vec::new())
    }

    #[test]
    fn samples_add_up_and_the_most_contended_name_comes_first() {
        let mut seen = Samples::default();
        let quiet = || sample("quiet", Some(7), 0);
        seen.add(vec![sample("a", Some(1), 1), sample("b", Some(1), 0), quiet()]);
        seen.add(vec![sample("a", Some(1), 5), sample("b", Some(2), 0), quiet()]);
        // Free between two grants: still one handoff.
        seen.add(vec![sample("a", None, 2)]);
        seen.add(vec![sample("a", Some(3), 0)]);
        let names = seen.contended();
        let shown: Vec<_> = names
            .iter()
            .map(|(name, contention)| {
                (name.as_str(), contention.waiting, contention.most, contention.handoffs)
            })
            .collect();
        assert_eq!(shown, [("a", 0, 5, 1), ("b", 0, 0, 1)]);
        assert!(names[0].1.is_hot() && !names[1].1.is_hot());
        assert!(names[1].1.holder.is_none(), "it is free in the last sample");
    }
}
