//! Replies of a store, and the one way to retry a request.
//!
//! Every request to a store is idempotent, so one without a reply is sent again. The retry must keep the doubt: the first
//! request may have been applied, or be applied later.

use std::future::Future;
use std::time::Duration;

use fencepost_core::{Moment, short};

use crate::BoxFuture;
use crate::clock::Clock;
use crate::race::{First, race};
use crate::store_error::{Outcome, StoreError};

/// The timeout of one call. No backend has its own.
pub const CALL_TIMEOUT: Duration = Duration::from_secs(4);
/// The timeout of one attempt: the next one goes over another connection.
pub const ATTEMPT_TIMEOUT: Duration = Duration::from_secs(2);
/// The pause before the second attempt. It doubles with each one.
pub const RETRY_DELAY: Duration = Duration::from_millis(10);
/// The longest pause between two attempts, and before a failed call is repeated.
pub const MAX_RETRY_DELAY: Duration = Duration::from_millis(250);

/// A store's reply.
#[derive(Clone, Copy, Debug)]
pub struct Reply<T> {
    /// The answer.
    pub value: T,
    /// Read from the clock before the request left. Deadlines count from here (P4).
    pub sent: Moment,
    /// An earlier attempt may have been applied.
    pub retried: bool,
}

/// A reply, or why the store did not decide.
pub type StoreResult<T> = Result<Reply<T>, StoreError>;

/// A call to a store.
pub type StoreCall<'a, T> = BoxFuture<'a, StoreResult<T>>;

impl<T> Reply<T> {
    /// The reply to a request that left at `sent` and was not sent before.
    pub const fn new(value: T, sent: Moment) -> Self {
        Self { value, sent, retried: false }
    }

    /// The same reply with another value.
    pub fn map<U>(self, map: impl FnOnce(T) -> U) -> Reply<U> {
        Reply { value: map(self.value), sent: self.sent, retried: self.retried }
    }

    /// The same, if the value can be parsed.
    pub fn try_map<U>(self, map: impl FnOnce(T) -> Result<U, StoreError>) -> StoreResult<U> {
        Ok(Reply { value: map(self.value)?, sent: self.sent, retried: self.retried })
    }
}

/// The reply of a call that takes several requests.
pub async fn replied<T>(
    clock: &dyn Clock,
    call: impl Future<Output = Result<T, StoreError>>,
) -> StoreResult<T> {
    let sent = clock.now();
    Ok(Reply::new(call.await?, sent))
}

/// Retries an idempotent request until it is answered or refused, or `limit` comes. An attempt gets its number, and returns
/// its value and when its request left.
pub async fn retry<T, F>(
    clock: &dyn Clock,
    limit: Moment,
    attempt: impl Fn(u32) -> F,
) -> StoreResult<T>
where
    F: Future<Output = Result<(T, Moment), StoreError>>,
{
    let (mut number, mut delay, mut outcome) = (0, RETRY_DELAY, Outcome::NotApplied);
    let mut last: Option<StoreError> = None;
    loop {
        let start = clock.now();
        let stop = (start + ATTEMPT_TIMEOUT).min(limit);
        let (error, cut_short) = match race(attempt(number), clock.alarm(stop)).await {
            First::Left(Ok((value, sent))) => {
                return Ok(Reply { value, sent, retried: outcome == Outcome::Unknown });
            }
            First::Left(Err(error)) => {
                let cut_short = error.is_interrupted() && clock.now() >= limit;
                (error, cut_short)
            }
            First::Right(()) => {
                let message = format!("no answer within {}", short(stop.since(start)));
                (StoreError::no_reply(message), true)
            }
        };
        // An attempt that was cut short says less than the one before it.
        let error = match last.take() {
            Some(earlier) if cut_short => earlier.with_outcome(error.outcome()),
            _ => error,
        };
        // Once unknown, always unknown: a later refusal says nothing about the first request.
        outcome = outcome.max(error.outcome());
        let next = clock.now() + delay;
        if !error.is_interrupted() || next >= limit {
            return Err(error.with_outcome(outcome));
        }
        clock.alarm(next).await;
        (number, delay) = (number + 1, (delay * 2).min(MAX_RETRY_DELAY));
        last = Some(error);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::block_on::block_on;
    use crate::clock::BootClock;

    fn attempts(errors: &[StoreError], limit: Duration) -> (StoreResult<&'static str>, u32) {
        let (clock, made) = (BootClock, AtomicU32::new(0));
        let reply = block_on(retry(&clock, clock.now() + limit, |number| {
            made.fetch_add(1, Ordering::Relaxed);
            let error = errors.get(number as usize).cloned();
            async move { error.map_or_else(|| Ok(("answer", BootClock.now())), Err) }
        }));
        (reply, made.into_inner())
    }

    const LONG: Duration = Duration::from_mins(1);

    #[test]
    fn request_without_reply_is_sent_again_and_marked_as_retried() {
        let (reply, made) = attempts(&[StoreError::no_reply("cut")], LONG);
        assert_eq!((reply.unwrap().retried, made), (true, 2));
    }

    #[test]
    fn attempt_that_changed_nothing_does_not_count_as_retried() {
        let (reply, made) = attempts(&[StoreError::busy("deadlock")], LONG);
        assert_eq!((reply.unwrap().retried, made), (false, 2));
    }

    #[test]
    fn refusal_after_a_lost_reply_leaves_the_outcome_unknown() {
        let errors = [StoreError::no_reply("cut"), StoreError::refused("NOPERM")];
        let (reply, made) = attempts(&errors, LONG);
        let error = reply.unwrap_err();
        assert_eq!((error.outcome(), error.message(), made), (Outcome::Unknown, "NOPERM", 2));
    }

    #[test]
    fn store_that_is_known_to_be_down_is_not_retried() {
        let (reply, made) = attempts(&[StoreError::unavailable("down")], LONG);
        assert_eq!((reply.unwrap_err().outcome(), made), (Outcome::NotApplied, 1));
    }

    #[test]
    fn attempt_cut_short_by_the_limit_reports_the_earlier_error() {
        let (clock, limit) = (BootClock, BootClock.now() + Duration::from_millis(30));
        let reply: StoreResult<()> = block_on(retry(&clock, limit, |number| async move {
            if number > 0 {
                std::future::pending::<()>().await;
            }
            Err(StoreError::busy("row is locked"))
        }));
        let error = reply.unwrap_err();
        assert_eq!((error.message(), error.outcome()), ("row is locked", Outcome::Unknown));
    }

    #[test]
    fn attempts_end_at_the_limit() {
        let (reply, made) = attempts(&[StoreError::no_reply("cut")], Duration::ZERO);
        assert_eq!((reply.unwrap_err().is_interrupted(), made), (true, 1));
    }
}
