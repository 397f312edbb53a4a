//! One of the instances leads: it refreshes the exchange rate. Each instance knows which one.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::http::StatusCode;
use fencepost::{Election, Error, FencingToken, Leader, Term, fences};
use tokio::sync::watch;

use crate::Service;
use crate::db::Pool;
use crate::failure::Failure;

/// Who leads, as far as this instance knows.
pub(crate) type Seen = Result<Option<Leader>, Error>;

/// After a crash of the leader the next one leads when this is over.
const TTL: Duration = Duration::from_secs(5);

fn election(service: &Service) -> Election {
    service.fp.election("rates").ttl(TTL)
}

/// Campaigns again and again, and leads whenever it is elected. Returns only if the store refuses it.
pub(crate) async fn lead(service: &Service, address: &str) -> Result<Infallible, Error> {
    let work = |term: Term| async move {
        println!("leading in term {}", term.number());
        refresh_rate(&service.pool, &term.fencing()).await
    };
    election(service).lead(address, work).await
}

/// The leader's work: goes on until it is dropped.
async fn refresh_rate(pool: &Pool, fencing: &FencingToken) -> Infallible {
    let mut every = tokio::time::interval(Duration::from_millis(500));
    loop {
        every.tick().await;
        // Nothing to do about a stale term: then the leadership is lost, too, and this loop is dropped.
        if let Err(failure) = refresh_once(pool, fencing).await {
            eprintln!("the rate was not refreshed: {}", failure.message);
        }
    }
}

async fn refresh_once(pool: &Pool, fencing: &FencingToken) -> Result<(), Failure> {
    let mut client = pool.get().await?;
    let tx = fences::postgres::begin(&mut client, fencing).await?;
    let term = fencing.token().get().cast_signed();
    let rate = 100 + term % 20; // a real service asks a bank
    let write = "INSERT INTO rate VALUES ('USD', $1, $2) ON CONFLICT (currency)
                 DO UPDATE SET cents_per_euro = excluded.cents_per_euro, term = excluded.term";
    tx.execute(write, &[&rate, &term]).await?;
    Ok(tx.commit().await?)
}

/// Follows who leads.
pub(crate) async fn observe(
    service: &Service,
    seen: &watch::Sender<Seen>,
) -> Result<Infallible, Error> {
    let mut pause = tokio::time::interval(Duration::from_secs(1));
    loop {
        let mut observer = election(service).observe()?;
        let error = loop {
            match observer.next().await {
                Ok(leader) => drop(seen.send_replace(Ok(leader))),
                Err(error) => break error,
            }
        };
        // While the store cannot be reached each call fails at once. A new observer shows who leads by
        // then; this one would show only a change.
        drop(seen.send_replace(Err(error)));
        pause.reset();
        pause.tick().await;
    }
}

/// `GET /leader`: its address and term.
pub(crate) async fn show(State(service): State<Arc<Service>>) -> Result<String, Failure> {
    match service.leader.borrow().clone()? {
        Some(Leader { term: Some(term), value: Some(value), .. }) => {
            Ok(format!("{} {term}\n", value.text()))
        }
        // Or an operator holds the name with a plain lock, which has no value.
        _ => Err(Failure::new(StatusCode::NOT_FOUND, "nobody leads")),
    }
}

/// `GET /rate`: cents per euro, and the term of the leader that wrote it.
pub(crate) async fn rate(State(service): State<Arc<Service>>) -> Result<String, Failure> {
    let client = service.pool.get().await?;
    let row = client.query_opt("SELECT cents_per_euro, term FROM rate", &[]).await?;
    let row = row.ok_or_else(|| Failure::new(StatusCode::NOT_FOUND, "not known yet"))?;
    Ok(format!("{} {}\n", row.get::<_, i64>(0), row.get::<_, i64>(1)))
}
