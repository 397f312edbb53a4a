//! What lies in the database, in parts that are made and brought up to date one by one.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use tokio::runtime::Handle;

use super::Postgres;
use super::server_info::Found;
use crate::clock::BootClock;
use crate::error::{Error, Result};
use crate::postgres::Pool;
use crate::postgres::error::no_schema;
use crate::postgres::install::Component;
use crate::store_error::StoreError;
use crate::store_url::StoreUrl;

/// How to make what is missing.
const INSTALL: &str = "fencepost backend install --on URL";
/// What locks need in the database.
pub(super) const LOCKS: Component =
    Component { name: "locks", migrations: &[include_str!("locks_1.sql")], how: INSTALL };
/// What elections and records need.
pub(super) const RECORDS: Component =
    Component { name: "records", migrations: &[include_str!("records_1.sql")], how: INSTALL };

/// Sees that the component "records" is there, or makes it, once.
pub(super) async fn records_ready(store: &Postgres) -> Result<(), StoreError> {
    if store.records_there.load(Ordering::Acquire) {
        return Ok(());
    }
    if store.create {
        let done = RECORDS.ready(&store.pool).await?;
        if done.before != done.now {
            let read = Found::read(&store.pool).await?;
            let mut found = store.found.lock();
            *found = read.after(&found);
        }
    } else if RECORDS.found(&store.pool).await? == 0 {
        return Err(no_schema(store.pool.shown()));
    }
    store.records_there.store(true, Ordering::Release);
    Ok(())
}

/// A part of what a store keeps on a server, as it was found and as it is left: versions, 0 for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installed {
    /// Which part.
    pub component: &'static str,
    /// What was there.
    pub before: u32,
    /// What is there now.
    pub now: u32,
}

/// Makes what locks, elections and records need in the database, or brings it up to date. Clients do so as well when
/// they need it: this is for a role that may, on behalf of those that may not. On a tokio runtime.
pub async fn install(url: &str) -> Result<Vec<Installed>> {
    let StoreUrl::Postgres(url) = StoreUrl::parse(url)? else {
        return Err(Error::invalid(
            "there is nothing to install: only a postgres: store keeps anything that has to be made first",
        ));
    };
    crate::clock::start()?;
    let pool = Pool::new(*url, Arc::new(BootClock), Handle::current());
    let found = Found::read(&pool).await?;
    found.check(pool.shown())?;
    let version = |number: i32| u32::try_from(number).unwrap_or(0);
    let mut installed = Vec::new();
    for part in [LOCKS, RECORDS] {
        let done = part.ready(&pool).await?;
        let (before, now) = (version(done.before), version(done.now));
        installed.push(Installed { component: part.name, before, now });
    }
    Ok(installed)
}
