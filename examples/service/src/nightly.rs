//! `POST /nightly/{day}`: closes a day, once. Cron may call it on each instance, as often as it likes.

use std::error::Error;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};

use crate::Service;
use crate::failure::Failure;

pub(crate) async fn close_day(
    State(service): State<Arc<Service>>,
    Path(day): Path<String>,
) -> Result<String, Failure> {
    let job = service.fp.once(format!("nightly/{day}")).wait_timeout(Duration::from_secs(20));
    let recorded = job.run(async |run| {
        let mut client = service.pool.get().await?;
        let mut tx = client.transaction().await?;
        let close = "INSERT INTO closing SELECT $1, count(*), coalesce(sum(cents), 0)::bigint
                     FROM invoice RETURNING invoices, cents";
        let row = tx.query_one(close, &[&day]).await?;
        let (invoices, cents): (i64, i64) = (row.get(0), row.get(1));
        run.done_in(&mut tx, format!("{invoices} invoices, {cents} cents")).await?;
        tx.commit().await?; // the closing and the record of it, or neither
        Ok::<_, Box<dyn Error + Send + Sync>>("")
    });
    let recorded = recorded.await?;
    let who = if recorded.ran { "closed now" } else { "was closed" };
    Ok(format!("{who}: {}\n", String::from_utf8_lossy(&recorded.result)))
}
