//! `redlock://HOST,HOST,HOST` several Redis servers that know nothing of each other, and a majority of them.
//!
//! The lock is the same key with the same value on each node, as other Redlock clients keep it: npm
//! `redlock`, redlock-py and we exclude each other. A client with one server does not take part.
//!
//! *Why grants exclude:* a grant needs the key on a majority of the nodes, and two majorities share one. A
//! node keeps the key for the TTL, and the guard counts from before the first request of the attempt that
//! was granted, less a margin for clocks that run at different rates. A node that was restarted does not
//! vote until every lease from before is over (`max_ttl`), since it may have forgotten it.
//! *Why tokens rise:* two phases, see attempt.rs, and the model beside it. No clock has a part in it.
//! *Where that ends:* it stays an efficiency lock. A node whose clock leaps, that is wiped, or that is
//! replaced by a replica gives its key to the next while the first holder still counts its time; with
//! enough of them there are two holders. Nothing on the nodes can tell. The tokens still rise then, as
//! long as the nodes keep their marks, so a fenced resource stays right. A node forgets a mark when its clock
//! has passed it by the retention.
//!
//! *Waiting:* each node has a list of who waits, and a release tells the first on it. The lists need not
//! agree, so they give no right: whoever is told, or has waited its time, tries again after a random
//! moment. A failed attempt is taken back on every node, by its own number, so that it can not take back
//! a later one.

mod acquire;
mod attempt;
#[cfg(test)]
mod model;
mod nodes;
mod views;

use std::collections::HashMap;
use std::fmt;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Token, Ttl};
use futures_util::StreamExt as _;
use futures_util::stream::FuturesUnordered;

use self::nodes::{Nodes, Way, Words};
use crate::backend::{BoxFuture, Broken, Glimpse, LockInfo, LossCause, Surroundings, short};
use crate::backends::bridge;
use crate::backends::bridge::{Acquired, Backend, Observe, Renewal, Renewed, Request, Wait};
use crate::backends::redis::{
    Address, Call, Ears, Fault, FaultKind, Keys, LOOK_AGAIN, Link, LiveGrants, Prefix, RedlockUrl,
    STEPS, client_id, remember, word_number,
};
use crate::error::{Error, Result};
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};
use crate::race::{First, race};

/// How long a question may take that does not decide about a lease.
const LOOK: Duration = Duration::from_secs(2);
/// How long slow nodes are waited for once a majority has answered.
const GRACE: Duration = Duration::from_millis(100);

/// A store on several Redis servers.
pub struct Redlock {
    nodes: Nodes,
    around: Surroundings,
    prefix: Prefix,
    /// In milliseconds, as the scripts are told.
    retention: u64,
    max_ttl: Ttl,
    /// How long a node must have been up to vote.
    up_for: Duration,
    client: String,
    ears: Arc<Ears>,
    grants: Arc<LiveGrants>,
}

impl Redlock {
    pub(crate) async fn open(url: RedlockUrl, around: &Surroundings) -> Result<Arc<Self>> {
        let ears = Arc::new(Ears::default());
        let client = client_id()?;
        let options = url.options;
        let prefix = Prefix::new(options.prefix.clone())?;
        let db = url.addresses.first().map_or(0, Address::db);
        let grants = Arc::new(LiveGrants::new(db, prefix.clone()));
        let nodes = Nodes::open(url.addresses, around, &client, &ears, &grants);
        let up_for =
            if options.restarted_vote { Duration::ZERO } else { options.max_ttl.as_duration() };
        let store = Self {
            nodes,
            around: around.clone(),
            retention: options.token_retention().as_millis() as u64,
            prefix,
            max_ttl: options.max_ttl,
            up_for,
            client,
            ears,
            grants,
        };
        if let Some(warning) = store.even() {
            tracing::warn!("redlock: {warning}");
        }
        store.gather().await?;
        Ok(Arc::new(store))
    }

    /// What to say of an even number of nodes.
    fn even(&self) -> Option<String> {
        let count = self.nodes.count();
        count.is_multiple_of(2).then(|| {
            format!(
                "{count} nodes bear the loss of no more than {} would: take an odd number",
                count - 1
            )
        })
    }

    /// Waits until a majority is connected, or it is clear that none will be.
    async fn gather(&self) -> Result<()> {
        let lives = self.nodes.links().map(Link::live);
        let (up, words) = self.most(lives, "connected").await;
        if up.len() < self.nodes.quorum() {
            return Err(words.error("can not connect"));
        }
        self.check_that_they_differ()
    }

    /// What the nodes answer: all of them, or a majority and those who are not much slower.
    async fn most<T, F>(
        &self,
        calls: impl Iterator<Item = F>,
        said: &'static str,
    ) -> (Vec<T>, Words)
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let calls = calls.enumerate().map(|(node, call)| async move { (node, call.await) });
        let mut calls: FuturesUnordered<_> = calls.collect();
        let (mut answers, mut words) = (Vec::new(), self.nodes.words());
        let mut until = self.now() + LOOK;
        while let First::Left(Some((node, answer))) =
            race(calls.next(), self.around.clock.alarm(until)).await
        {
            match answer {
                Ok(answer) => {
                    words.answered(node, said);
                    answers.push(answer);
                }
                Err(fault) => words.failed(node, fault),
            }
            if answers.len() == self.nodes.quorum() {
                until = until.min(self.now() + GRACE);
            }
        }
        (answers, words)
    }

    /// One server under two names would have two votes.
    fn check_that_they_differ(&self) -> Result<()> {
        let mut known = HashMap::new();
        for link in self.nodes.links() {
            let Some(run) = link.found().and_then(|found| found.run_id().map(str::to_owned)) else {
                continue;
            };
            if let Some(other) = known.insert(run, link.shown()) {
                return Err(Error::invalid(format!(
                    "{other} and {} in the redlock: URL are the same server: its vote would count \
                     twice",
                    link.shown()
                )));
            }
        }
        Ok(())
    }

    fn now(&self) -> Moment {
        self.around.clock.now()
    }

    /// What takes everything of an owner off the nodes.
    fn farewell(&self, keys: Keys<'_>, owner: OwnerId) -> Call {
        let call = STEPS.release.on(keys).arg(owner.reveal()).arg(self.retention);
        call.arg(remember(self.retention)).releases(owner)
    }

    async fn renew_one(&self, renewal: &Renewal) -> Result<Renewed> {
        let Renewal { name, owner, ttl, value, .. } = renewal;
        if let Some(ttl) = ttl.filter(|ttl| *ttl > self.max_ttl) {
            return Err(Error::invalid(format!(
                "a TTL of {} is longer than the redlock store takes: give at most {}",
                short(ttl.as_duration()),
                short(self.max_ttl.as_duration())
            )));
        }
        let keys = self.prefix.keys(name)?;
        let asked = ttl.map_or(0, Ttl::as_millis);
        let mut call = STEPS.extend.on(keys).arg(owner.reveal()).arg(asked).arg(self.retention);
        let sent = self.now();
        if let Some(value) = value {
            call = call.arg(word_number(sent)).arg(value.as_bytes());
        }
        let limit = (ttl.unwrap_or(self.max_ttl).as_duration() / 6).min(LOOK);
        let mut answers = self.nodes.ask(call, Way::Vote(Duration::ZERO), limit);
        let (mut kept, mut gone) = (Vec::new(), Vec::new());
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        let mut words = self.nodes.words();
        while let Some((node, answer)) = answers.next().await {
            match answer {
                Ok(answer) if answer.status == 1 => {
                    words.answered(node, "extended");
                    kept.push(answer.granted(self.max_ttl).map_err(Fault::into_error)?);
                }
                Ok(answer) => {
                    words.answered(node, "not held");
                    gone.push(answer.why_not());
                }
                Err(fault) => words.failed(node, fault),
            }
            // The token that a majority has accepted; a node may have kept one of a failed attempt.
            for (token, _) in &kept {
                let same: Vec<_> = kept.iter().filter(|(other, _)| other == token).collect();
                if let Some(ttl) = same.iter().map(|(_, ttl)| *ttl).min()
                    && same.len() >= quorum
                {
                    return Ok(Renewed { token: *token, ttl, sent });
                }
            }
            if gone.len() > count - quorum {
                let cause = [LossCause::Broken, LossCause::TakenOver];
                let cause = cause.into_iter().find(|cause| gone.contains(&Some(*cause)));
                return Err(Error::not_held(name, cause));
            }
            // Neither can be had any more.
            let open = words.open();
            if kept.len() + open < quorum && gone.len() + open <= count - quorum {
                break;
            }
        }
        Err(words.error(&format!("\"{name}\" can not be renewed")))
    }

    async fn release_all(&self, name: &LockName, owner: OwnerId) -> Result<()> {
        let keys = self.prefix.keys(name)?;
        let call = self.farewell(keys, owner);
        // Whoever can not hear it now is told until its lease must be over.
        let way = Way::Surely(self.now() + self.max_ttl.as_duration());
        let mut answers = self.nodes.ask(call, way, LOOK);
        let mut words = self.nodes.words();
        let (mut ended, mut gone, mut why) = (0, 0, None);
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        while let Some((node, answer)) = answers.next().await {
            match answer.map(|answer| (answer.status, answer.again, answer.why_not())) {
                Ok((1, _, _)) => {
                    words.answered(node, "released");
                    ended += 1;
                }
                // The connection broke after the node had done it; somebody may have the key by now.
                Ok((_, true, cause)) if cause != Some(LossCause::Broken) => {
                    words.answered(node, "released");
                    ended += 1;
                }
                Ok((_, _, cause)) => {
                    words.answered(node, "not held");
                    why = why.or(cause);
                    gone += 1;
                }
                Err(fault) if fault.kind == FaultKind::NotALock => {
                    words.answered(node, "not a lock");
                    gone += 1;
                }
                Err(fault) => words.failed(node, fault),
            }
            if ended >= quorum || gone > count - quorum || words.open() == 0 {
                break;
            }
        }
        match (ended, gone) {
            (ended, _) if ended >= quorum => Ok(()),
            // A majority has given it to somebody else, or an operator broke it there.
            (_, gone) if gone > count - quorum && why.is_some() => Err(Error::not_held(name, why)),
            // Less than a majority is no grant; but a place in line, or a vote, is something to give up.
            (ended, gone) if ended > 0 && ended + gone >= quorum => Ok(()),
            (_, gone) if gone > count - quorum => Err(Error::not_held(name, why)),
            _ => Err(words.error(&format!("\"{name}\" can not be released on a majority"))),
        }
    }
}

impl Backend for Redlock {
    fn acquire(&self, request: Request, wait: Wait) -> BoxFuture<'_, Result<Acquired>> {
        Box::pin(async move {
            let until = match wait {
                Wait::No => None,
                Wait::Until(until) => Some(until),
                Wait::Forever => Some(Moment::NEVER),
            };
            let acquired = self.take(&request, until).await?;
            if let Acquired::Granted(grant) = &acquired
                && self.grants.add(&request, grant.token)
            {
                self.nodes.links().for_each(Link::listen_to_breaks);
            }
            Ok(acquired)
        })
    }

    fn renew(&self, batch: Vec<Renewal>) -> BoxFuture<'_, Vec<Result<Renewed>>> {
        Box::pin(async move {
            futures_util::future::join_all(batch.iter().map(|renewal| self.renew_one(renewal)))
                .await
        })
    }

    fn release(&self, name: LockName, owner: OwnerId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            self.grants.remove(owner);
            self.release_all(&name, owner).await
        })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
    ) -> BoxFuture<'_, Result<Option<Broken>>> {
        Box::pin(async move { self.break_all(&name, token, confirm_until).await })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(async move { Ok(self.look(&name, LockInfo::SHOWN_WAITERS).await?.info) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<LockInfo>>> {
        Box::pin(async move { self.look_at_all().await })
    }

    fn drained(&self) -> BoxFuture<'_, ()> {
        Box::pin(self.nodes.told())
    }

    fn guarantees(&self) -> Guarantees {
        let found = self.nodes.links().map(|link| {
            let state = link.down().map_or_else(|| "connected".to_owned(), |fault| fault.message);
            ("node", format!("{}: {state}", link.shown()))
        });
        let mut found: Vec<_> = found.collect();
        found.extend(self.even().map(|warning| ("warning", warning)));
        found.extend(self.grants.lines());
        Guarantees { found, longest: self.max_ttl, ..guarantees() }
    }
}

fn guarantees() -> Guarantees {
    let neither = |note| Kept { exclusion: Holds::No, tokens: Holds::No, note };
    Guarantees {
        backend: "redlock",
        scope: "all who use these servers, other Redlock clients included",
        correctness: Correctness::Unfit {
            why:
                "its exclusion rests on the clocks and the memory of several servers, and nothing \
                  tells when they fail it"
                    .into(),
            remedy:
                "fence the resource with the token, or use a store that is fit: sqlite: on one \
                     host, or one synced redis:"
                    .into(),
        },
        fifo: false,
        wake: "a release tells who waited first at each node; all try again after a random time, 250 \
               ms at most",
        clock: "the wall clocks of a majority of the nodes",
        longest: Ttl::MAX,
        lengthens: true,
        records: Records::None {
            why:
                "its servers know nothing of each other, so none has the last word on what was done"
                    .into(),
            remedy: "use one synced redis:, or any other store".into(),
        },
        found: Vec::new(),
        under: [
            Kept::both("the lock is free when the lease has run out"),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            Kept::both(
                "up to (N-1)/2 nodes: the others decide; a restarted one does not vote for max_ttl",
            ),
            neither(
                "a replica in a node's place may lack a vote and its mark; then tokens can fall",
            ),
            neither(
                "keys of nodes that jump end early; ahead past the retention, then back: tokens can fall",
            ),
            Kept::both(
                "without a majority nobody is granted; a holder that is cut off is told in time",
            ),
            neither(
                "a majority that is wiped grants again; tokens rise only if its clocks are right",
            ),
        ],
    }
}

impl Observe for Redlock {
    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(bridge::look_until_changed(self, &*self.around.clock, LOOK_AGAIN, name, seen))
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redlock({} nodes)", self.nodes.count())
    }
}
