//! The resource in a PostgreSQL database.

use fencepost::tokio_postgres::{self, Client, Transaction};
use fencepost::{Error, fences};

use super::{Fence, Tables};
use crate::scene::Result;

pub(crate) struct Session {
    client: Client,
    tables: Tables,
}

impl Session {
    pub(super) async fn open(url: &str, tables: Tables) -> Result<Self> {
        let client = fences::postgres::connect(url).await?;
        Ok(Self { client, tables })
    }

    pub(super) async fn set_balance(&mut self, balance: i64) -> Result<()> {
        fences::postgres::install(&self.client).await?;
        self.run(&self.tables.made(balance)).await
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
        self.run(&self.tables.ledger(unique)).await
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

    pub(super) async fn run_if_not_done(&mut self, tick: &str) -> Result<bool> {
        let (count, act) = (self.tables.count(), self.tables.act());
        let tx = self.begin(None).await?;
        let row = tx.query_one(&count, &[&tick]).await.map_err(|error| failed(&error))?;
        let done: i64 = row.try_get(0).map_err(|error| failed(&error))?;
        if done == 0 {
            tx.execute(&act, &[&tick]).await.map_err(|error| failed(&error))?;
        }
        tx.commit().await.map_err(|error| failed(&error))?;
        Ok(done == 0)
    }

    pub(super) async fn runs(&self, tick: &str) -> Result<u64> {
        let count = self.tables.count();
        let row = self.client.query_one(&count, &[&tick]).await.map_err(|error| failed(&error))?;
        Ok(row.try_get::<_, i64>(0).map_err(|error| failed(&error))?.unsigned_abs())
    }

    pub(super) async fn clear(&self) -> Result<()> {
        self.run(&self.tables.dropped()).await
    }

    async fn run(&self, sql: &str) -> Result<()> {
        Ok(self.client.batch_execute(sql).await.map_err(|error| failed(&error))?)
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
