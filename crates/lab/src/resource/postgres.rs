//! The resource in a PostgreSQL database.

use fencepost::tokio_postgres::error::SqlState;
use fencepost::tokio_postgres::{self, Client, Transaction};
use fencepost::{Error, ErrorKind, LockName, fences};

use super::{Fence, Tables};
use crate::fault::Result;

pub(crate) struct Session {
    client: Client,
    tables: Tables,
}

impl Session {
    pub(super) async fn open(url: &str, tables: Tables) -> Result<Self> {
        let client = fences::postgres::connect(url).await?;
        Ok(Self { client, tables })
    }

    /// Asks first: where the fence is, its owner has seen to it, and a role that may enter need not own it.
    pub(super) async fn install_fence(&self) -> Result<bool> {
        let ask = "SELECT EXISTS (SELECT FROM pg_catalog.pg_proc p
                     JOIN pg_catalog.pg_namespace n ON n.oid = p.pronamespace
                    WHERE n.nspname = 'fencepost' AND p.proname = 'enter')";
        let row = self.client.query_one(ask, &[]).await.map_err(|error| failed(&error))?;
        if row.try_get(0).map_err(|error| failed(&error))? {
            return Ok(false);
        }
        let done = fences::postgres::install(&self.client).await?;
        Ok(done == fences::postgres::Installed::Now)
    }

    pub(super) async fn set_balance(&mut self, balance: i64) -> Result<()> {
        self.make(&self.tables.made(balance)).await
    }

    pub(super) async fn read(&mut self, fence: Fence<'_>) -> Result<i64> {
        let read = self.tables.read();
        let tx = self.begin(fence).await?;
        let row = tx.query_one(&read, &[]).await.map_err(|error| failed(&error))?;
        tx.commit().await.map_err(|error| failed(&error))?;
        Ok(row.try_get(0).map_err(|error| failed(&error))?)
    }

    pub(super) async fn write(&mut self, balance: i64, fence: Fence<'_>) -> Result<()> {
        let write = self.tables.write();
        let tx = self.begin(fence).await?;
        tx.execute(&write, &[&balance]).await.map_err(|error| failed(&error))?;
        Ok(tx.commit().await.map_err(|error| failed(&error))?)
    }

    pub(super) async fn make_ledger(&self, unique: bool) -> Result<()> {
        self.make(&self.tables.ledger(unique)).await
    }

    pub(super) async fn run_if_absent(&mut self, tick: &str) -> Result<bool> {
        let (claim, act) = (self.tables.claim(), self.tables.act());
        let tx = self.begin(None).await?;
        let ours = tx.execute(&claim, &[&tick]).await.map_err(|error| failed(&error))? == 1;
        if ours {
            tx.execute(&act, &[&tick]).await.map_err(|error| failed(&error))?;
        }
        tx.commit().await.map_err(|error| failed(&error))?;
        Ok(ours)
    }

    pub(super) async fn act(&mut self, tick: &str) -> Result<()> {
        let act = self.tables.act();
        let tx = self.begin(None).await?;
        tx.execute(&act, &[&tick]).await.map_err(|error| failed(&error))?;
        Ok(tx.commit().await.map_err(|error| failed(&error))?)
    }

    pub(super) async fn runs(&self, tick: &str) -> Result<u64> {
        let count = self.tables.count();
        let row = self.client.query_one(&count, &[&tick]).await.map_err(|error| failed(&error))?;
        Ok(row.try_get::<_, i64>(0).map_err(|error| failed(&error))?.unsigned_abs())
    }

    pub(super) async fn clear(&self) -> Result<()> {
        let dropped = self.client.batch_execute(&self.tables.dropped()).await;
        Ok(dropped.map_err(|error| failed(&error))?)
    }

    pub(super) async fn forget(&self, name: &LockName) -> Result<()> {
        let sql = "DELETE FROM fencepost.marks WHERE name = $1";
        if self.client.execute(sql, &[&name.as_str()]).await.is_err() {
            // For the fence's owner alone. An admin may reset, which keeps a record.
            let why = "the lab is over";
            let reset = fences::postgres::reset(&self.client, name, None, "fencepost lab", why);
            reset.await.map_err(|error| match error.kind() {
                ErrorKind::Refused => Error::refused("this role may not reset marks"),
                _ => error,
            })?;
        }
        Ok(())
    }

    /// Makes tables: the one thing that a role may be allowed to do with the fence and not here.
    async fn make(&self, sql: &str) -> Result<()> {
        let made = self.client.batch_execute(sql).await.map_err(|error| {
            if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
                let said = error.as_db_error().map_or_else(String::new, |found| found.message().into());
                return Error::refused(
                    "this role may not make the lab's tables: GRANT CREATE ON SCHEMA public to it, or \
                     name another --resource",
                )
                .because(said);
            }
            failed(&error)
        });
        Ok(made?)
    }

    async fn begin(&mut self, fence: Fence<'_>) -> Result<Transaction<'_>> {
        if let Some((name, token)) = fence {
            return Ok(fences::postgres::begin(&mut self.client, name, token).await?);
        }
        Ok(self.client.transaction().await.map_err(|error| failed(&error))?)
    }
}

fn failed(error: &tokio_postgres::Error) -> Error {
    fences::postgres::explain(error)
}
