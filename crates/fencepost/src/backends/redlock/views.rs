//! Looking at a lock that lies on several nodes, and breaking it.

use std::collections::{BTreeMap, BTreeSet};

use fencepost_core::{LockName, Moment, Token};

use super::nodes::Way;
use super::{LOOK, Redlock};
use crate::backend::{Broken, HolderInfo, LockInfo};
use crate::backends::redis::{
    Answer, Fault, Keys, Listed, STEPS, Seen, locks_from, refuses, shown_name, until_confirmed,
};
use crate::error::{Error, Result};

/// How often a break that was overtaken by a grant is tried again.
const TRIES: usize = 5;

/// A lock as a majority shows it.
pub(super) struct Look {
    pub(super) info: LockInfo,
    /// What a majority has as the lock's value.
    value: Option<Vec<u8>>,
    /// Above every mark and every time that was seen.
    floor: u64,
}

impl Redlock {
    /// What a majority says of a lock.
    pub(super) async fn look(&self, name: &LockName, shown: usize) -> Result<Look> {
        self.look_at(self.prefix.keys(name)?, name, shown).await
    }

    async fn look_at(&self, keys: Keys<'_>, name: &LockName, shown: usize) -> Result<Look> {
        let call = STEPS.inspect.on(keys).arg(shown);
        let looks = self.nodes.links().map(|link| async {
            Seen::read(&Answer::read(link.run(&call).await?, call.step.verb)?)
        });
        let (seen, words) = self.most(looks, "answered").await;
        if seen.len() < self.nodes.quorum() {
            return Err(words.error(&format!("\"{name}\" can not be looked at")));
        }
        Ok(self.sum_up(name, seen))
    }

    fn sum_up(&self, name: &LockName, seen: Vec<Seen>) -> Look {
        let quorum = self.nodes.quorum();
        let marks =
            seen.iter().filter_map(|look| Some(Listed::parse(look.record.as_deref()?)?.last));
        let floor = marks.chain(seen.iter().map(|look| look.time)).max().unwrap_or(0) + 1;
        let mut values: BTreeMap<&[u8], usize> = BTreeMap::new();
        for value in seen.iter().filter_map(|look| look.value.as_deref()) {
            *values.entry(value).or_default() += 1;
        }
        let value = values.into_iter().find(|(_, count)| *count >= quorum);
        let value = value.map(|(value, _)| value.to_vec());
        let waiting = seen.iter().map(|look| look.waiting).max().unwrap_or(0);
        // Not every node has heard the holder's last word, but one of any majority has.
        let said = seen.iter().filter(|look| value.is_some() && look.value == value);
        let said = said.filter_map(|look| look.said.clone()).max_by_key(|said| said.number);
        let mut holders: Vec<HolderInfo> = Vec::new();
        let mut waiters = Vec::new();
        for look in seen {
            let held = value.is_some() && look.value == value;
            let info = look.into_info(name.clone());
            holders.extend(info.holder.filter(|_| held));
            if info.waiters.len() > waiters.len() {
                waiters = info.waiters;
            }
        }
        let value_said = said.map(|said| said.value);
        let holder = agreed(&holders, quorum);
        let holder = holder.map(|holder| HolderInfo { value: value_said, ..holder });
        let info = LockInfo { name: name.clone(), holder, waiting, waiters };
        Look { info, value, floor }
    }

    /// Every lock that a majority has, or that is waited for.
    pub(super) async fn look_at_all(&self) -> Result<Vec<LockInfo>> {
        let lists = self.nodes.links().map(|link| locks_from(link, &self.prefix));
        let (lists, words) = self.most(lists, "answered").await;
        if lists.len() < self.nodes.quorum() {
            return Err(words.error("the locks can not be listed"));
        }
        let names: BTreeSet<String> = lists.into_iter().flatten().collect();
        let mut locks = Vec::new();
        for name in names {
            let look = self.look_at(self.prefix.found(&name), &shown_name(&name), 0).await;
            match look.map(|look| look.info) {
                Ok(info) if info.holder.is_some() || info.waiting > 0 => locks.push(info),
                // A name that holds something else by now is no lock.
                Ok(_) => {}
                Err(error) if refuses(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(locks)
    }

    /// Ends the grant on every node, and raises the mark of a majority above it.
    pub(super) async fn break_all(
        &self,
        name: &LockName,
        token: Option<Token>,
        confirm_until: Moment,
    ) -> Result<Option<Broken>> {
        let keys = self.prefix.keys(name)?;
        for _ in 0..TRIES {
            let look = self.look(name, 0).await?;
            let (Some(value), Some(holder)) = (look.value, look.info.holder) else {
                return Ok(None);
            };
            if token.is_some() && token != holder.token {
                return Ok(None);
            }
            let floor = Token::new(look.floor)
                .map_err(|_| Error::refused(format!("\"{name}\" has no tokens left")))?;
            let call = STEPS.floor.on(keys).arg(&value).arg(floor.get()).arg(self.retention);
            let call = call.arg(self.grants.channel());
            // A node that is away is told when it is back, as long as the lease may last there.
            let way = Way::Surely(self.now() + self.max_ttl.as_duration());
            let mut answers = self.nodes.ask(call, way, LOOK);
            let (mut raised, mut words) = (0, self.nodes.words());
            let mut heard = 0;
            while words.open() > 0
                && let Some((node, answer)) = answers.next().await
            {
                match answer {
                    Ok(answer) => {
                        words.answered(node, "answered");
                        heard += 1;
                        raised += usize::from(answer.status == 1);
                    }
                    Err(fault) => words.failed(node, fault),
                }
                if raised >= self.nodes.quorum() {
                    let (label, token, clock) = (holder.label, holder.token, &*self.around.clock);
                    // The note of any node will do: nobody but the holder's release makes it.
                    let confirmed = token.is_some()
                        && until_confirmed(self.nodes.links(), &value, clock, confirm_until).await;
                    return Ok(Some(Broken { label, token, floor, confirmed }));
                }
            }
            if heard < self.nodes.quorum() {
                return Err(words.error(&format!("\"{name}\" can not be broken")));
            }
            // A token above the floor was accepted meanwhile: look again, and higher.
        }
        Err(Fault::cut(format!("\"{name}\" changes hands too fast to be broken: try again"))
            .into_error())
    }
}

/// The holder as a majority describes it: the token that enough of them have accepted, and the lease that
/// enough of them will keep.
fn agreed(holders: &[HolderInfo], quorum: usize) -> Option<HolderInfo> {
    let count = |token| holders.iter().filter(|holder| holder.token == token).count();
    let mut holder = holders.iter().max_by_key(|holder| count(holder.token))?.clone();
    if count(holder.token) < quorum {
        holder.token = None;
    }
    let mut left: Vec<_> = holders.iter().map(|holder| holder.remaining).collect();
    left.sort_unstable_by(|one, other| other.cmp(one));
    holder.remaining = left.get(quorum - 1).copied().flatten();
    Some(holder)
}
