//! Creates the schema `fencepost` in a database.
//!
//! It has components, each with a version: `locks`, `records`, and the marks of fences. A component is one SQL text, run in
//! one transaction. Another version than ours is refused: if it counted as absent, its tokens would restart. The
//! transaction holds one advisory lock of the database, so two clients do not install at once. It never waits long, neither
//! for that lock nor while it holds it: others would queue behind it for a table. If it does not get a lock soon, it gives
//! up and retries.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::error::{explain, if_not_allowed, state};
use super::pool::{Parameter, Pool, Use};
use super::trust;
use crate::race::{First, race};
use crate::store_error::StoreError;

/// "fencepos" in ASCII. Advisory locks are shared with other software, and nothing else uses this number.
const ADVISORY: i64 = 0x6665_6e63_6570_6f73;
/// The timeout of an installation. Another client may be installing.
const INSTALL_TIMEOUT: Duration = Duration::from_secs(20);
/// How long the server lets us wait for the advisory lock, and for a table that others use. These are the server's
/// timeouts, because a session whose client is gone would continue to wait.
const ADVISORY_LOCK_TIMEOUT: &str = "2s";
const TABLE_LOCK_TIMEOUT: &str = "300ms";
/// How many attempts are made. All of them together take less than [`INSTALL_TIMEOUT`].
const MAX_ATTEMPTS: u32 = 8;

const BASE: &str = "
CREATE TABLE IF NOT EXISTS fencepost.components (component text PRIMARY KEY, version int NOT NULL);
GRANT SELECT ON fencepost.components TO PUBLIC;
";

/// The version of a component, 0 if there is none.
const VERSION: &str = "SELECT pg_catalog.max(version) FROM fencepost.components \
                       WHERE component OPERATOR(pg_catalog.=) $1";

/// A role with the same name as the schema has it as its `"$user"`: tables that it creates without naming a schema would be
/// created among ours.
const NAMESAKE: &str = "
SELECT CURRENT_USER OPERATOR(pg_catalog.=) 'fencepost' AND EXISTS (
  SELECT FROM pg_catalog.regexp_split_to_table(pg_catalog.current_setting('search_path'), ',') AS part
   WHERE pg_catalog.btrim(part, ' \"') OPERATOR(pg_catalog.=) '$user')";

/// The owner of the schema, if others could change what is in it: our functions run with our rights.
const OTHERS: &str = "
SELECT pg_get_userbyid(n.nspowner)::text FROM pg_namespace n
 WHERE n.nspname = 'fencepost'
   AND (n.nspowner <> current_user::regrole
        OR EXISTS (SELECT FROM aclexplode(n.nspacl) a
                    WHERE a.privilege_type = 'CREATE' AND a.grantee <> n.nspowner)
        OR EXISTS (SELECT FROM pg_class c WHERE c.relnamespace = n.oid AND c.relowner <> n.nspowner)
        OR EXISTS (SELECT FROM pg_proc p WHERE p.pronamespace = n.oid AND p.proowner <> n.nspowner))";

/// A part of the schema.
#[derive(Clone, Copy, Debug)]
pub struct Component {
    pub name: &'static str,
    /// The version that this program knows.
    pub version: i32,
    /// Creates it.
    pub sql: &'static str,
    /// The command that installs it, for a role that may.
    pub how: &'static str,
    /// What to do about an older version, and what must not be lost with it.
    pub older: &'static str,
}

/// The versions before and now; 0 for none.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installed {
    pub before: i32,
    pub now: i32,
}

impl Component {
    /// Installs the component if it is missing. Refuses another version.
    pub async fn ready(&self, pool: &Pool) -> Result<Installed, StoreError> {
        let before = self.read_version(pool).await?;
        if before == self.version {
            return Ok(Installed { before, now: before });
        }
        self.check(before, pool.shown())?;
        let limit = pool.clock().now() + INSTALL_TIMEOUT;
        match race(self.install(pool), pool.clock().alarm(limit)).await {
            First::Left(done) => done.map_err(|error| self.explained(error, pool)),
            First::Right(()) => Err(StoreError::no_reply(format!(
                "{} did not install the schema \"fencepost\" in time: try again",
                pool.shown()
            ))),
        }
    }

    /// The installed version, 0 for none. Installs nothing; refuses another version.
    pub async fn installed_version(&self, pool: &Pool) -> Result<i32, StoreError> {
        let found = self.read_version(pool).await?;
        self.check(found, pool.shown())?;
        Ok(found)
    }

    /// The installed version.
    async fn read_version(&self, pool: &Pool) -> Result<i32, StoreError> {
        let name: [Parameter<'_>; 1] = [(&self.name, Type::TEXT)];
        match pool.call(Use::Asking, VERSION, &name, pool.call_limit()).await {
            Ok(reply) => match reply.value.first().map(|row| row.try_get::<_, Option<i32>>(0)) {
                Some(Ok(version)) => Ok(version.unwrap_or(0)),
                _ => Err(StoreError::refused(format!("unexpected reply from {}", pool.shown()))),
            },
            Err(error) => match state(&error) {
                Some(&(SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME)) => Ok(0),
                _ => Err(self.explained(error, pool)),
            },
        }
    }

    /// Refuses another version than ours; 0 is none.
    fn check(&self, found: i32, shown: &str) -> Result<(), StoreError> {
        if found == 0 || found == self.version {
            return Ok(());
        }
        let Self { name, version, older, .. } = self;
        let remedy = if found > *version {
            "update this program".to_owned()
        } else {
            format!("stop all clients of the earlier fencepost, and {older}")
        };
        Err(StoreError::refused(format!(
            "the schema \"fencepost\" at {shown} has version {found} of \"{name}\", and this program knows \
             version {version}: {remedy}"
        )))
    }

    async fn install(&self, pool: &Pool) -> Result<Installed, StoreError> {
        let conn = pool.open(pool.clock().now() + INSTALL_TIMEOUT).await?;
        // Without a commit, the end of the connection undoes everything.
        self.install_on(&conn.client, pool.owner(), pool.shown()).await
    }

    /// The same on the caller's connection. The caller ends the transaction if it fails.
    pub async fn install_on(
        &self,
        client: &Client,
        owner: Option<&str>,
        shown: &str,
    ) -> Result<Installed, StoreError> {
        let failed = failed_at(shown);
        let schema = trust::look(client, owner, shown).await?;
        if schema == trust::Schema::Missing {
            let row = client.query_typed_one(NAMESAKE, &[]).await.map_err(failed)?;
            if row.try_get(0).map_err(failed)? {
                return Err(namesake(shown));
            }
        } else if self.is_installed(client).await {
            let now = self.version;
            return Ok(Installed { before: now, now });
        }
        let mut attempts = 1;
        loop {
            match self.attempt(client, shown).await {
                Err(error)
                    if state(&error) == Some(&SqlState::LOCK_NOT_AVAILABLE)
                        && attempts < MAX_ATTEMPTS =>
                {
                    // Let sessions that queued behind us go first.
                    let pause = "ROLLBACK; SELECT pg_catalog.pg_sleep(0.05)";
                    client.batch_execute(pause).await.map_err(failed)?;
                    attempts += 1;
                }
                done => return done,
            }
        }
    }

    /// One attempt, which waits for nothing long.
    async fn attempt(&self, client: &Client, shown: &str) -> Result<Installed, StoreError> {
        let failed = failed_at(shown);
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL search_path = pg_catalog, pg_temp; \
             SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '{ADVISORY_LOCK_TIMEOUT}'; SELECT pg_advisory_xact_lock({ADVISORY}); SET LOCAL lock_timeout = '{TABLE_LOCK_TIMEOUT}'"
        );
        client.batch_execute(&begin).await.map_err(failed)?;
        let (no_schema, no_base) = self.survey(client, shown).await?;
        if no_schema {
            client.batch_execute("CREATE SCHEMA fencepost").await.map_err(failed)?;
        }
        if no_base {
            client.batch_execute(BASE).await.map_err(failed)?;
        }
        let row =
            client.query_typed_one(VERSION, &[(&self.name, Type::TEXT)]).await.map_err(failed)?;
        let before: i32 = row.try_get::<_, Option<i32>>(0).map_err(failed)?.unwrap_or(0);
        // Another client may have installed it while we waited for the lock.
        self.check(before, shown)?;
        if before == 0 {
            client.batch_execute(self.sql).await.map_err(failed)?;
        }
        let note = "INSERT INTO fencepost.components (component, version) VALUES ($1, $2) \
                    ON CONFLICT (component) DO UPDATE SET version = excluded.version";
        let (name, now) = (self.name, self.version);
        let values: [Parameter<'_>; 2] = [(&name, Type::TEXT), (&now, Type::INT4)];
        client.query_typed(note, &values).await.map_err(failed)?;
        client.batch_execute("COMMIT").await.map_err(failed)?;
        Ok(Installed { before, now })
    }

    /// Whether this version is installed, for a role that only uses it. A role that may install also checks who owns it.
    async fn is_installed(&self, client: &Client) -> bool {
        let ask = "SELECT version FROM fencepost.components WHERE component OPERATOR(pg_catalog.=) $1 AND NOT
                   pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')";
        let found = client.query_typed_one(ask, &[(&self.name, Type::TEXT)]).await;
        found.is_ok_and(|row| row.try_get(0).is_ok_and(|version: i32| version == self.version))
    }

    /// Whether the schema and the table of components are missing. Refuses to install where other roles could change what is
    /// installed.
    async fn survey(&self, client: &Client, shown: &str) -> Result<(bool, bool), StoreError> {
        let failed = failed_at(shown);
        // Checked first: `CREATE ... IF NOT EXISTS` needs the privilege to create even if it exists.
        let ask = "SELECT to_regnamespace('fencepost') IS NULL,
                          to_regnamespace('fencepost') IS NULL OR to_regclass('fencepost.components') IS NULL";
        let row = client.query_typed_one(ask, &[]).await.map_err(failed)?;
        let missing = |part| row.try_get::<_, bool>(part).map_err(failed);
        let missing = (missing(0)?, missing(1)?);
        let found = client.query_typed(OTHERS, &[]).await.map_err(failed)?;
        let Some(row) = found.first() else { return Ok(missing) };
        let owner: String = row.try_get(0).map_err(failed)?;
        let (name, how) = (self.name, self.how);
        Err(StoreError::refused(format!(
            "cannot install \"{name}\" in the schema \"fencepost\" at {shown}: it belongs to {owner}, or other roles \
             may create in it, and could change what is installed. Install as {owner} (`{how}`), and let no other \
             role create there"
        )))
    }

    /// Adds the remedy for a role without the privilege.
    fn explained(&self, error: StoreError, pool: &Pool) -> StoreError {
        if_not_allowed(error, |cause| {
            format!(
                "this role may neither use nor install version {} of \"{}\" in the schema \"fencepost\" at {} ({cause}): \
                 run `{}` as a role that may create a schema, then grant this one what docs/backends/postgres.md lists",
                self.version,
                self.name,
                pool.shown(),
                self.how
            )
        })
    }
}

/// What an error means to a statement of the installation.
fn failed_at(shown: &str) -> impl Fn(tokio_postgres::Error) -> StoreError + Copy {
    move |error| explain(error, shown, StoreError::no_reply)
}

fn namesake(shown: &str) -> StoreError {
    StoreError::refused(format!(
        "this role is called \"fencepost\", as the schema at {shown} would be, and has \"$user\" in its \
         search_path: the tables that it creates without naming a schema would land among ours. Run `ALTER ROLE \
         fencepost SET search_path = public` and connect again, or install as another role"
    ))
}
