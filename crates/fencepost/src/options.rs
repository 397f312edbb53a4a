//! The options of a grant, whoever acquires it: a lock, an election, a run of `once`, a single flight.

use std::time::Duration;

use fencepost_core::{LockName, Moment, Ttl, Value};

use crate::backend::{Liveness, short};
use crate::bounded_store::{BoundedStore, Wait};
use crate::error::{Error, Result};
use crate::grant_state::Bounds;
use crate::guarantees::Correctness;

/// The TTL of a lock that names none.
pub const DEFAULT_TTL: Duration = Duration::from_secs(30);

/// The unit of a TTL.
const MILLISECOND: Duration = Duration::from_millis(1);

#[derive(Clone, Debug)]
pub(crate) struct AcquireOptions {
    pub(crate) ttl: Duration,
    pub(crate) label: Option<String>,
    pub(crate) liveness: Liveness,
    pub(crate) bounds: Bounds,
    /// How long to wait for the grant; `None` for as long as it takes.
    pub(crate) wait_timeout: Option<Duration>,
    /// What a candidate publishes; `None` for a lock that is not an election.
    pub(crate) value: Option<Value>,
}

impl Default for AcquireOptions {
    fn default() -> Self {
        let (bounds, liveness) = (Bounds::default(), Liveness::Process);
        Self { ttl: DEFAULT_TTL, label: None, liveness, bounds, wait_timeout: None, value: None }
    }
}

impl AcquireOptions {
    /// How long an acquire that starts now waits. A timeout of zero is a single try.
    pub(crate) fn wait(&self, now: Moment) -> Wait {
        match self.wait_timeout {
            None => Wait::Forever,
            Some(timeout) if timeout.is_zero() => Wait::No,
            Some(timeout) => Wait::Until(now + timeout),
        }
    }

    /// The TTL, if the options are valid and this store can do what they ask for.
    pub(crate) fn check(&self, store: &BoundedStore, max_ttl: Ttl) -> Result<Ttl> {
        let ttl = Ttl::new(self.ttl)?;
        let bounds =
            [("max_hold", self.bounds.max_hold), ("progress_within", self.bounds.progress_within)];
        for (what, span) in bounds {
            if let Some(span) = span.filter(|span| *span < Ttl::MIN.as_duration()) {
                return Err(Error::invalid(format!("{what} is {span:?}: give 100ms or more")));
            }
        }
        if !self.bounds.for_correctness && ttl <= max_ttl {
            return Ok(ttl);
        }
        let guarantees = store.guarantees();
        let backend = guarantees.backend;
        if ttl > guarantees.max_ttl {
            return Err(Error::invalid(format!(
                "a TTL of {} is longer than the {backend} store allows: give at most {}",
                short(ttl.as_duration()),
                short(guarantees.max_ttl.as_duration()),
            )));
        }
        match guarantees.correctness {
            Correctness::Unfit { why, remedy } if self.bounds.for_correctness => {
                Err(Error::refused(format!(
                    "the {backend} store cannot be used for correctness: {why}; {remedy}"
                )))
            }
            _ => Ok(ttl),
        }
    }

    /// The warning to log if the store granted another TTL than requested. Refused for a lease-only grant with a shorter
    /// TTL: nothing renews it in the background, so its caller would rely on time that it does not have.
    pub(crate) fn check_granted(
        &self,
        store: &BoundedStore,
        name: &LockName,
        kept: Ttl,
    ) -> Result<Option<String>> {
        let (asked, kept) = (Ttl::new(self.ttl)?.as_duration(), kept.as_duration());
        // For a leader a store may use two thirds of the TTL, so that the next candidate leads within the whole TTL.
        let leads = self.value.is_some() && kept < asked && kept + MILLISECOND >= asked * 2 / 3;
        if kept == asked || leads {
            return Ok(None);
        }
        let backend = store.guarantees().backend;
        let (asked_text, kept_text) = (short(asked), short(kept));
        if kept < asked && self.liveness == Liveness::LeaseOnly {
            return Err(Error::refused(format!(
                "the {backend} store grants \"{name}\" a TTL of {kept_text} instead of the requested {asked_text}: \
                request a TTL of at most {kept_text}, or raise the server's limit"
            )));
        }
        Ok(Some(format!(
            "the {backend} store grants a TTL of {kept_text} instead of the requested {asked_text}: a dead \
             holder's lock is free after that time"
        )))
    }
}

/// Gives a builder the options of a grant, by the path to its [`AcquireOptions`]. The second form passes them on to the
/// builder that it wraps.
macro_rules! acquire_options {
    ($builder:ty, $($path:ident).+) => {
        impl $builder {
            /// How long the store keeps the grant without a renewal: 100 ms to 24 h, 30 s by default. The grant is
            /// renewed every third of that, so a short TTL serves long work.
            pub fn ttl(mut self, ttl: std::time::Duration) -> Self {
                self.$($path).+.ttl = ttl;
                self
            }

            /// What a person reads as the holder; `host:pid` by default.
            pub fn label(mut self, label: impl Into<String>) -> Self {
                self.$($path).+.label = Some(label.into());
                self
            }

            /// Two holders at once would corrupt data, not only waste work: refuses a store that cannot promise
            /// exclusion. Pass the fencing token to a fence at the resource as well: a lock alone cannot stop a paused
            /// holder.
            pub fn for_correctness(mut self) -> Self {
                self.$($path).+.bounds.for_correctness = true;
                self
            }

            /// The guard is lost after this long, even if its holder is healthy.
            pub fn max_hold(mut self, max: std::time::Duration) -> Self {
                self.$($path).+.bounds.max_hold = Some(max);
                self
            }

            /// Ties the heartbeat to the work: unless [`progress`](crate::GuardHandle::progress) is called at least this
            /// often, renewal stops and the lease runs out.
            pub fn progress_within(mut self, span: std::time::Duration) -> Self {
                self.$($path).+.bounds.progress_within = Some(span);
                self
            }
        }
    };
    (wraps $builder:ty) => {
        impl $builder {
            /// How long the store keeps the grant without a renewal.
            pub fn ttl(self, ttl: std::time::Duration) -> Self {
                Self(self.0.ttl(ttl))
            }

            /// What a person reads as the holder.
            pub fn label(self, label: impl Into<String>) -> Self {
                Self(self.0.label(label))
            }

            /// Two holders at once would corrupt data, not only waste work.
            pub fn for_correctness(self) -> Self {
                Self(self.0.for_correctness())
            }

            /// The guard is lost after this long, even if its holder is healthy.
            pub fn max_hold(self, max: std::time::Duration) -> Self {
                Self(self.0.max_hold(max))
            }

            /// Ties the heartbeat to the work.
            pub fn progress_within(self, span: std::time::Duration) -> Self {
                Self(self.0.progress_within(span))
            }
        }
    };
}
pub(crate) use acquire_options;

/// The limit of a wait, for the builders whose calls wait. The forms are those of [`acquire_options`].
macro_rules! wait_option {
    ($builder:ty, $($path:ident).+) => {
        impl $builder {
            /// How long to wait for the grant at most; then the error's kind is [`Held`](crate::ErrorKind::Held), and it
            /// says who holds it. Zero tries once. By default there is no limit.
            pub fn wait_timeout(mut self, timeout: std::time::Duration) -> Self {
                self.$($path).+.wait_timeout = Some(timeout);
                self
            }
        }
    };
    (wraps $builder:ty) => {
        impl $builder {
            /// How long to wait for the grant at most; then the error's kind is [`Held`](crate::ErrorKind::Held).
            pub fn wait_timeout(self, timeout: std::time::Duration) -> Self {
                Self(self.0.wait_timeout(timeout))
            }
        }
    };
}
pub(crate) use wait_option;
