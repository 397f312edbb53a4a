//! The service's own connections, and its tables.

use std::error::Error;
use std::time::Duration;

use deadpool::Runtime;
use deadpool::managed::{self, BuildError, Metrics, RecycleError, RecycleResult};
use fencepost::Fencepost;
use fencepost::fences::postgres::{self as fence, NameFrom, tokio_postgres::Client};

const TABLES: &str = "
    CREATE TABLE IF NOT EXISTS invoice (
        id bigint PRIMARY KEY,
        cents bigint NOT NULL DEFAULT 0,
        lock_name text GENERATED ALWAYS AS ('invoice/' || id) STORED
    );
    CREATE TABLE IF NOT EXISTS rate (
        currency text PRIMARY KEY, cents_per_euro bigint NOT NULL, term bigint NOT NULL
    );
    CREATE TABLE IF NOT EXISTS closing (
        day text NOT NULL, invoices bigint NOT NULL, cents bigint NOT NULL
    );";

pub(crate) type Pool = managed::Pool<Connections>;

pub(crate) fn pool(url: String) -> Result<Pool, BuildError> {
    let pool = Pool::builder(Connections { url }).max_size(8).runtime(Runtime::Tokio1);
    pool.wait_timeout(Some(Duration::from_secs(5))).build()
}

/// How the pool connects: by the same URL as the lock store, with its options for TLS.
pub(crate) struct Connections {
    url: String,
}

impl managed::Manager for Connections {
    type Type = Client;
    type Error = fencepost::Error;

    async fn create(&self) -> fencepost::Result<Client> {
        fence::connect(&self.url).await
    }

    async fn recycle(&self, client: &mut Client, _: &Metrics) -> RecycleResult<fencepost::Error> {
        if client.is_closed() { Err(RecycleError::message("closed by the server")) } else { Ok(()) }
    }
}

/// Creates what is missing. Two `CREATE TABLE IF NOT EXISTS` at once can collide, so one instance does it at a time.
pub(crate) async fn migrate(fp: &Fencepost, pool: &Pool) -> Result<(), Box<dyn Error>> {
    let guard = fp.lock("service/migrate").acquire().await?;
    let client = pool.get().await?;
    fence::install(&client).await?;
    client.batch_execute(TABLES).await?;
    // From now on a transaction that has not entered with the invoice's lock cannot write to it, even by psql.
    fence::protect(&*client, "invoice", NameFrom::Column("lock_name")).await?;
    guard.release().await?;
    Ok(())
}
