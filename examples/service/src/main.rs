//! A service of several instances on one PostgreSQL, which has its data, its locks and its fence.
//!
//! `charge.rs` locks an invoice and writes to a fenced table, `leader.rs` elects the instance that refreshes the exchange
//! rate, `nightly.rs` closes a day once, and `db.rs` has the connections and the tables. The README says how to run it.

mod charge;
mod db;
mod failure;
mod leader;
mod nightly;

use std::env;
use std::error::Error;
use std::io;
use std::sync::Arc;

use axum::Router;
use axum::routing::{get, post};
use fencepost::Fencepost;
use tokio::net::TcpListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// What the handlers share.
struct Service {
    fp: Fencepost,
    pool: db::Pool,
    leader: watch::Receiver<leader::Seen>,
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url =
        env::var("DATABASE_URL").map_err(|_| "set DATABASE_URL to postgres://USER@HOST/DB")?;
    let listen = env::var("LISTEN").unwrap_or_else(|_| "127.0.0.1:3000".into());
    let shutdown = shutdown()?;

    let fp = Fencepost::connect(url.as_str()).await?;
    let pool = db::pool(url)?;
    db::migrate(&fp, &pool).await?;

    let listener = TcpListener::bind(&listen).await?;
    let address = listener.local_addr()?.to_string();
    let (seen, leader) = watch::channel(Ok(None));
    let service = Arc::new(Service { fp, pool, leader });
    let app = Router::new()
        .route("/invoice/{id}", get(charge::show))
        .route("/invoice/{id}/charge", post(charge::charge))
        .route("/leader", get(leader::show))
        .route("/rate", get(leader::rate))
        .route("/nightly/{day}", post(nightly::close_day))
        .with_state(Arc::clone(&service));
    println!("listening on {address}");

    tokio::select! {
        // Ends after a signal, once the requests in flight are answered and their locks released.
        served = axum::serve(listener, app).with_graceful_shutdown(shutdown).into_future() => served?,
        failed = leader::lead(&service, &address) => { failed?; }
        failed = leader::observe(&service, &seen) => { failed?; }
    }
    // Here `lead` is dropped, and with it the leadership. `close` waits until the store knows.
    service.fp.close().await;
    Ok(())
}

/// Resolves on ctrl-c or TERM.
fn shutdown() -> io::Result<impl Future<Output = ()> + Send + 'static> {
    let (mut interrupt, mut terminate) =
        (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    Ok(async move {
        tokio::select! { _ = interrupt.recv() => {}, _ = terminate.recv() => {} }
    })
}
