//! PostgreSQL for the fence suite: a database of its own for each case.

use fencepost::backend::BoxFuture;
use fencepost::fences::postgres::tokio_postgres::{self, Client, NoTls, Transaction};
use fencepost::fences::{Mark, Reset, postgres};
use fencepost::{Error, Label, LockName, Result, Token};
use fencepost_conformance::Unable;
use fencepost_conformance::fences::{Fence, Marks, Resource};
use fencepost_testkit::Database;
use tokio::sync::{Mutex, MutexGuard};

use super::fencing;

pub(crate) struct InDatabase;

impl Fence for InDatabase {
    fn name(&self) -> &'static str {
        "postgres"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Resource>, Unable>> {
        Box::pin(async {
            let counters = Counters::open(Database::fresh()?).await?;
            let client = counters.client().await;
            postgres::install(&client).await?;
            client
                .batch_execute("CREATE TABLE counters (name text PRIMARY KEY, value bigint)")
                .await
                .map_err(failed)?;
            drop(client);
            Ok(Box::new(counters) as Box<dyn Resource>)
        })
    }
}

pub(crate) struct Counters {
    client: Mutex<Client>,
    database: Database,
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` takes")]
fn failed(error: tokio_postgres::Error) -> Error {
    postgres::explain(&error)
}

impl Counters {
    async fn open(database: Database) -> Result<Self> {
        let (client, connection) =
            tokio_postgres::connect(&database.url(), NoTls).await.map_err(failed)?;
        tokio::spawn(connection);
        // The suite is not about crashes.
        client.batch_execute("SET synchronous_commit = off").await.map_err(failed)?;
        Ok(Self { client: Mutex::new(client), database })
    }

    async fn client(&self) -> MutexGuard<'_, Client> {
        self.client.lock().await
    }
}

async fn begin<'c>(
    client: &'c mut Client,
    name: &LockName,
    token: Option<Token>,
) -> Result<Transaction<'c>> {
    match token {
        Some(token) => postgres::begin(client, &fencing(name, token)).await,
        None => client.transaction().await.map_err(failed),
    }
}

async fn set(tx: &Transaction<'_>, name: &LockName, value: i64) -> Result<()> {
    let sql = "INSERT INTO counters VALUES ($1, $2) ON CONFLICT (name) DO UPDATE SET value = $2";
    tx.execute(sql, &[&name.as_str(), &value]).await.map(|_| ()).map_err(failed)
}

impl Resource for Counters {
    fn another(&self) -> BoxFuture<'_, Result<Box<dyn Resource>>> {
        Box::pin(async {
            let other = Self::open(self.database.clone()).await?;
            Ok(Box::new(other) as Box<dyn Resource>)
        })
    }

    fn read<'a>(&'a self, name: &'a LockName, token: Option<Token>) -> BoxFuture<'a, Result<i64>> {
        Box::pin(async move {
            let mut client = self.client().await;
            let tx = begin(&mut client, name, token).await?;
            let sql = "SELECT coalesce(max(value), 0) FROM counters WHERE name = $1";
            let row = tx.query_one(sql, &[&name.as_str()]).await.map_err(failed)?;
            tx.commit().await.map_err(failed)?;
            Ok(row.get(0))
        })
    }

    fn write<'a>(
        &'a self,
        name: &'a LockName,
        token: Option<Token>,
        value: i64,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut client = self.client().await;
            let tx = begin(&mut client, name, token).await?;
            set(&tx, name, value).await?;
            tx.commit().await.map_err(failed)
        })
    }

    fn abandon<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        value: i64,
    ) -> Option<BoxFuture<'a, Result<()>>> {
        Some(Box::pin(async move {
            let mut client = self.client().await;
            let tx = begin(&mut client, name, Some(token)).await?;
            set(&tx, name, value).await?;
            tx.rollback().await.map_err(failed)
        }))
    }

    fn marks(&self) -> Option<&dyn Marks> {
        Some(self)
    }
}

impl Marks for Counters {
    fn enter<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        who: &'a Label,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let mut client = self.client().await;
            let tx = client.transaction().await.map_err(failed)?;
            postgres::enter_as(&tx, &fencing(name, token), who).await?;
            tx.commit().await.map_err(failed)
        })
    }

    fn mark<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Option<Mark>>> {
        Box::pin(async move { postgres::mark(&*self.client().await, name).await })
    }

    fn show<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Mark>>> {
        Box::pin(async move { postgres::show(&*self.client().await, name).await })
    }

    fn reset<'a>(
        &'a self,
        name: &'a LockName,
        to: Option<Token>,
        by: &'a str,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Option<Mark>>> {
        Box::pin(async move { postgres::reset(&*self.client().await, name, to, by, why).await })
    }

    fn audit<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Reset>>> {
        Box::pin(async move { postgres::audit(&*self.client().await, name).await })
    }
}
