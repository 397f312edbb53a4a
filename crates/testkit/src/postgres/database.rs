//! A database for each test, because a server starts slowly.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use super::{Postgres, SUPERUSER};

/// An empty database, removed with its server.
#[derive(Clone, Debug)]
pub struct Database {
    server: Arc<Postgres>,
    name: String,
}

impl Database {
    /// A new database on the server that the tests of this process share.
    pub fn fresh() -> io::Result<Self> {
        Self::create(&Postgres::shared()?)
    }

    pub(super) fn create(server: &Arc<Postgres>) -> io::Result<Self> {
        static MADE: AtomicU32 = AtomicU32::new(1);
        let name = format!("test_{}", MADE.fetch_add(1, Ordering::Relaxed));
        // No client is ever connected to template0, but one might be to template1.
        server.psql(&format!("create database {name} template template0"))?;
        Ok(Self { server: server.clone(), name })
    }

    /// `postgres://postgres@127.0.0.1:PORT/NAME`.
    #[must_use]
    pub fn url(&self) -> String {
        self.url_as(SUPERUSER)
    }

    /// The same for another user.
    #[must_use]
    pub fn url_as(&self, user: &str) -> String {
        format!("postgres://{user}@127.0.0.1:{}/{}", self.server.port(), self.name)
    }

    /// Its name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The server it is of.
    #[must_use]
    pub fn server(&self) -> &Arc<Postgres> {
        &self.server
    }

    /// Runs `psql` with this SQL in this database: see [`Postgres::psql`].
    pub fn psql(&self, sql: &str) -> io::Result<String> {
        self.server.psql_at(&self.url(), sql)
    }

    /// The same as another user.
    pub fn psql_as(&self, user: &str, sql: &str) -> io::Result<String> {
        self.server.psql_at(&self.url_as(user), sql)
    }
}
