//! `redis://HOST:PORT/DB` a Redis that is there already. `rediss://` for TLS, `redis+unix:///PATH` for a socket.
//!
//! The lock is the key that every Redis lock client uses: its name, a string with the holder's id, set only
//! if absent, with an expiry, deleted only by compare (keys.rs). So redis-py's `Lock`, npm `redlock` and
//! others exclude us, and we them.
//!
//! *Why grants exclude:* each step is one script, and the server runs one script at a time. A grant is made
//! only where the key is absent, and the key stays for the TTL from then on. A guard counts its deadline
//! from before its request, so it is lost before the key is.
//! *Why tokens rise:* the grant's script draws `max(last + 1, microseconds now)`, where `last` is kept
//! beside the lock until the server's clock has passed it by the retention. If it is lost before, with
//! all the data or by a failover, the time alone is higher than any token drawn so far.
//! *Where that ends:* exclusion ends with the key: a server that restarts or fails over without its last
//! writes, FLUSHALL, an eviction, a jump of the server's clock. Tokens fall only if the record is lost and
//! the clock is behind where it was: that of a replica that took over, or one that was ahead for longer than the
//! retention and was then set back. So a lock here is for correctness only on a server that syncs every
//! write, has no replicas, evicts nothing, and has a clock like ours (found.rs).
//!
//! *Waiting:* who waits stands in a queue beside the lock, by arrival, and keeps its place with a word every
//! 250 ms. A release tells the first of them, and only that one; a free lock is given to nobody else of
//! ours while the first one's place is kept. Other makes of client see neither queue nor word: they poll
//! and may overtake. They publish nothing either, which is one reason to look every 250 ms.
//! *Elections:* what a candidate says of itself lies beside the lock, under its owner's id, and ends with the
//! lease. It is written in the script that grants or renews, so it is never another leader's.
//! *Lateness:* a request may arrive after the one that should undo it, when it was sent on a connection that
//! broke, on another one, or behind it in a batch. A release that finds nothing, or that undoes an acquire whose
//! outcome is unknown (unanswered.rs), leaves a note for its owner, and a late acquire finds it.
//! *Breaking:* a break publishes (name, token), and the holder renews at once and learns the rest from the answer. Its
//! release leaves the same note, which confirms to whoever broke it that the holder knows.

mod address;
mod answers;
mod bunch;
mod drift;
pub(crate) mod faults;
pub(crate) mod found;
mod grants;
mod keys;
mod lane;
mod link;
mod live;
mod records;
mod scripts;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Token, Ttl};

pub(crate) use self::address::{RedisUrl, RedlockUrl};
pub(in crate::backends) use self::{
    address::Address,
    answers::{Answer, Listed, Seen, locks_from},
    faults::{Fault, FaultKind},
    found::Found,
    grants::LiveGrants,
    keys::{Keys, Prefix, note_of},
    link::{Link, STEPS},
    scripts::Call,
};
pub(in crate::backends) use super::ears::{Ears, client_id};
use crate::backend::{BoxFuture, Broken, Glimpse, LockInfo, LossCause, Surroundings};
use crate::backends::bridge;
use crate::backends::bridge::{Acquired, Backend, Grant, Observe, Renewal, Renewed, Request, Wait};
use crate::clock::Clock;
use crate::error::{Error, ErrorKind, Result};
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};
use crate::race::{First, race};

/// How long a waiter or an observer trusts what it saw.
pub(in crate::backends) const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long the first in line waits for another make of client, which tells nobody when it lets go.
pub(in crate::backends) const LOOK_AT_STRANGERS: Duration = Duration::from_millis(50);
/// How long a waiter puts up with a server that can not be reached.
pub(in crate::backends) const OUTAGE: Duration = Duration::from_secs(5);
/// How long it leaves a server alone that just failed it.
pub(in crate::backends) const BREATH: Duration = Duration::from_millis(50);
/// How often a break looks for the holder's confirmation.
const CONFIRM_EVERY: Duration = Duration::from_millis(20);
/// How long after it left an acquire may arrive: as long as a server keeps its note, and time to send it.
const LATE: Duration = REMEMBER.saturating_mul(2);
/// How long an owner is remembered that was released before it came, at most.
const REMEMBER: Duration = Duration::from_mins(1);

/// A store on one Redis server.
pub struct Redis {
    link: Link,
    around: Surroundings,
    prefix: Prefix,
    /// In milliseconds, as the scripts are told.
    retention: u64,
    /// Under which the server's word reaches us.
    client: String,
    ears: Arc<Ears>,
    grants: Arc<LiveGrants>,
}

impl Redis {
    pub(crate) async fn open(url: RedisUrl, around: &Surroundings) -> Result<Arc<Self>> {
        let ears = Arc::new(Ears::default());
        let client = client_id()?;
        let retention = url.options.token_retention().as_millis() as u64;
        let prefix = Prefix::new(url.options.prefix)?;
        let grants = Arc::new(LiveGrants::new(url.address.db(), prefix.clone()));
        let (heard, held) = (Arc::clone(&ears), Arc::clone(&grants));
        let link = Link::open(url.address, around, client.clone(), heard, held);
        link.live().await.map_err(Fault::into_error)?;
        let around = around.clone();
        Ok(Arc::new(Self { link, around, prefix, retention, client, ears, grants }))
    }

    fn now(&self) -> Moment {
        self.around.clock.now()
    }

    async fn run(&self, call: Call) -> Result<Answer, Fault> {
        let answer = Answer::read(self.link.run_quick(&call).await?, call.step.verb)?;
        if answer.time > 0 {
            self.link.note_time(answer.time, answer.sent);
        }
        Ok(answer)
    }

    /// One try, which stands in line if `waits`.
    async fn ask(&self, request: &Request, keys: Keys<'_>, waits: bool) -> Result<Asked, Fault> {
        let Request { owner, ttl, label, value, .. } = request;
        let call = STEPS.acquire.on(keys).acquires(*owner);
        let (owner, ttl_ms) = (owner.reveal(), ttl.as_millis());
        let record = format!(" 0 - {owner} {ttl_ms} 0 {label}");
        let mut call = call.arg(&owner).arg(ttl_ms).arg(record);
        call = call.arg(if waits { &*self.client } else { "" }).arg(self.retention);
        if let Some(value) = value {
            call = call.arg("said").arg(value.as_bytes());
        } else if u64::from(ttl_ms) > self.retention {
            call = call.arg("long");
        }
        let answer = self.run(call).await?;
        Ok(match answer.status {
            1 => {
                let (token, ttl) = answer.granted(*ttl)?;
                let (sent, queued, presence) = (answer.sent, false, None);
                Asked::Ended(Acquired::Granted(Grant { token, ttl, sent, queued, presence }))
            }
            2 => {
                let (left, ahead, foreign) = answer.in_line()?;
                // Only the first in line counts on the lease's end: one is enough to see it. Nobody tells
                // it when another make of client lets go.
                let look = if foreign { LOOK_AT_STRANGERS } else { LOOK_AGAIN };
                let nap = left.unwrap_or(look).min(look);
                Asked::InLine { nap: if ahead == 0 { nap } else { LOOK_AGAIN } }
            }
            0 => Asked::Ended(Acquired::Held(answer.holder()?)),
            3 => return Err(Fault::cut("this acquire was withdrawn before it arrived")),
            _ => {
                return Err(Fault {
                    kind: FaultKind::Refused,
                    message: format!("{} has no tokens left for this name", self.link.shown()),
                });
            }
        })
    }

    async fn wait_in_line(&self, request: &Request, until: Moment) -> Result<Acquired> {
        let keys = self.prefix.keys(&request.name)?;
        // First without a place in line, as it is free more often than not.
        let mut ear = None;
        let mut out_since: Option<Moment> = None;
        loop {
            let in_time = self.now() < until && ear.is_some();
            let nap = match self.ask(request, keys, in_time).await {
                Ok(Asked::Ended(Acquired::Held(_))) if ear.is_none() && self.now() < until => {
                    // Open before the server knows of us, so that its word is not missed.
                    ear = Some(self.ears.open(request.owner));
                    continue;
                }
                Ok(Asked::Ended(acquired)) => return Ok(acquired),
                Ok(Asked::InLine { nap }) => {
                    out_since = None;
                    nap
                }
                Err(fault) if fault.refuses() => return Err(fault.into_error()),
                Err(fault) => {
                    let since = *out_since.get_or_insert(self.now());
                    if self.now() >= until || self.now().since(since) >= OUTAGE {
                        return Err(fault.into_error());
                    }
                    BREATH
                }
            };
            let alarm = self.around.clock.alarm((self.now() + nap).min(until));
            match &ear {
                Some(ear) => {
                    race(ear.called(), alarm).await;
                }
                None => alarm.await,
            }
        }
    }

    async fn renew_one(&self, renewal: &Renewal) -> Result<Renewed> {
        let Renewal { name, owner, ttl, value, .. } = renewal;
        let keys = self.prefix.keys(name)?;
        let ttl = ttl.map_or(0, Ttl::as_millis);
        let mut call = STEPS.renew.on(keys).arg(owner.reveal()).arg(ttl).arg(self.retention);
        if let Some(value) = value {
            call = call.arg(word_number(self.now())).arg(value.as_bytes());
        }
        let answer = self.run(call).await.map_err(Fault::into_error)?;
        if answer.status == 1 {
            let (token, ttl) = answer.granted(Ttl::MAX).map_err(Fault::into_error)?;
            return Ok(Renewed { token, ttl, sent: answer.sent });
        }
        Err(Error::not_held(name, answer.why_not()))
    }

    async fn look(&self, name: &LockName, shown: usize) -> Result<LockInfo> {
        self.look_at(self.prefix.keys(name)?, name, shown).await
    }

    async fn look_at(&self, keys: Keys<'_>, name: &LockName, shown: usize) -> Result<LockInfo> {
        let answer = self.run(STEPS.inspect.on(keys).arg(shown)).await;
        let seen = answer.and_then(|answer| Seen::read(&answer));
        Ok(seen.map_err(Fault::into_error)?.into_info(name.clone()))
    }
}

enum Asked {
    Ended(Acquired),
    /// With how long to wait before it looks again.
    InLine {
        nap: Duration,
    },
}

/// Whether an error is about one lock, and not about the server.
pub(in crate::backends) fn refuses(error: &Error) -> bool {
    matches!(error.kind(), ErrorKind::Refused | ErrorKind::Invalid)
}

/// The number of what a holder says of itself at this moment: it rises, so that the last word stays the last
/// even if an earlier one comes late. Scripts count up to 2^53.
pub(in crate::backends) fn word_number(now: Moment) -> u64 {
    now.as_nanos() / 1000
}

/// How long an owner is remembered that was released before it came, in milliseconds.
pub(in crate::backends) fn remember(retention: u64) -> u64 {
    retention.min(REMEMBER.as_millis() as u64)
}

/// A lock's name as it was found on the server, to be shown.
pub(in crate::backends) fn shown_name(found: &str) -> LockName {
    LockName::new(found).unwrap_or_else(|_| LockName::escaped(found))
}

/// Waits for a holder that was broken to release: that leaves a note of it at one of these servers. An outage meanwhile
/// changes nothing about the break.
pub(in crate::backends) async fn until_confirmed(
    links: impl IntoIterator<Item = &Link>,
    owner: &[u8],
    clock: &dyn Clock,
    limit: Moment,
) -> bool {
    let Ok(owner) = std::str::from_utf8(owner) else { return false };
    let note = redis::cmd("EXISTS").arg(note_of(owner)).clone();
    let asked = links.into_iter().map(|link| {
        let note = &note;
        Box::pin(async move {
            loop {
                clock.alarm(clock.now() + CONFIRM_EVERY).await;
                let heard = link.command(note).await.map_err(drop)?;
                if heard.value == redis::Value::Int(1) {
                    return Ok::<(), ()>(());
                }
            }
        })
    });
    let confirmed = futures_util::future::select_ok(asked);
    matches!(race(confirmed, clock.alarm(limit)).await, First::Left(Ok(_)))
}

impl Backend for Redis {
    fn acquire(&self, request: Request, wait: Wait) -> BoxFuture<'_, Result<Acquired>> {
        Box::pin(async move {
            let keys = self.prefix.keys(&request.name)?;
            let acquired = match wait {
                Wait::No => {
                    match self.ask(&request, keys, false).await.map_err(Fault::into_error)? {
                        Asked::Ended(acquired) => acquired,
                        Asked::InLine { .. } => Acquired::Held(None),
                    }
                }
                Wait::Until(until) => self.wait_in_line(&request, until).await?,
                Wait::Forever => self.wait_in_line(&request, Moment::NEVER).await?,
            };
            match &acquired {
                Acquired::Granted(grant) if self.grants.add(&request, grant.token) => {
                    self.link.listen_to_breaks();
                }
                Acquired::Held(_) if self.link.may_arrive(request.owner) => {
                    // The caller was refused and will not release. Release here, so that an acquire that arrives late
                    // is refused; if that fails, the caller must.
                    let released = self.release(request.name, request.owner).await;
                    if let Err(error) = released
                        && error.is_outage()
                    {
                        return Err(error);
                    }
                }
                _ => {}
            }
            Ok(acquired)
        })
    }

    fn renew(&self, batch: Vec<Renewal>) -> BoxFuture<'_, Vec<Result<Renewed>>> {
        Box::pin(async move {
            // All are under way at once; the connection keeps their order.
            futures_util::future::join_all(batch.iter().map(|renewal| self.renew_one(renewal)))
                .await
        })
    }

    fn release(&self, name: LockName, owner: OwnerId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let keys = self.prefix.keys(&name)?;
            self.grants.remove(owner);
            let call = STEPS.release.on(keys).arg(owner.reveal()).arg(self.retention);
            let call = call.arg(remember(self.retention)).releases(owner);
            let answer = match self.run(call).await {
                Err(fault) if fault.kind == FaultKind::NotALock => {
                    return Err(Error::not_held(&name, None));
                }
                answer => answer.map_err(Fault::into_error)?,
            };
            match (answer.status, answer.why_not()) {
                (1, _) => Ok(()),
                // The connection broke after the server had done it; somebody may have the lock by now.
                (_, why) if answer.again && why != Some(LossCause::Broken) => Ok(()),
                (_, why) => Err(Error::not_held(&name, why)),
            }
        })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
    ) -> BoxFuture<'_, Result<Option<Broken>>> {
        Box::pin(async move {
            let keys = self.prefix.keys(&name)?;
            // Whom it is to hit is looked up first: sent again after a cut, it must not hit the next one.
            let seen = self.run(STEPS.inspect.on(keys).arg(0)).await;
            let seen = seen.and_then(|answer| Seen::read(&answer)).map_err(Fault::into_error)?;
            let Some(value) = seen.value.clone() else { return Ok(None) };
            let Some(holder) = seen.into_info(name.clone()).holder else { return Ok(None) };
            if token.is_some() && token != holder.token {
                return Ok(None);
            }
            let call = STEPS.break_lock.on(keys).arg(self.retention).arg(&value);
            let call = call.arg(self.grants.channel());
            let answer = self.run(call).await.map_err(Fault::into_error)?;
            match answer.status {
                0 => Ok(None),
                1 | 5 => {
                    // What the first of two drew is not known any more. Next to the broken token nothing
                    // was granted, so that does as well.
                    let after = holder.token.and_then(|token| Token::new(token.get() + 1).ok());
                    let floor = match after.filter(|_| answer.status == 5) {
                        Some(floor) => floor,
                        None => answer.floor().map_err(Fault::into_error)?,
                    };
                    let (label, token, clock) = (holder.label, holder.token, &*self.around.clock);
                    // A third-party client has no token, and knows nothing of confirmations.
                    let confirmed = token.is_some()
                        && until_confirmed([&self.link], &value, clock, confirm_until).await;
                    Ok(Some(Broken { label, token, floor, confirmed }))
                }
                _ => Err(Error::refused(format!("\"{name}\" has no tokens left"))),
            }
        })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(async move { self.look(&name, LockInfo::SHOWN_WAITERS).await })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<LockInfo>>> {
        Box::pin(async move {
            let names = locks_from(&self.link, &self.prefix).await.map_err(Fault::into_error)?;
            let mut locks = Vec::new();
            // In bunches: one after the other is slow, all at once would flood the server.
            for bunch in names.into_iter().collect::<Vec<_>>().chunks(64) {
                let asked = bunch.iter().map(|name| async {
                    self.look_at(self.prefix.found(name), &shown_name(name), 0).await
                });
                for info in futures_util::future::join_all(asked).await {
                    match info {
                        Ok(info) if info.holder.is_some() || info.waiting > 0 => locks.push(info),
                        // A name that holds something else by now is no lock.
                        Ok(_) => {}
                        Err(error) if refuses(&error) => {}
                        Err(error) => return Err(error),
                    }
                }
            }
            Ok(locks)
        })
    }

    fn guarantees(&self) -> Guarantees {
        let found = self.link.found();
        let (synced, alone) =
            found.as_ref().map_or((false, false), |found| (found.synced(), found.alone()));
        let correctness = found.as_ref().map_or_else(
            || Correctness::Unfit {
                why: format!(
                    "{} can not be reached, so nobody knows what it keeps",
                    self.link.shown()
                ),
                remedy: "try again when it is back".into(),
            },
            Found::correctness,
        );
        let mut lines = found.map_or_else(Vec::new, |found| found.lines(self.link.jumps()));
        lines.extend(self.grants.lines());
        let records = Records::like(&correctness);
        Guarantees { correctness, records, found: lines, ..guarantees(synced, alone) }
    }
}

/// What a server keeps that syncs every write, or does not, and that has no replicas, or may have.
fn guarantees(synced: bool, alone: bool) -> Guarantees {
    let tokens_only = |note| Kept { exclusion: Holds::No, tokens: Holds::Yes, note };
    let neither = |note| Kept { exclusion: Holds::No, tokens: Holds::No, note };
    Guarantees {
        backend: "redis",
        scope: "all who use this server and database, other makes of client included",
        correctness: Correctness::Fit,
        fifo: true,
        wake: "a release tells the first in line; all look again every 250 ms; other makes of client \
               poll, and may overtake",
        clock: "the server's wall clock",
        longest: Ttl::MAX,
        lengthens: true,
        records: Records::Kept,
        found: Vec::new(),
        under: [
            Kept::both("the lock is free when the lease has run out"),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            if synced {
                Kept::both("every write is synced before it is answered")
            } else {
                tokens_only(
                    "held locks are forgotten; tokens rise unless the clock is behind as well",
                )
            },
            if alone {
                Kept::none_such("it has no replicas")
            } else {
                neither(
                    "a replica without the last writes grants again; tokens fall if its clock is behind",
                )
            },
            neither(
                "leases end early or late; ahead past the retention, then back: tokens can fall",
            ),
            Kept::both(
                "a holder that is cut off is told before its lease ends; nobody else is granted",
            ),
            tokens_only("held locks are forgotten; tokens rise unless the clock is behind as well"),
        ],
    }
}

impl Observe for Redis {
    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(bridge::look_until_changed(self, &*self.around.clock, LOOK_AGAIN, name, seen))
    }
}

impl fmt::Debug for Redis {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Redis({})", self.link.shown())
    }
}
