//! `POST /invoice/{id}/charge`: a lock for each invoice, and a fenced table.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::{Path, State};
use axum::http::StatusCode;
use fencepost::fences;

use crate::Service;
use crate::failure::Failure;

/// Adds the cents in the body to the invoice.
pub(crate) async fn charge(
    State(service): State<Arc<Service>>,
    Path(id): Path<i64>,
    body: String,
) -> Result<String, Failure> {
    let Ok(cents) = body.trim().parse::<i64>() else {
        return Err(Failure::new(StatusCode::BAD_REQUEST, "the body must be a number of cents"));
    };
    let lock = service.fp.lock(format!("invoice/{id}")).ttl(Duration::from_secs(10));
    let guard = lock.wait_timeout(Duration::from_secs(20)).acquire().await?;

    // What the lock is for: a step outside of the transaction. It is cancelled if the lock is lost.
    guard.run(authorise(cents)).await??;

    // Not under `guard.run`: that could cancel a COMMIT, and the outcome would be unknown. The fence
    // decides: it refuses a holder that was overtaken, and nobody enters while this transaction runs.
    let mut client = service.pool.get().await?;
    let tx = fences::postgres::begin(&mut client, &guard.fencing()).await?;
    let read = "SELECT cents FROM invoice WHERE id = $1";
    let before = tx.query_opt(read, &[&id]).await?.map_or(0, |row| row.get::<_, i64>(0));
    let sum = before + cents;
    let write = "INSERT INTO invoice (id, cents) VALUES ($1, $2)
                 ON CONFLICT (id) DO UPDATE SET cents = excluded.cents";
    tx.execute(write, &[&id, &sum]).await?;
    tx.commit().await?;

    // It is charged. If the release fails, it is retried in the background until the lease is over.
    if let Err(error) = guard.release().await {
        eprintln!("invoice {id}: {}", error.one_line());
    }
    Ok(format!("{sum}\n"))
}

/// Stands for a call to a payment provider.
async fn authorise(cents: i64) -> Result<(), Failure> {
    tokio::task::yield_now().await;
    if (1..=10_000_000).contains(&cents) {
        return Ok(());
    }
    Err(Failure::new(StatusCode::UNPROCESSABLE_ENTITY, "from 1 cent to 100000 euros"))
}

/// What the invoice comes to.
pub(crate) async fn show(
    State(service): State<Arc<Service>>,
    Path(id): Path<i64>,
) -> Result<String, Failure> {
    let client = service.pool.get().await?;
    let row = client.query_opt("SELECT cents FROM invoice WHERE id = $1", &[&id]).await?;
    let row = row.ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, "no such invoice"))?;
    Ok(format!("{}\n", row.get::<_, i64>(0)))
}
