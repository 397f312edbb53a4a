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
//! long as the nodes keep their marks, so a fenced resource stays right.
//!
//! *Waiting:* each node has a list of who waits, and a release tells the first on it. The lists need not
//! agree, so they give no right: whoever is told, or has waited its time, tries again after a random
//! moment. A failed attempt is taken back on every node, by its own number, so that it can not take back
//! a later one.

mod attempt;
#[cfg(test)]
mod model;
mod nodes;
mod views;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Token, Ttl};

use self::attempt::{Attempt, Failure, Next, Vote};
use self::nodes::{Nodes, Way, Words};
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, Grant, HolderInfo, LockInfo, LossCause, Observe,
    Renewal, Renewed, Request, Surroundings, Wait, short,
};
use crate::backends::redis::{
    Answer, BREATH, Call, Ears, Fault, Keys, LOOK_AGAIN, OUTAGE, Prefix, RedlockUrl, STEPS,
    client_id, remember,
};
use crate::clock::wall;
use crate::error::{Error, ErrorKind, Result};
use crate::guarantees::{Correctness, Guarantees, Holds, Kept};
use crate::race::race;

/// How long a question may take that does not decide about a lease.
const LOOK: Duration = Duration::from_secs(2);
/// Two who met at the nodes try again after a random part of this, doubled each time they meet again.
const JITTER: Duration = Duration::from_millis(8);

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
}

/// How an attempt ended.
enum Outcome {
    Granted(Token, Moment),
    /// Others have it, or were at it at the same time; with what is left of the holder's lease.
    Held(Option<HolderInfo>),
    /// The attempt was overtaken, or took too long.
    Again,
    Failed(Error),
}

impl Redlock {
    pub(crate) async fn open(url: RedlockUrl, around: &Surroundings) -> Result<Arc<Self>> {
        let ears = Arc::new(Ears::default());
        let client = client_id()?;
        let options = url.options;
        let nodes = Nodes::open(url.addresses, around, &client, &ears);
        let up_for =
            if options.restarted_vote { Duration::ZERO } else { options.max_ttl.as_duration() };
        let store = Self {
            nodes,
            around: around.clone(),
            prefix: options.prefix,
            retention: options.retention.as_millis() as u64,
            max_ttl: options.max_ttl,
            up_for,
            client,
            ears,
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
        let mut words = self.nodes.words();
        let mut up = 0;
        let lives = self.nodes.links().iter().map(|link| link.live());
        for (node, live) in futures_util::future::join_all(lives).await.into_iter().enumerate() {
            match live {
                Ok(_) => {
                    words.answered(node, "connected");
                    up += 1;
                }
                Err(fault) => words.failed(node, fault),
            }
        }
        if up >= self.nodes.quorum() { Ok(()) } else { Err(words.error("can not connect")) }
    }

    fn now(&self) -> Moment {
        self.around.clock.now()
    }

    /// One attempt, both phases.
    async fn attempt(
        &self,
        request: &Request,
        keys: Keys<'_>,
        number: u64,
        waits: bool,
    ) -> Result<Outcome> {
        let start = self.now();
        let Request { owner, ttl, label, .. } = request;
        let patience = Nodes::patience(*ttl);
        let way = Way::Vote(self.up_for);
        let mut attempt = Attempt::new(self.nodes.count());
        let mut words = self.nodes.words();
        let mut holders = Vec::new();
        let undo = || {
            let call = STEPS.undo.on(keys).arg(owner.reveal()).arg(number);
            self.nodes.tell_all(call.arg(remember(self.retention)), *ttl);
        };

        let client = if waits { &*self.client } else { "" };
        let call = STEPS.vote.on(keys).arg(owner.reveal()).arg(number).arg(ttl.as_millis());
        let call = call.arg(label.as_str()).arg(client);
        let mut answers = self.nodes.ask(call, way, patience);
        let token = loop {
            let Some((node, answer)) = answers.next().await else {
                break Err(Failure::Unreachable);
            };
            let next = match answer.and_then(|answer| read_vote(&answer)) {
                Ok((vote, holder)) => {
                    words.answered(node, if holder.is_some() { "held by another" } else { "free" });
                    holders.extend(holder);
                    attempt.voted(node, vote)
                }
                Err(fault) => {
                    words.failed(node, fault);
                    attempt.silent(node)
                }
            };
            match next {
                Next::Propose(token) => break Ok(token),
                Next::Failed(failure) => break Err(failure),
                Next::Wait | Next::Granted(_) => {}
            }
        };
        let token = match token {
            Ok(token) => token,
            Err(failure) => {
                undo();
                return Ok(self.failed(failure, &words, holders, &request.name));
            }
        };

        let call = STEPS.accept.on(keys).arg(owner.reveal()).arg(number).arg(token.get());
        let call = call.arg(ttl.as_millis()).arg(label.as_str()).arg(self.retention);
        let mut answers = self.nodes.ask(call, way, patience);
        loop {
            let next = match answers.next().await {
                Some((node, Ok(answer))) => attempt.answered(node, answer.status == 1),
                Some((node, Err(fault))) => {
                    words.failed(node, fault);
                    attempt.silent(node)
                }
                None => Next::Failed(Failure::Unreachable),
            };
            match next {
                // The margin of the guard covers clocks that run at different rates.
                Next::Granted(token) if self.now() < start + ttl.as_duration() => {
                    return Ok(Outcome::Granted(token, start));
                }
                Next::Granted(_) => {
                    undo();
                    return Ok(Outcome::Again);
                }
                Next::Failed(failure) => {
                    undo();
                    return Ok(self.failed(failure, &words, holders, &request.name));
                }
                Next::Wait | Next::Propose(_) => {}
            }
        }
    }

    fn failed(
        &self,
        failure: Failure,
        words: &Words,
        mut holders: Vec<HolderInfo>,
        name: &LockName,
    ) -> Outcome {
        match failure {
            // One that a majority knows is the holder; else several met.
            Failure::Held if holders.len() >= self.nodes.quorum() => {
                holders.sort_by_key(|holder| holder.token);
                Outcome::Held(holders.pop())
            }
            Failure::Held => Outcome::Held(None),
            Failure::Outrun => Outcome::Again,
            Failure::Unreachable => {
                Outcome::Failed(words.error(&format!("\"{name}\" can not be locked")))
            }
            Failure::Exhausted => {
                Outcome::Failed(Error::refused(format!("\"{name}\" has no tokens left")))
            }
        }
    }

    async fn take(&self, request: &Request, until: Option<Moment>) -> Result<Acquired> {
        let keys = self.prefix.keys(&request.name)?;
        let ear = self.ears.open(request.owner);
        let mut out_since: Option<Moment> = None;
        let mut met = 0;
        // It tells one attempt of an owner from the next, and rises. From the wall clock, so that it does
        // so for an owner that tries again from another process; if that clock is wrong, the attempt fails.
        let mut number = wall().as_micros() as u64;
        loop {
            number += 1;
            let in_time = until.is_some_and(|until| self.now() < until);
            let nap = match self.attempt(request, keys, number, in_time).await? {
                Outcome::Granted(token, sent) => {
                    let (ttl, queued, presence) = (request.ttl, false, None);
                    return Ok(Acquired::Granted(Grant { token, ttl, sent, queued, presence }));
                }
                Outcome::Held(holder) if !in_time => {
                    if until.is_some() {
                        self.nodes.tell_all(self.farewell(keys, request.owner), request.ttl);
                    }
                    return Ok(Acquired::Held(holder));
                }
                Outcome::Held(Some(holder)) => {
                    (out_since, met) = (None, 0);
                    let left = holder.remaining.unwrap_or(LOOK_AGAIN).min(LOOK_AGAIN);
                    // Not all at once, and not much later than the lease ends.
                    left + random(JITTER)
                }
                Outcome::Held(None) | Outcome::Again => {
                    if until.is_none() && met >= 3 {
                        return Ok(Acquired::Held(None));
                    }
                    (out_since, met) = (None, met + 1);
                    random(JITTER * (1 << met.min(5)))
                }
                Outcome::Failed(error) => {
                    let since = *out_since.get_or_insert(self.now());
                    let refused = *error.kind() == ErrorKind::Refused;
                    if refused || !in_time || self.now().since(since) >= OUTAGE {
                        return Err(error);
                    }
                    BREATH + random(BREATH)
                }
            };
            let alarm = self.now() + nap;
            let alarm = until.map_or(alarm, |until| alarm.min(until));
            race(ear.called(), self.around.clock.alarm(alarm)).await;
            // The first node's word comes before the others have heard of the release.
            self.around.clock.alarm(self.now() + random(JITTER / 4)).await;
        }
    }

    /// What takes everything of an owner off the nodes.
    fn farewell(&self, keys: Keys<'_>, owner: OwnerId) -> Call {
        let call = STEPS.release.on(keys).arg(owner.reveal()).arg(self.retention);
        call.arg(remember(self.retention))
    }

    async fn renew_one(&self, renewal: &Renewal) -> Result<Renewed> {
        let Renewal { name, owner, ttl } = renewal;
        if let Some(ttl) = ttl.filter(|ttl| *ttl > self.max_ttl) {
            return Err(Error::invalid(format!(
                "a TTL of {} is longer than the redlock store takes: give at most {}",
                short(ttl.as_duration()),
                short(self.max_ttl.as_duration())
            )));
        }
        let keys = self.prefix.keys(name)?;
        let asked = ttl.map_or(0, Ttl::as_millis);
        let call = STEPS.extend.on(keys).arg(owner.reveal()).arg(asked).arg(self.retention);
        let sent = self.now();
        let way = Way::Vote(Duration::ZERO);
        let mut answers = self.nodes.ask(call, way, LOOK);
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
        }
        Err(words.error(&format!("\"{name}\" can not be renewed")))
    }

    async fn release_all(&self, name: &LockName, owner: OwnerId) -> Result<()> {
        let keys = self.prefix.keys(name)?;
        let call = self.farewell(keys, owner);
        let mut answers = self.nodes.ask(call.clone(), Way::Patiently, LOOK);
        let mut words = self.nodes.words();
        let (mut ended, mut nothing, mut why) = (0, 0, None);
        let (count, quorum) = (self.nodes.count(), self.nodes.quorum());
        while let Some((node, answer)) = answers.next().await {
            match answer {
                Ok(answer)
                    if answer.status == 1 || (answer.again && answer.why_not().is_none()) =>
                {
                    words.answered(node, "released");
                    ended += 1;
                }
                Ok(answer) => {
                    words.answered(node, "not held");
                    why = why.or(answer.why_not());
                    nothing += 1;
                }
                Err(fault) => words.failed(node, fault),
            }
            if ended >= quorum || ended + nothing == count {
                break;
            }
        }
        if ended + nothing < count {
            // Whoever has not heard it is told until it has.
            self.nodes.tell_all(call, self.max_ttl);
        }
        match (ended, nothing) {
            (ended, _) if ended >= quorum => Ok(()),
            // Less than a majority is no grant; but a place in line, or a vote, is something to give up.
            (ended, nothing) if ended > 0 && ended + nothing >= quorum => Ok(()),
            (_, nothing) if nothing > count - quorum => Err(Error::not_held(name, why)),
            _ => Err(words.error(&format!("\"{name}\" can not be released on a majority"))),
        }
    }
}

/// A random part of `span`.
fn random(span: Duration) -> Duration {
    let mut bits = [0; 4];
    // Without random numbers nothing was acquired to begin with.
    let _ = getrandom::fill(&mut bits);
    span.mul_f64(f64::from(u32::from_ne_bytes(bits)) / f64::from(u32::MAX))
}

fn read_vote(answer: &Answer) -> Result<(Vote, Option<HolderInfo>), Fault> {
    match answer.status {
        1 => {
            let (mark, mine): (u64, u8) = (answer.get(0)?, answer.get(1)?);
            Ok((Vote::Ours { mark, time: answer.time, mine: mine == 1 }, None))
        }
        0 => Ok((Vote::Theirs, answer.holder()?)),
        _ => Err(Fault::cut("the acquire was withdrawn before it arrived")),
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
            self.take(&request, until).await
        })
    }

    fn renew(&self, batch: Vec<Renewal>) -> BoxFuture<'_, Vec<Result<Renewed>>> {
        Box::pin(async move {
            futures_util::future::join_all(batch.iter().map(|renewal| self.renew_one(renewal)))
                .await
        })
    }

    fn release(&self, name: LockName, owner: OwnerId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move { self.release_all(&name, owner).await })
    }

    fn break_lock(&self, name: LockName) -> BoxFuture<'_, Result<Option<Broken>>> {
        Box::pin(async move { self.break_all(&name).await })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(async move { Ok(self.look(&name, LockInfo::SHOWN_WAITERS).await?.info) })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<LockInfo>>> {
        Box::pin(async move { self.look_at_all().await })
    }

    fn guarantees(&self) -> Guarantees {
        let found = self.nodes.links().iter().map(|link| {
            let state = link.down().map_or_else(|| "connected".to_owned(), |fault| fault.message);
            ("node", format!("{}: {state}", link.shown()))
        });
        let mut found: Vec<_> = found.collect();
        found.extend(self.even().map(|warning| ("warning", warning)));
        Guarantees { found, longest: self.max_ttl, ..guarantees() }
    }
}

fn guarantees() -> Guarantees {
    let tokens_only = |note| Kept { exclusion: Holds::No, tokens: Holds::Yes, note };
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
        found: Vec::new(),
        under: [
            Kept::both("the lock is free when the lease has run out"),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            Kept::both(
                "up to (N-1)/2 nodes: the others decide; a restarted one does not vote for max_ttl",
            ),
            tokens_only(
                "a replica in a node's place may lack a vote; tokens rise while a majority has its marks",
            ),
            tokens_only("keys of nodes that leap end early; tokens rise whatever the clocks say"),
            Kept::both(
                "without a majority nobody is granted; a holder that is cut off is told in time",
            ),
            Kept {
                exclusion: Holds::No,
                tokens: Holds::No,
                note: "a majority that is wiped grants again; tokens rise only if its clocks are right",
            },
        ],
    }
}

impl Observe for Redlock {
    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(async move {
            loop {
                let info = self.inspect(name.clone()).await?;
                if seen != Some(info.glimpse()) {
                    return Ok(info);
                }
                self.around.clock.alarm(self.now() + LOOK_AGAIN).await;
            }
        })
    }
}

impl fmt::Debug for Redlock {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redlock({} nodes)", self.nodes.count())
    }
}
