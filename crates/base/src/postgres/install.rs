//! What we keep in a database, the schema `fencepost`: made and brought up to date by itself.
//!
//! It has components, each with a version: `locks`, `records`, and the marks of fences. A component is a list of SQL
//! texts, one per version, run in order in one transaction. Whoever does that has the database's one advisory lock for
//! it, so two who come at once do not meet. It waits for nothing long, neither for that lock nor with it: others queue
//! behind one who waits for a table. What it does not get soon it lets go of, and asks for again.

use std::time::Duration;

use tokio_postgres::Client;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;

use super::error::{explain, if_not_allowed, state};
use super::pool::{Parameter, Pool, Use};
use super::trust;
use crate::race::{First, race};
use crate::store_error::StoreError;

/// "fencepos" in ASCII: whom we share advisory locks with is not known, and nobody else takes this number.
const ADVISORY: i64 = 0x6665_6e63_6570_6f73;
/// How long the schema may take to be made. Another client may be at it.
const WITHIN: Duration = Duration::from_secs(20);
/// How long the server lets us wait for our turn, and how long for anything that others use. Its limit, not ours: a
/// session whose client is gone would wait on.
const TURN: &str = "2s";
const TABLE: &str = "300ms";
/// How often it is tried. All that is less than [`WITHIN`].
const TRIES: u32 = 8;

const BASE: &str = "
CREATE TABLE IF NOT EXISTS fencepost.components (component text PRIMARY KEY, version int NOT NULL);
GRANT SELECT ON fencepost.components TO PUBLIC;
";

/// The version of a component, 0 if there is none.
const VERSION: &str = "SELECT pg_catalog.max(version) FROM fencepost.components \
                       WHERE component OPERATOR(pg_catalog.=) $1";

/// A role that is called as the schema has it as its `"$user"`: the tables that it creates without naming a schema would
/// land there, among ours.
const NAMESAKE: &str = "
SELECT CURRENT_USER OPERATOR(pg_catalog.=) 'fencepost' AND EXISTS (
  SELECT FROM pg_catalog.regexp_split_to_table(pg_catalog.current_setting('search_path'), ',') AS part
   WHERE pg_catalog.btrim(part, ' \"') OPERATOR(pg_catalog.=) '$user')";

/// The owner of the schema, if somebody else could change what is in it: our functions run with our rights.
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
    /// The first makes it, each other brings it one version further.
    pub migrations: &'static [&'static str],
    /// The command that makes it, for a role that may.
    pub how: &'static str,
}

/// What was found, and what there is now: versions, 0 for nothing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Installed {
    pub before: i32,
    pub now: i32,
}

impl Component {
    /// The version that this program knows.
    pub fn version(&self) -> i32 {
        i32::try_from(self.migrations.len()).unwrap_or(i32::MAX)
    }

    /// Looks whether the component is there as this program knows it, and makes it so if need be.
    pub async fn ready(&self, pool: &Pool) -> Result<Installed, StoreError> {
        let before = self.look(pool).await?;
        if before == self.version() {
            return Ok(Installed { before, now: before });
        }
        self.check(before, pool.shown())?;
        let limit = pool.clock().now() + WITHIN;
        match race(self.install(pool), pool.clock().alarm(limit)).await {
            First::Left(done) => done.map_err(|error| self.explained(error, pool)),
            First::Right(()) => Err(StoreError::no_reply(format!(
                "{} did not make the schema \"fencepost\" in time: try again",
                pool.shown()
            ))),
        }
    }

    /// The version that is there, 0 if none is. Nothing is made; one that is newer than ours is refused.
    pub async fn found(&self, pool: &Pool) -> Result<i32, StoreError> {
        let found = self.look(pool).await?;
        self.check(found, pool.shown())?;
        Ok(found)
    }

    /// The version that is there.
    async fn look(&self, pool: &Pool) -> Result<i32, StoreError> {
        let name: [Parameter<'_>; 1] = [(&self.name, Type::TEXT)];
        match pool.call(Use::Asking, VERSION, &name, pool.call_limit()).await {
            Ok(reply) => match reply.value.first().map(|row| row.try_get::<_, Option<i32>>(0)) {
                Some(Ok(version)) => Ok(version.unwrap_or(0)),
                _ => Err(StoreError::refused(format!("{} gave an odd answer", pool.shown()))),
            },
            Err(error) => match state(&error) {
                Some(&(SqlState::UNDEFINED_TABLE | SqlState::INVALID_SCHEMA_NAME)) => Ok(0),
                _ => Err(self.explained(error, pool)),
            },
        }
    }

    fn check(&self, found: i32, shown: &str) -> Result<(), StoreError> {
        if found <= self.version() {
            return Ok(());
        }
        let (name, ours) = (self.name, self.version());
        Err(StoreError::refused(format!(
            "the schema \"fencepost\" at {shown} has version {found} of \"{name}\", and this program knows \
             version {ours}: update this program"
        )))
    }

    async fn install(&self, pool: &Pool) -> Result<Installed, StoreError> {
        let conn = pool.open(pool.clock().now() + WITHIN).await?;
        // Without a commit, the end of the connection undoes it all.
        self.install_on(&conn.client, pool.owner(), pool.shown()).await
    }

    /// The same on a connection of the caller's, who ends the transaction if it fails.
    pub async fn install_on(
        &self,
        client: &Client,
        owner: Option<&str>,
        shown: &str,
    ) -> Result<Installed, StoreError> {
        let failed = |error| explain(error, shown, StoreError::no_reply);
        let schema = trust::look(client, owner, shown).await?;
        if schema == trust::Schema::Missing {
            let row = client.query_typed_one(NAMESAKE, &[]).await.map_err(failed)?;
            if row.try_get(0).map_err(failed)? {
                return Err(namesake(shown));
            }
        } else if self.is_there(client).await {
            let now = self.version();
            return Ok(Installed { before: now, now });
        }
        let mut tries = 1;
        loop {
            match self.try_on(client, shown).await {
                Err(error)
                    if state(&error) == Some(&SqlState::LOCK_NOT_AVAILABLE) && tries < TRIES =>
                {
                    // Those who queued behind us come first.
                    client.batch_execute("ROLLBACK").await.map_err(failed)?;
                    client
                        .batch_execute("SELECT pg_catalog.pg_sleep(0.05)")
                        .await
                        .map_err(failed)?;
                    tries += 1;
                }
                done => return done,
            }
        }
    }

    /// One try, which waits for nobody for long.
    async fn try_on(&self, client: &Client, shown: &str) -> Result<Installed, StoreError> {
        let failed = |error| explain(error, shown, StoreError::no_reply);
        let begin = format!(
            "BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE; SET LOCAL search_path = pg_catalog, pg_temp; \
             SET LOCAL statement_timeout = 0; SET LOCAL lock_timeout = '{TURN}'; SELECT pg_advisory_xact_lock({ADVISORY}); SET LOCAL lock_timeout = '{TABLE}'"
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
        // Somebody may have done it while we waited for our turn.
        self.check(before, shown)?;
        for migration in self.migrations.iter().skip(usize::try_from(before).unwrap_or(0)) {
            client.batch_execute(migration).await.map_err(failed)?;
        }
        let note = "INSERT INTO fencepost.components (component, version) VALUES ($1, $2) \
                    ON CONFLICT (component) DO UPDATE SET version = excluded.version";
        let (name, now) = (self.name, self.version());
        let values: [Parameter<'_>; 2] = [(&name, Type::TEXT), (&now, Type::INT4)];
        client.query_typed(note, &values).await.map_err(failed)?;
        client.batch_execute("COMMIT").await.map_err(failed)?;
        Ok(Installed { before, now })
    }

    /// Whether it is there in this version, for a role that could not make it and only uses it. One that could
    /// goes on, and sees whose it is.
    async fn is_there(&self, client: &Client) -> bool {
        let ask = "SELECT version FROM fencepost.components WHERE component OPERATOR(pg_catalog.=) $1 AND NOT
                   pg_catalog.has_database_privilege(pg_catalog.current_database(), 'CREATE')";
        let found = client.query_typed_one(ask, &[(&self.name, Type::TEXT)]).await;
        found.is_ok_and(|row| row.try_get(0).is_ok_and(|version: i32| version == self.version()))
    }

    /// Whether the schema, and the table of components, are missing. Refuses to put anything where it would be in the
    /// hands of others.
    async fn survey(&self, client: &Client, shown: &str) -> Result<(bool, bool), StoreError> {
        let failed = |error| explain(error, shown, StoreError::no_reply);
        // Looked at before it is asked for: to be told that it is there takes the right to make it.
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
            "\"{name}\" is not in the schema \"fencepost\" at {shown}, which belongs to {owner}, or others may \
             create in it: what we put there would be in their hands. Install as {owner} (`{how}`), and let \
             nobody else create there"
        )))
    }

    /// What one can do about a role that may not.
    fn explained(&self, error: StoreError, pool: &Pool) -> StoreError {
        if_not_allowed(error, |cause| {
            format!(
                "this role may neither use nor make version {} of \"{}\" in the schema \"fencepost\" at {} ({cause}): \
                 run `{}` as a role that may create a schema, then grant this one what docs/backends/postgres.md lists",
                self.version(),
                self.name,
                pool.shown(),
                self.how
            )
        })
    }
}

fn namesake(shown: &str) -> StoreError {
    StoreError::refused(format!(
        "this role is called \"fencepost\", as the schema at {shown} would be, and has \"$user\" in its \
         search_path: the tables that it creates without naming a schema would land among ours. Run `ALTER ROLE \
         fencepost SET search_path = public` and connect again, or install as another role"
    ))
}
