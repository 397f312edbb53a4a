//! Puts the fence's tables and functions into a database, once.

use fencepost_base::postgres::error::if_not_allowed;
use fencepost_base::postgres::install::Component;
use fencepost_base::{Error, Result};
use tokio_postgres::Client;

use super::explain;

const FENCES: Component = Component {
    name: "fences",
    migrations: &[include_str!("fences_1.sql")],
    how: "fencepost fence install --resource URL",
};

/// The first server that has `pg_current_xact_id()`.
const OLDEST: i32 = 130_000;

/// What [`install()`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// The fence was there already, in this version.
    Already,
    /// The fence was put there, or brought to this version.
    Now,
}

/// Puts the fence into the database, in the schema `fencepost`. All of it or nothing; who comes second finds it
/// done. It is a transaction of its own: call it outside of one.
pub async fn install(client: &Client) -> Result<Installed> {
    let ask = "SELECT pg_catalog.current_setting('server_version_num')::pg_catalog.int4";
    let row = client.query_typed_one(ask, &[]).await.map_err(|error| explain(&error))?;
    let server: i32 = row.try_get(0).map_err(|error| explain(&error))?;
    if server < OLDEST {
        let (found, oldest) = (server / 10_000, OLDEST / 10_000);
        return Err(Error::refused(format!(
            "this is PostgreSQL {found}, and the fence needs {oldest} or later: upgrade the server"
        )));
    }
    match FENCES.install_on(client, None, "this database").await {
        Ok(done) if done.before == done.now => Ok(Installed::Already),
        Ok(_) => Ok(Installed::Now),
        Err(error) => {
            // What it had begun; if that fails too, the connection is gone, and it with it.
            let _ = client.batch_execute("ROLLBACK").await;
            let remedy = "this role may not install the fence: run `fencepost fence install --resource URL` as \
                          a role that may create a schema, or as the owner of the schema fencepost";
            Err(if_not_allowed(error, |_| remedy.to_owned()).into())
        }
    }
}
