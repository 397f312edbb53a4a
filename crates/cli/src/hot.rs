//! `ls --hot`: which names everybody waits for.
//!
//! Takes one look, or many over a span, and keeps per name what it saw. A grant that came and went between two
//! looks is missed: the numbers are what was seen, and no more.

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
use crate::{look, out};

/// As many waiters at once make a name hot.
const HOT: usize = 4;
/// The pause between two looks.
const EVERY: Duration = Duration::from_millis(100);

/// Looks, and lists what is waited for or changes hands.
pub(crate) async fn ls(args: &Ls, at: &Target, json: bool) -> Result<u8, Failure> {
    let mut signals = Signals::listen()?;
    let fp = at.look().await?;
    let begun = BootClock.now();
    let end = begun + args.over.unwrap_or_default();
    let (mut seen, mut looks) = (Seen::default(), 0_u64);
    let mut ended_by = None;
    loop {
        seen.take_in(look::locks(args, &fp).await?);
        looks += 1;
        let now = BootClock.now();
        if now >= end {
            break;
        }
        let next = end.min(now + EVERY);
        tokio::select! {
            // Enough: what was seen so far is shown.
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
        let names: Vec<Value> = names.iter().map(|(name, heat)| heat.as_json(name)).collect();
        let over_ms = over.as_millis() as u64;
        let seen =
            json!({ "store": at.shown(), "looks": looks, "over_ms": over_ms, "names": names });
        out::json(&seen)?;
    } else {
        at.announce("contended locks in");
        let mut text = table(&names);
        for (name, heat) in names.iter().filter(|(_, heat)| heat.is_hot()) {
            text.extend(["\n", &heat.advice(name), "\n"]);
        }
        out::print(&text)?;
    }
    ended_by.map_or(Ok(exit::OK), |signal| Err(Failure::signal(signal, None)))
}

/// What was seen of every name.
#[derive(Default)]
struct Seen(BTreeMap<LockName, Heat>);

/// What was seen of one name.
#[derive(Default)]
struct Heat {
    /// In the last look.
    waiting: usize,
    holder: Option<HolderInfo>,
    /// In any look.
    most: usize,
    handed_on: u64,
    /// The holder that was seen last, in this look or before.
    last: Option<HolderInfo>,
}

impl Seen {
    fn take_in(&mut self, locks: Vec<LockInfo>) {
        for heat in self.0.values_mut() {
            (heat.waiting, heat.holder) = (0, None);
        }
        for lock in locks {
            let heat = self.0.entry(lock.name).or_default();
            heat.waiting = lock.waiting;
            heat.most = heat.most.max(lock.waiting);
            if let Some(holder) = lock.holder {
                let another = heat.last.as_ref().is_some_and(|last| last.token != holder.token);
                heat.handed_on += u64::from(another);
                (heat.last, heat.holder) = (Some(holder.clone()), Some(holder));
            }
        }
    }

    /// Those that somebody waited for or that changed hands, the most wanted first.
    fn contended(self) -> Vec<(LockName, Heat)> {
        let mut names: Vec<_> =
            self.0.into_iter().filter(|(_, heat)| heat.most > 0 || heat.handed_on > 0).collect();
        // Stable, so names stay in order among equals.
        names.sort_by_key(|(_, heat)| std::cmp::Reverse((heat.most, heat.handed_on)));
        names
    }
}

impl Heat {
    fn is_hot(&self) -> bool {
        self.most >= HOT
    }

    fn advice(&self, name: &LockName) -> String {
        format!(
            "\"{name}\" is hot: {} waited for it at once. Split the name, if they work on different \
             things\n({name}/ITEM for each); let one work for all, if they want the same (fencepost once, \
             single_flight);\nhold it for less. Perhaps no lock is needed: fencepost advise",
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
            "handed_on": self.handed_on,
            "holder": holder.map(|holder| holder.label.as_str()),
            "token": holder.and_then(|holder| holder.token).map(Token::get),
            "held_ms": holder.and_then(|holder| holder.held_for).map(|held| held.as_millis() as u64),
        })
    }
}

fn table(names: &[(LockName, Heat)]) -> String {
    let mut rows = out::titles(["NAME", "WAITING", "MOST", "HANDED ON", "HOLDER", "HELD"]);
    for (name, heat) in names {
        let cell = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
        let holder = heat.holder.as_ref();
        rows.push(vec![
            name.to_string(),
            heat.waiting.to_string(),
            heat.most.to_string(),
            heat.handed_on.to_string(),
            cell(holder.map(|holder| holder.label.to_string())),
            cell(holder.and_then(|holder| holder.held_for).map(short)),
        ]);
    }
    out::table(&rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn look(name: &str, token: Option<u64>, waiting: usize) -> LockInfo {
        let holder = token.map(|token| HolderInfo {
            token: Some(Token::new(token).unwrap()),
            ..HolderInfo::stranger()
        });
        LockInfo { name: LockName::new(name).unwrap(), holder, waiting, waiters: Vec::new() }
    }

    #[test]
    fn what_was_seen_adds_up_and_the_most_wanted_comes_first() {
        let mut seen = Seen::default();
        seen.take_in(vec![look("a", Some(1), 1), look("b", Some(1), 0), look("quiet", Some(7), 0)]);
        seen.take_in(vec![look("a", Some(1), 5), look("b", Some(2), 0), look("quiet", Some(7), 0)]);
        // Free in between is no hand-off of its own.
        seen.take_in(vec![look("a", None, 2)]);
        seen.take_in(vec![look("a", Some(3), 0)]);
        let names = seen.contended();
        let told: Vec<_> = names
            .iter()
            .map(|(name, heat)| (name.as_str(), heat.waiting, heat.most, heat.handed_on))
            .collect();
        assert_eq!(told, [("a", 0, 5, 1), ("b", 0, 0, 1)]);
        assert!(names[0].1.is_hot() && !names[1].1.is_hot());
        assert!(names[1].1.holder.is_none(), "it is free by now");
    }
}
