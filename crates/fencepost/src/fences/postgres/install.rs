//! Puts the fence's tables and functions into a database, once.

use tokio_postgres::{Client, GenericClient};

use super::explain;
use crate::error::{Error, Result};

/// The component's versions, oldest first.
const MIGRATIONS: &[&str] = &[include_str!("fences_1.sql")];

/// The first server that has `pg_current_xact_id()`.
const OLDEST: i32 = 130_000;

/// "fencepos" in ASCII: all who make or change the schema take turns by this lock.
const ADVISORY: i64 = 0x6665_6e63_6570_6f73;

/// What all components have in common.
const BASE: &str = "
CREATE SCHEMA IF NOT EXISTS fencepost;
CREATE TABLE IF NOT EXISTS fencepost.components (component text PRIMARY KEY, version int NOT NULL);
GRANT SELECT ON fencepost.components TO PUBLIC;
";

/// What [`install`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The fence was there already, in this version.
    Already,
    /// The fence was put there, or brought to this version.
    Now,
}

/// Puts the fence into the database, in the schema `fencepost`. All of it or nothing; who comes second finds it done.
pub async fn install(client: &mut Client) -> Result<Installed> {
    let tx = client.transaction().await.map_err(|error| explain(&error))?;
    let server: i32 = one(&tx, "SELECT current_setting('server_version_num')::int").await?;
    if server < OLDEST {
        let (found, oldest) = (server / 10_000, OLDEST / 10_000);
        return Err(Error::refused(format!(
            "this is PostgreSQL {found}, and the fence needs {oldest} or later: upgrade the server"
        )));
    }
    run(&tx, &format!("SELECT pg_advisory_xact_lock({ADVISORY})")).await?;
    // Looked at before it is asked for: to be told that it is there takes the right to make it.
    let ask = "SELECT to_regnamespace('fencepost') IS NULL OR to_regclass('fencepost.components') IS NULL";
    if one(&tx, ask).await? {
        run(&tx, BASE).await?;
    }
    let version: i32 = one(
        &tx,
        "SELECT coalesce(max(version), 0) FROM fencepost.components WHERE component = 'fences'",
    )
    .await?;
    let ours = i32::try_from(MIGRATIONS.len()).unwrap_or(i32::MAX);
    if version > ours {
        return Err(Error::refused(format!(
            "the fence in this database has version {version}, and this fencepost knows up to {ours}: use \
             the newer fencepost that put it there"
        )));
    }
    if version == ours {
        return Ok(Installed::Already);
    }
    for migration in MIGRATIONS.iter().skip(usize::try_from(version).unwrap_or(0)) {
        run(&tx, migration).await?;
    }
    let note = format!(
        "INSERT INTO fencepost.components VALUES ('fences', {ours}) \
         ON CONFLICT (component) DO UPDATE SET version = excluded.version"
    );
    run(&tx, &note).await?;
    tx.commit().await.map_err(|error| explain(&error))?;
    Ok(Installed::Now)
}

async fn run(tx: &impl GenericClient, sql: &str) -> Result<()> {
    tx.batch_execute(sql).await.map_err(|error| privileged(&error))
}

async fn one<T>(tx: &impl GenericClient, sql: &str) -> Result<T>
where
    T: for<'a> tokio_postgres::types::FromSql<'a>,
{
    let row = tx.query_typed(sql, &[]).await.map_err(|error| privileged(&error))?;
    let value = row.first().map(|row| row.try_get(0));
    match value {
        Some(Ok(value)) => Ok(value),
        _ => Err(Error::refused("this server does not answer as PostgreSQL does")),
    }
}

fn privileged(error: &tokio_postgres::Error) -> Error {
    if error.code() == Some(&tokio_postgres::error::SqlState::INSUFFICIENT_PRIVILEGE) {
        let text = error.as_db_error().map_or_else(String::new, |error| error.message().to_owned());
        return Error::refused(
            "this role may not install the fence: run `fencepost fence install --resource URL` as a \
             role that may create a schema, or as the owner of the schema fencepost",
        )
        .because(text);
    }
    explain(error)
}
