//! Creates the tables and functions of the fence in a database.

use fencepost_base::postgres::error::if_not_allowed;
use fencepost_base::postgres::install::Component;
use fencepost_base::{Error, Result};
use tokio_postgres::Client;

use super::explain;

const FENCES: Component = Component {
    name: "fences",
    version: 2,
    sql: include_str!("fences.sql"),
    how: "fencepost fence install --resource URL",
    older: "replace it as docs/layouts/fences.md says, which keeps its marks",
};

/// The first server that has `pg_current_xact_id()`.
const OLDEST: i32 = 130_000;

/// What [`install()`] did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Installed {
    /// This version was installed already.
    Already,
    /// The fence was installed, or upgraded to this version.
    Now,
}

/// Installs the fence in the schema `fencepost`, all of it or nothing. Safe to call twice, or from several clients at
/// once. It is a transaction of its own: call it outside of one.
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
            // If that fails, the connection is lost, and the transaction with it.
            let _ = client.batch_execute("ROLLBACK").await;
            let remedy = "this role may not install the fence: run `fencepost fence install --resource URL` as \
                          a role that may create a schema, or as the owner of the schema fencepost";
            Err(if_not_allowed(error, |_| remedy.to_owned()).into())
        }
    }
}
