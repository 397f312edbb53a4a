//! Describes a lock and takes it.

use std::cell::RefCell;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use fencepost_core::{Invalid, Label, LockName, Moment, OwnerId, Token, Ttl, Value};
use tracing::Instrument as _;

use crate::backend::{
    Acquired, Grant, Liveness, LossSignal, Presence, Renewal, Request, Wait, short,
};
use crate::client::Client;
use crate::counts::{RAILS, up};
use crate::error::{Error, ErrorKind, Result};
use crate::guarantees::Correctness;
use crate::guard::{Guard, Standing, Undo};
use crate::hold::{Bounds, GuardState, Hold};
use crate::outage::Outage;
use crate::race::{First, race};

/// The TTL of a lock that names none.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// How long one exchange with the store may take before we call it unreachable.
pub(crate) const PATIENCE: Duration = Duration::from_secs(5);

/// How far a backend may overshoot the caller's limit, to withdraw its place.
const SLACK: Duration = Duration::from_millis(250);

/// The unit of a TTL.
const MILLISECOND: Duration = Duration::from_millis(1);

/// How often a waiter asks whether a store is back.
const OUTAGE_RETRY_DELAY: Duration = Duration::from_millis(500);

/// A lock that is not taken yet. Made by [`Fencepost::lock`](crate::Fencepost::lock).
#[derive(Clone)]
#[must_use = "nothing is locked until an acquire is awaited"]
pub struct Lock {
    client: Arc<Client>,
    name: Result<LockName, Invalid>,
    ttl: Duration,
    label: Option<String>,
    liveness: Liveness,
    bounds: Bounds,
    value: Option<Value>,
}

impl Lock {
    pub(crate) fn new(client: Arc<Client>, name: &str) -> Self {
        Self {
            client,
            name: LockName::new(name),
            ttl: DEFAULT_TTL,
            label: None,
            liveness: Liveness::Process,
            bounds: Bounds::default(),
            value: None,
        }
    }

    /// How long the store keeps the grant without a renewal: 100 ms to 24 h, 30 s unless set. It is
    /// renewed every third of that, so a short TTL serves long work.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.ttl = ttl;
        self
    }

    /// What a person reads as the holder; `host:pid` unless set.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.label = Some(label.into());
        self
    }

    /// A double run would corrupt, not only waste: refuses a backend that can not promise exclusion. Use
    /// the guard's token at the resource as well; a lock alone can not stop a paused holder.
    pub fn for_correctness(mut self) -> Self {
        self.bounds.for_correctness = true;
        self
    }

    /// The guard is lost after this long, however well the holder seems to be.
    pub fn max_hold(mut self, max: Duration) -> Self {
        self.bounds.max_hold = Some(max);
        self
    }

    /// Ties the heartbeat to the work: unless [`Guard::progress`](crate::Standing::progress) is called at least this often, renewal
    /// stops and the lease runs out.
    pub fn progress_within(mut self, span: Duration) -> Self {
        self.bounds.progress_within = Some(span);
        self
    }

    /// The grant does not end with this process, only with its lease or a release. For scripts that
    /// acquire in one process and release in another.
    pub fn lease_only(mut self) -> Self {
        self.liveness = Liveness::LeaseOnly;
        self
    }

    /// The same lock on another name.
    pub(crate) fn named(mut self, name: &LockName) -> Self {
        self.name = Ok(name.clone());
        self
    }

    /// What a person will read as the holder.
    pub(crate) fn shown_label(&self) -> Result<Label> {
        match &self.label {
            Some(label) => Ok(Label::new(label)?),
            None => Ok(self.client.label.clone()),
        }
    }

    /// Stands as a candidate that says this of itself.
    pub(crate) fn value(mut self, value: Value) -> Self {
        self.value = Some(value);
        self
    }

    /// Waits for the lock without limit. Dropping the future gives up the place in the queue.
    pub async fn acquire(self) -> Result<Guard> {
        self.take(Wait::Forever).await
    }

    /// Waits for the lock at most this long; then the error's kind is `Held` and says who has it.
    pub async fn acquire_within(self, limit: Duration) -> Result<Guard> {
        let until = self.client.clock.now() + limit;
        self.take(Wait::Until(until)).await
    }

    /// Takes the lock if it is free; `None` if somebody else has it.
    pub async fn try_acquire(self) -> Result<Option<Guard>> {
        match self.take(Wait::No).await {
            Ok(guard) => Ok(Some(guard)),
            Err(error) if matches!(error.kind(), ErrorKind::Held(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    pub(crate) async fn take(self, wait: Wait) -> Result<Guard> {
        let name = self.name.clone()?;
        let ttl = Ttl::new(self.ttl)?;
        let label = self.shown_label()?;
        self.check_bounds()?;
        self.check_store(ttl)?;
        let span = tracing::debug_span!("acquire", %name, ?wait);
        self.try_until_settled(name, ttl, label, wait).instrument(span).await
    }

    async fn try_until_settled(
        &self,
        name: LockName,
        ttl: Ttl,
        label: Label,
        wait: Wait,
    ) -> Result<Guard> {
        let mut outage = Outage::default();
        loop {
            // A wait may outlast the client.
            self.client.check_open()?;
            let owner = draw_owner()?;
            let (clock, tally) = (Arc::clone(&self.client.clock), Arc::clone(&self.client.tally));
            let hold = Hold::new(name.clone(), owner, ttl, self.bounds, clock, tally);
            // From here on every way out, a dropped future included, either hands the grant to a guard
            // or gives it back to the store.
            let mut undo = Undo::armed(Arc::clone(&self.client), Arc::clone(&hold), ttl);
            let request = Request {
                name: name.clone(),
                owner,
                ttl,
                label: label.clone(),
                value: self.value.clone(),
                liveness: self.liveness,
                loss: LossSignal::to(&hold, &self.client.keeper),
            };
            let answer = match self.ask(request, wait).await {
                Err(error) => {
                    self.sit_out(&mut outage, &mut undo, wait, error).await?;
                    continue;
                }
                Ok(answer) => answer,
            };
            match answer {
                Acquired::Granted(grant) => match self.settle(grant, &hold).await {
                    Ok(Some((standing, presence))) => {
                        return Ok(Guard::new(standing, presence, undo));
                    }
                    // The grant ended before we could trust it. A fresh owner gets a fresh place.
                    Ok(None) if self.may_go_on(wait) => {}
                    Ok(None) => {
                        return Err(Error::unreachable(format!(
                            "the store granted \"{name}\" later than its TTL of {} allows: use a \
                             longer TTL, or see why the store is slow",
                            short(ttl.as_duration())
                        )));
                    }
                    Err(error) => self.sit_out(&mut outage, &mut undo, wait, error).await?,
                },
                Acquired::PlaceLost if self.may_go_on(wait) => {}
                Acquired::PlaceLost => return Err(Error::held(&name, None)),
                Acquired::Held(holder) => {
                    undo.disarm();
                    return Err(Error::held(&name, holder));
                }
            }
        }
    }

    /// Asks the store, within the caller's limit whatever the store does.
    async fn ask(&self, request: Request, wait: Wait) -> Result<Acquired> {
        let backend = &self.client.store.backend;
        let name = request.name.clone();
        let now = self.client.clock.now();
        let limit = match wait {
            Wait::Forever => return backend.acquire(request, wait).await,
            Wait::Until(until) => until.max(now) + SLACK,
            Wait::No => now + PATIENCE,
        };
        let acquire = backend.acquire(request, wait);
        match race(acquire, self.client.clock.alarm(limit)).await {
            First::Left(answer) => answer,
            First::Right(()) => Err(Error::unreachable(format!(
                "the {} store did not answer within {} when asked for \"{name}\"",
                backend.guarantees().backend,
                short(limit.since(now)),
            ))),
        }
    }

    /// Waits until the store answers again: it is asked to release what the failed acquire may have left, so that
    /// nothing of it is in the way of the next one. Gives the error if it is none of an outage, or if the caller's wait
    /// ends first.
    async fn sit_out(
        &self,
        outage: &mut Outage,
        undo: &mut Undo,
        wait: Wait,
        mut error: Error,
    ) -> Result<()> {
        let clock = &self.client.clock;
        let limit = match wait {
            Wait::Until(until) => until,
            Wait::No | Wait::Forever => Moment::NEVER,
        };
        if !error.is_outage() || !self.may_go_on(wait) {
            return Err(error);
        }
        loop {
            outage.log(clock.now(), undo.name(), &error);
            clock.alarm((clock.now() + OUTAGE_RETRY_DELAY).min(limit)).await;
            if !self.may_go_on(wait) {
                return Err(error);
            }
            match race(undo.release_now(), clock.alarm(limit)).await {
                First::Left(Err(failed)) if failed.is_outage() => error = failed,
                // Refused too: the next acquire says why.
                First::Left(_) => {
                    outage.end();
                    return Ok(());
                }
                // What is left is released in the background.
                First::Right(()) => return Err(error),
            }
        }
    }

    /// Makes what a guard needs of a grant, unless the grant is over before it can be trusted.
    async fn settle(
        &self,
        grant: Grant,
        hold: &Arc<Hold>,
    ) -> Result<Option<(Standing, Option<Presence>)>> {
        let (mut sent, mut ttl) = (grant.sent, grant.ttl);
        if grant.queued {
            match self.confirm(hold, grant.token).await {
                Ok(renewed) => (sent, ttl) = renewed,
                Err(error) if matches!(error.kind(), ErrorKind::NotHeld(_)) => return Ok(None),
                Err(error) => return Err(error),
            }
        }
        self.check_granted_ttl(&hold.name, ttl)?;
        hold.start(grant.token, sent, ttl);
        if hold.status().state != GuardState::Held {
            return Ok(None);
        }
        self.client.keeper.keep(hold);
        up(&self.client.tally.grants);
        tracing::debug!(name = %hold.name, token = %grant.token, ttl = ?ttl, "granted");
        let standing = Standing::new(grant.token, Arc::clone(hold));
        Ok(Some((standing, grant.presence)))
    }

    /// A grant made while we waited may be as old as our place in the queue: ask once more, and count
    /// from that (P4).
    async fn confirm(&self, hold: &Hold, token: Token) -> Result<(Moment, Ttl)> {
        let (name, owner) = (hold.name.clone(), hold.owner);
        let renewal = Renewal { name, owner, ttl: None, token: Some(token), value: None };
        let clock = &self.client.clock;
        let renew = self.client.store.backend.renew(vec![renewal]);
        match race(renew, clock.alarm(clock.now() + PATIENCE)).await {
            First::Left(mut answers) => match answers.pop() {
                Some(Ok(renewed)) => Ok((renewed.sent, renewed.ttl)),
                Some(Err(error)) => Err(error),
                None => Err(Error::unreachable("the backend left out an answer")),
            },
            First::Right(()) => Err(Error::unreachable(format!(
                "the store did not confirm the grant of \"{}\" within {}",
                hold.name,
                short(PATIENCE)
            ))),
        }
    }

    fn may_go_on(&self, wait: Wait) -> bool {
        match wait {
            Wait::No => false,
            Wait::Until(until) => self.client.clock.now() < until,
            Wait::Forever => true,
        }
    }

    fn check_bounds(&self) -> Result<()> {
        let bounds =
            [("max_hold", self.bounds.max_hold), ("progress_within", self.bounds.progress_within)];
        for (what, span) in bounds {
            if let Some(span) = span.filter(|span| *span < Ttl::MIN.as_duration()) {
                return Err(Error::invalid(format!("{what} is {span:?}: give 100ms or more")));
            }
        }
        Ok(())
    }

    /// A store may keep another TTL than it was asked for. Nobody renews a lease-only grant in the background, so its
    /// caller must not count on time that is not there.
    fn check_granted_ttl(&self, name: &LockName, kept: Ttl) -> Result<()> {
        let (asked, kept) = (Ttl::new(self.ttl)?.as_duration(), kept.as_duration());
        // A store may lead on two thirds of the TTL, so that the next candidate leads within the whole of it.
        let leads = self.value.is_some() && kept < asked && kept + MILLISECOND >= asked * 2 / 3;
        if kept == asked || leads {
            return Ok(());
        }
        let backend = self.client.store.backend.guarantees().backend;
        let (asked_text, kept_text) = (short(asked), short(kept));
        if kept < asked && self.liveness == Liveness::LeaseOnly {
            return Err(Error::refused(format!(
                "the {backend} store keeps \"{name}\" for {kept_text}, not for {asked_text}: ask for a TTL of at \
                 most {kept_text}, or raise the server's limit"
            )));
        }
        if !self.client.ttl_warned.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                target: RAILS,
                %name,
                "the {backend} store keeps a TTL of {kept_text}, not of {asked_text}: a dead holder's lock is free \
                 after that time",
            );
        }
        Ok(())
    }

    fn check_store(&self, ttl: Ttl) -> Result<()> {
        if !self.bounds.for_correctness && ttl <= self.client.longest {
            return Ok(());
        }
        let guarantees = self.client.store.backend.guarantees();
        if ttl > guarantees.longest {
            return Err(Error::invalid(format!(
                "a TTL of {} is longer than the {} store takes: give at most {}",
                short(ttl.as_duration()),
                guarantees.backend,
                short(guarantees.longest.as_duration()),
            )));
        }
        match guarantees.correctness {
            _ if !self.bounds.for_correctness => Ok(()),
            Correctness::Fit => Ok(()),
            Correctness::Unfit { why, remedy } => Err(Error::refused(format!(
                "the {} store can not be used for correctness: {why}; {remedy}",
                guarantees.backend
            ))),
        }
    }
}

impl std::fmt::Debug for Lock {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Lock")
            .field("name", &self.name)
            .field("ttl", &self.ttl)
            .finish_non_exhaustive()
    }
}

/// Random bytes of the system's, drawn ahead: a call for each id would be a good part of a lock's cost.
struct Drawn {
    bytes: [u8; 1024],
    used: usize,
    /// In which process: a fork has the same bytes, and must not use them.
    process: u32,
}

thread_local! {
    static DRAWN: RefCell<Drawn> = const { RefCell::new(Drawn { bytes: [0; 1024], used: 1024, process: 0 }) };
}

/// An id that nobody can guess, made for one acquisition.
fn draw_owner() -> Result<OwnerId> {
    DRAWN.with_borrow_mut(|drawn| {
        let process = std::process::id();
        if drawn.process != process || drawn.used + 16 > drawn.bytes.len() {
            // Until it is filled, nothing of it may be used.
            drawn.used = drawn.bytes.len();
            getrandom::fill(&mut drawn.bytes).map_err(|error| {
                Error::unreachable("the system has no random numbers for an owner id")
                    .because(error)
            })?;
            (drawn.process, drawn.used) = (process, 0);
        }
        let mut bits = [0; 16];
        let next = &mut drawn.bytes[drawn.used..drawn.used + 16];
        bits.copy_from_slice(next);
        // An id is a secret of its owner: it does not stay behind.
        next.fill(0);
        drawn.used += 16;
        Ok(OwnerId::from_bits(u128::from_ne_bytes(bits)))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn owners_do_not_repeat() {
        let many: Vec<_> = (0..500).map(|_| super::draw_owner().unwrap().bits()).collect();
        let distinct: std::collections::HashSet<_> = many.iter().collect();
        assert_eq!(distinct.len(), many.len());
        assert!(!many.contains(&0));
    }
}
