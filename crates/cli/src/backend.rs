//! `backend install`: makes what a store keeps on a server, for those who may not make it.

use fencepost::backends::postgres;
use serde_json::json;

use crate::exit::{self, Failure};
use crate::out;

/// Makes it, or brings it up to date, and says which.
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
            0 => format!("made version {now}"),
            _ if before == now => format!("version {now} is there already: nothing to do"),
            _ => format!("brought version {before} up to version {now}"),
        };
        format!("schema \"fencepost\", {component}: {done}\n")
    };
    out::done(&installed.into_iter().map(line).collect::<String>())
}
