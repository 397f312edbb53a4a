//! Checks that only trusted roles own the schema `fencepost`.
//!
//! Any role that may create schemas can create one with this name, and a caller of a function in it runs that function's
//! code. So before anything in it is used, the schema and everything in it must belong to trusted roles, and no other role
//! may create there. Trusted are the role that we connect as, superusers, the owner of the database, and the role that the
//! URL names (`?owner=ROLE`): the first can do no more than it may anyway, and the next two can do anything in the database
//! already.
//!
//! What must hold: the query itself cannot be attacked. All its names and operators are those of `pg_catalog`, whatever
//! `search_path` is. So are those of everything else that we send (CVE-2018-1058: an operator in `public` that fits its
//! operands better is preferred).
//!
//! Everything in a schema depends on it (`pg_depend`, which is indexed). The owner must come from the object's own row:
//! `pg_shdepend` leaves out the predefined roles, which others may be members of. An object that only refers to the schema,
//! such as a column's default, depends on it too but is not in it. An object of an unknown kind counts as untrusted.

use tokio_postgres::types::Type;
use tokio_postgres::{GenericClient, Row};

use super::error::explain;
use crate::store_error::StoreError;

/// The parameter is an additional trusted role. The first row is the worst; without rows there is no schema.
pub const TRUST: &str = "
WITH schema AS MATERIALIZED (
  SELECT n.oid, n.nspowner, n.nspacl FROM pg_catalog.pg_namespace n
   WHERE n.nspname OPERATOR(pg_catalog.=) 'fencepost'),
here AS MATERIALIZED (
  SELECT d.datdba FROM pg_catalog.pg_database d
   WHERE d.datname OPERATOR(pg_catalog.=) pg_catalog.current_database()),
trusted AS MATERIALIZED (
  SELECT r.oid FROM pg_catalog.pg_roles r
   WHERE r.rolsuper OR r.rolname OPERATOR(pg_catalog.=) CURRENT_USER
      OR r.rolname OPERATOR(pg_catalog.=) 'pg_database_owner'
      OR r.rolname OPERATOR(pg_catalog.=) $1
   UNION ALL SELECT h.datdba FROM here h),
inside AS MATERIALIZED (
  SELECT DISTINCT d.classid, d.objid, s.oid AS schema FROM pg_catalog.pg_depend d, schema s
   WHERE d.refclassid OPERATOR(pg_catalog.=) 'pg_catalog.pg_namespace'::pg_catalog.regclass
     AND d.refobjid OPERATOR(pg_catalog.=) s.oid),
owners AS MATERIALIZED (
  SELECT i.classid, i.objid, CASE
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_proc'::pg_catalog.regclass THEN (
      SELECT x.proowner FROM pg_catalog.pg_proc x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.pronamespace OPERATOR(pg_catalog.=) i.schema)
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass THEN (
      SELECT x.relowner FROM pg_catalog.pg_class x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.relnamespace OPERATOR(pg_catalog.=) i.schema)
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_type'::pg_catalog.regclass THEN (
      SELECT x.typowner FROM pg_catalog.pg_type x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.typnamespace OPERATOR(pg_catalog.=) i.schema)
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_operator'::pg_catalog.regclass THEN (
      SELECT x.oprowner FROM pg_catalog.pg_operator x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.oprnamespace OPERATOR(pg_catalog.=) i.schema)
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_opclass'::pg_catalog.regclass THEN (
      SELECT x.opcowner FROM pg_catalog.pg_opclass x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.opcnamespace OPERATOR(pg_catalog.=) i.schema)
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_opfamily'::pg_catalog.regclass THEN (
      SELECT x.opfowner FROM pg_catalog.pg_opfamily x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.opfnamespace OPERATOR(pg_catalog.=) i.schema)
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_collation'::pg_catalog.regclass THEN (
      SELECT x.collowner FROM pg_catalog.pg_collation x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.collnamespace OPERATOR(pg_catalog.=) i.schema)
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_conversion'::pg_catalog.regclass THEN (
      SELECT x.conowner FROM pg_catalog.pg_conversion x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.connamespace OPERATOR(pg_catalog.=) i.schema)
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_ts_config'::pg_catalog.regclass THEN (
      SELECT x.cfgowner FROM pg_catalog.pg_ts_config x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.cfgnamespace OPERATOR(pg_catalog.=) i.schema)
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_ts_dict'::pg_catalog.regclass THEN (
      SELECT x.dictowner FROM pg_catalog.pg_ts_dict x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.dictnamespace OPERATOR(pg_catalog.=) i.schema)
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_statistic_ext'::pg_catalog.regclass THEN (
      SELECT x.stxowner FROM pg_catalog.pg_statistic_ext x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.stxnamespace OPERATOR(pg_catalog.=) i.schema)
    WHEN i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_extension'::pg_catalog.regclass THEN (
      SELECT x.extowner FROM pg_catalog.pg_extension x
       WHERE x.oid OPERATOR(pg_catalog.=) i.objid AND x.extnamespace OPERATOR(pg_catalog.=) i.schema)
    END AS owner FROM inside i),
owned (owner, classid, objid, how) AS (
  SELECT s.nspowner, 'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid, s.oid, 'o' FROM schema s
  UNION ALL
  SELECT o.owner, o.classid, o.objid, 'o' FROM owners o
   WHERE o.owner IS NOT NULL
      -- Parsers and templates have no owner: only superusers make them.
      OR o.classid OPERATOR(pg_catalog.<>) 'pg_catalog.pg_ts_parser'::pg_catalog.regclass
     AND o.classid OPERATOR(pg_catalog.<>) 'pg_catalog.pg_ts_template'::pg_catalog.regclass
     AND EXISTS (SELECT FROM pg_catalog.pg_identify_object(o.classid, o.objid, 0) x
                  WHERE x.schema OPERATOR(pg_catalog.=) 'fencepost')
  UNION ALL
  SELECT a.grantee, 'pg_catalog.pg_namespace'::pg_catalog.regclass::pg_catalog.oid, s.oid, 'c'
    FROM schema s, pg_catalog.aclexplode(s.nspacl) a
   WHERE a.privilege_type OPERATOR(pg_catalog.=) 'CREATE'
  UNION ALL
  SELECT p.proowner, 'pg_catalog.pg_trigger'::pg_catalog.regclass::pg_catalog.oid, t.oid, 'o'
    FROM inside i, pg_catalog.pg_trigger t, pg_catalog.pg_proc p
   WHERE i.classid OPERATOR(pg_catalog.=) 'pg_catalog.pg_class'::pg_catalog.regclass
     AND t.tgrelid OPERATOR(pg_catalog.=) i.objid AND NOT t.tgisinternal
     AND p.oid OPERATOR(pg_catalog.=) t.tgfoid)
SELECT CASE WHEN o.owner OPERATOR(pg_catalog.=) 0 THEN 'PUBLIC'
            WHEN o.owner IS NULL THEN 'nobody known'
            ELSE pg_catalog.pg_get_userbyid(o.owner)::pg_catalog.text END AS owner,
       pg_catalog.pg_describe_object(o.classid, o.objid, 0) AS what,
       o.how OPERATOR(pg_catalog.=) 'c' AS creates,
       NOT EXISTS (SELECT FROM trusted t WHERE t.oid OPERATOR(pg_catalog.=) o.owner) AS strange
  FROM owned o
 ORDER BY strange DESC, o.classid OPERATOR(pg_catalog.<>) 'pg_catalog.pg_namespace'::pg_catalog.regclass, o.how DESC
 LIMIT 1";

/// The state of the schema.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Schema {
    /// There is none.
    Missing,
    /// Trusted roles own everything in it.
    Trusted,
}

/// Checks the schema, and refuses one that other roles can change. `owner` is an additional trusted role. One round trip.
pub async fn look(
    client: &impl GenericClient,
    owner: Option<&str>,
    shown: &str,
) -> Result<Schema, StoreError> {
    let found = client.query_typed(TRUST, &[(&owner, Type::TEXT)]).await;
    judge(&found.map_err(|error| unread(error, shown))?, shown)
}

/// Evaluates the rows of [`TRUST`].
pub fn judge(found: &[Row], shown: &str) -> Result<Schema, StoreError> {
    let failed = |error| unread(error, shown);
    let Some(row) = found.first() else { return Ok(Schema::Missing) };
    if row.try_get("strange").map_err(failed)? {
        return Err(refusal(row, shown).map_err(failed)?);
    }
    Ok(Schema::Trusted)
}

/// The check changes nothing, so it may be repeated at once.
fn unread(error: tokio_postgres::Error, shown: &str) -> StoreError {
    explain(error, shown, StoreError::busy)
}

fn refusal(row: &Row, shown: &str) -> Result<StoreError, tokio_postgres::Error> {
    let (owner, what): (String, String) = (row.try_get("owner")?, row.try_get("what")?);
    let (owner, what) = (owner.escape_debug(), what.escape_debug());
    let message = if row.try_get("creates")? {
        format!(
            "{owner} may create in the schema \"fencepost\" at {shown}, and what it puts there would run with your \
             rights: REVOKE CREATE ON SCHEMA fencepost FROM {owner}; if you trust that role, add ?owner={owner} to \
             the URL"
        )
    } else {
        format!(
            "{what} at {shown} belongs to {owner}, who is neither a superuser nor the database's owner nor you, \
             and what is in \"fencepost\" would run with your rights: if {owner} installed it for you, add \
             ?owner={owner} to the URL; otherwise drop it as a superuser, and install again"
        )
    };
    Ok(StoreError::refused(message))
}
