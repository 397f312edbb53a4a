//! `backend install`: creates the schema of a store, for roles that cannot create it themselves.

use fencepost::backends::postgres;
use serde_json::json;

use crate::exit::{self, Failure};
use crate::out;

/// Creates or upgrades each component, and prints what was done.
pub(crate) async fn install(url: &str, json: bool) -> Result<u8, Failure> {
    let installed = postgres::install(url).await?;
    if json {
        for postgres::Installed { component, before, now } in installed {
            out::json(&json!({ "component": component, "before": before, "now": now }))?;
        }
        return Ok(exit::OK);
    }
    let line = |postgres::Installed { component, before, now }| {
        let done = match before {
            0 => format!("created version {now}"),
            _ if before == now => format!("version {now} is already installed: nothing to do"),
            _ => format!("upgraded from version {before} to version {now}"),
        };
        format!("schema \"fencepost\", {component}: {done}\n")
    };
    out::done(&installed.into_iter().map(line).collect::<String>())
}
