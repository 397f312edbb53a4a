//! The components in the database, which are created and updated one by one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;

use super::Postgres;
use super::server_info::ServerInfo;
use crate::clock::BootClock;
use crate::error::{Error, Result};
use crate::postgres::error::no_schema;
use crate::postgres::install::Component;
use crate::postgres::{Pool, Server};
use crate::store_error::StoreError;
use crate::store_options::{StoreKind, StoreOptions};

/// How to create what is missing.
const INSTALL: &str = "fencepost backend install --on URL";
/// The component for locks.
pub(super) const LOCKS: Component = Component {
    name: "locks",
    version: 2,
    sql: include_str!("locks.sql"),
    how: INSTALL,
    older: "drop it as docs/layouts/postgres.md says, and keep the sequence fencepost.tokens, so that tokens go on from \
            the last one",
};
/// The component for elections and records.
pub(super) const RECORDS: Component = Component {
    name: "records",
    version: 2,
    sql: include_str!("records.sql"),
    how: INSTALL,
    older: "drop it as docs/layouts/postgres.md says. Work that is recorded there would run again",
};

/// Makes sure that the component "records" exists, once.
pub(super) async fn records_ready(store: &Postgres) -> Result<(), StoreError> {
    if store.records_there.load(Ordering::Acquire) {
        return Ok(());
    }
    if store.create {
        let done = RECORDS.ready(&store.pool).await?;
        if done.before != done.now {
            let read = ServerInfo::read(&store.pool).await?;
            let mut server_info = store.server_info.lock();
            *server_info = read.after(&server_info);
        }
    } else if RECORDS.installed_version(&store.pool).await? == 0 {
        return Err(no_schema(store.pool.shown()));
    }
    store.records_there.store(true, Ordering::Release);
    Ok(())
}

/// A component of a store on a server, before and after an installation: versions, 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The name of the component.
    pub component: &'static str,
    /// The version before.
    pub before: u32,
    /// The version now.
    pub now: u32,
}

/// Creates or updates the components for locks, elections and records in a database. Clients do so as well when they
/// need it: this is for a role that may, on behalf of roles that may not. Needs a tokio runtime.
pub async fn install(store: impl Into<StoreOptions>) -> Result<Vec<Installed>> {
    let StoreKind::Postgres(options) = store.into().0? else {
        return Err(Error::invalid(
            "there is nothing to install: only a postgres: store has a schema to create",
        ));
    };
    crate::clock::start()?;
    let pool = Pool::new(Server::new(*options)?, Arc::new(BootClock), Handle::current());
    let server_info = ServerInfo::read(&pool).await?;
    server_info.check(pool.shown())?;
    let version = |number: i32| u32::try_from(number).unwrap_or(0);
    let mut installed = Vec::new();
    for part in [LOCKS, RECORDS] {
        let done = part.ready(&pool).await?;
        let (before, now) = (version(done.before), version(done.now));
        installed.push(Installed { component: part.name, before, now });
    }
    Ok(installed)
}
