//! The resource in a PostgreSQL database.

use fencepost::fences::postgres::tokio_postgres::error::SqlState;
use fencepost::fences::postgres::tokio_postgres::{self, Client, Transaction};
use fencepost::{Error, ErrorKind, LockName, fences};

use super::{Fence, Tables};
use crate::error::Result;

pub(crate) struct Session {
    client: Client,
    tables: Tables,
}

impl Session {
    pub(super) async fn open(url: &str, tables: Tables) -> Result<Self> {
        let client = fences::postgres::connect(url).await?;
        Ok(Self { client, tables })
    }

    /// Checks first: if the fence is installed, a role that can enter need not be its owner.
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
        self.create(&self.tables.create_account(balance)).await
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

    pub(super) async fn create_ledger(&self, unique: bool) -> Result<()> {
        self.create(&self.tables.create_ledger(unique)).await
    }

    pub(super) async fn run_if_absent(&mut self, tick: &str) -> Result<bool> {
        let (run, effect) = (self.tables.insert_run(), self.tables.insert_effect());
        let tx = self.begin(None).await?;
        let inserted = tx.execute(&run, &[&tick]).await.map_err(|error| failed(&error))? == 1;
        if inserted {
            tx.execute(&effect, &[&tick]).await.map_err(|error| failed(&error))?;
        }
        tx.commit().await.map_err(|error| failed(&error))?;
        Ok(inserted)
    }

    pub(super) async fn run(&self, tick: &str) -> Result<()> {
        let inserted = self.client.execute(&self.tables.insert_effect(), &[&tick]).await;
        inserted.map_err(|error| failed(&error))?;
        Ok(())
    }

    pub(super) async fn runs(&self, tick: &str) -> Result<u64> {
        let count = self.tables.count_effects();
        let row = self.client.query_one(&count, &[&tick]).await.map_err(|error| failed(&error))?;
        Ok(row.try_get::<_, i64>(0).map_err(|error| failed(&error))?.unsigned_abs())
    }

    pub(super) async fn drop_tables(&self) -> Result<()> {
        let dropped = self.client.batch_execute(&self.tables.drop_all()).await;
        Ok(dropped.map_err(|error| failed(&error))?)
    }

    pub(super) async fn forget(&self, name: &LockName) -> Result<()> {
        let sql = "DELETE FROM fencepost.marks WHERE name = $1";
        if self.client.execute(sql, &[&name.as_str()]).await.is_err() {
            // Only the fence's owner can delete. An admin can reset, which leaves a record.
            let why = "the lab is over";
            let reset = fences::postgres::reset(&self.client, name, None, "fencepost lab", why);
            reset.await.map_err(|error| match error.kind() {
                ErrorKind::Refused => Error::refused("this role cannot reset marks"),
                _ => error,
            })?;
        }
        Ok(())
    }

    /// Creates tables. A role that can enter the fence may lack this privilege, so the error has its own remedy.
    async fn create(&self, sql: &str) -> Result<()> {
        let created = self.client.batch_execute(sql).await.map_err(|error| {
            if error.code() == Some(&SqlState::INSUFFICIENT_PRIVILEGE) {
                let reply = error.as_db_error().map_or_else(String::new, |error| error.message().into());
                return Error::refused(
                    "this role cannot create the lab's tables: GRANT CREATE ON SCHEMA public to it, or \
                     name another --resource",
                )
                .with_source(reply);
            }
            failed(&error)
        });
        Ok(created?)
    }

    async fn begin(&mut self, fence: Fence<'_>) -> Result<Transaction<'_>> {
        if let Some(fencing) = fence {
            return Ok(fences::postgres::begin(&mut self.client, fencing).await?);
        }
        Ok(self.client.transaction().await.map_err(|error| failed(&error))?)
    }
}

fn failed(error: &tokio_postgres::Error) -> Error {
    fences::postgres::explain(error)
}
