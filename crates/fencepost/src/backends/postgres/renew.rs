//! Renewing leases, many in one call.

use fencepost_core::{Moment, Ttl, Value};
use futures_util::future::join_all;
use tokio_postgres::types::Type;

use super::reply::{self, number};
use super::{Postgres, values, why_not};
use crate::backend::{NotHeld, Renewal, Renewed, Reply, StoreError, StoreResult};
use crate::postgres::{Parameter, Use};
use crate::race::{First, race};

const RENEW: &str = "SELECT * FROM fencepost.renew($1, $2, $3, $4)";

/// The answer to one renewal; none if its row is locked by another.
type Answer = Option<StoreResult<Result<Renewed, NotHeld>>>;

impl Postgres {
    pub(super) async fn renew_all(
        &self,
        batch: &[Renewal],
        limit: Moment,
    ) -> Result<Vec<StoreResult<Result<Renewed, NotHeld>>>, StoreError> {
        let mut answers = self.renew_batch(batch, limit).await?;
        // A row that another has locked must not keep the rest from being renewed: it is waited for alone, and
        // not for so long that those who are renewed hear of it too late.
        let shortest = batch.iter().filter_map(|renewal| renewal.ttl).min().unwrap_or(Ttl::MIN);
        let limit = limit.min(self.now() + shortest.as_duration() / 6);
        let busy = answers.iter_mut().zip(batch).filter(|(answer, _)| answer.is_none());
        join_all(busy.map(|(answer, renewal)| async move {
            let alone = self.renew_batch(std::slice::from_ref(renewal), limit);
            *answer = match race(alone, self.clock.alarm(limit)).await {
                First::Left(Ok(mut alone)) => alone.pop().flatten(),
                First::Left(Err(error)) => Some(Err(error)),
                First::Right(()) => None,
            };
        }))
        .await;
        let kept = |renewal: &Renewal| {
            let (shown, name) = (self.pool.shown(), &renewal.grant.name);
            let message = format!("a session at {shown} keeps the row of \"{name}\" from us");
            StoreError::unavailable(message)
        };
        let answers = answers.into_iter().zip(batch);
        Ok(answers.map(|(answer, renewal)| answer.unwrap_or_else(|| Err(kept(renewal)))).collect())
    }

    /// None of those whose row is locked by another, unless there is only one.
    async fn renew_batch(
        &self,
        batch: &[Renewal],
        limit: Moment,
    ) -> Result<Vec<Answer>, StoreError> {
        let names: Vec<&str> = batch.iter().map(|renewal| renewal.grant.name.as_str()).collect();
        let owners: Vec<String> =
            batch.iter().map(|renewal| renewal.grant.owner.reveal()).collect();
        let ttls: Vec<i64> = batch
            .iter()
            .map(|renewal| renewal.ttl.map_or(0, |ttl| i64::from(ttl.as_millis())))
            .collect();
        let tokens: Vec<i64> = batch
            .iter()
            .map(|renewal| renewal.token.map_or(0, |token| token.get().cast_signed()))
            .collect();
        let values: Vec<Option<&[u8]>> =
            batch.iter().map(|renewal| renewal.value.as_ref().map(Value::as_bytes)).collect();
        let parameters: [Parameter<'_>; 5] = [
            (&names, Type::TEXT_ARRAY),
            (&owners, Type::TEXT_ARRAY),
            (&ttls, Type::INT8_ARRAY),
            (&tokens, Type::INT8_ARRAY),
            (&values, Type::BYTEA_ARRAY),
        ];
        let heard = if values.iter().all(Option::is_none) {
            self.pool.call(Use::Renewing, RENEW, &parameters[..4], limit).await?
        } else {
            self.pool.call(Use::Renewing, values::PROCLAIM, &parameters, limit).await?
        };
        let mut answers: Vec<Answer> = batch.iter().map(|_| None).collect();
        for row in &heard.value {
            let place = number(row, "place").and_then(|place| usize::try_from(place).ok());
            let place =
                place.and_then(|place| place.checked_sub(1)).filter(|place| *place < batch.len());
            let place = place.ok_or_else(|| reply::odd("renew"))?;
            answers[place] = match reply::status(row, "renew")? {
                1 => {
                    let token = reply::token(row, "r_token", "renew")?;
                    let ttl = reply::ttl(row, "r_ttl", "renew")?;
                    Some(Ok(Reply::new(Ok(Renewed { token, ttl }), heard.sent)))
                }
                2 => None,
                _ => Some(Ok(Reply::new(Err(NotHeld(why_not(row))), heard.sent))),
            };
        }
        Ok(answers)
    }
}
