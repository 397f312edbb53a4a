//! Installing the fence, and who may do what with it.

use fencepost::ErrorKind;
use fencepost::fences::postgres::{self, Installed, NameFrom};
use fencepost_testkit::Database;

use crate::common::{ask, attempt, connect, error_of, fenced, fencing, name, refusal, token};

const PAGE: &str = include_str!("../../../../docs/layouts/fences.md");
/// Version 1 as an earlier fencepost created it: its tables, with a mark and a reset, a protected table, and the functions that
/// matter to them.
const VERSION_1: &str = r#"
CREATE SCHEMA fencepost;
CREATE TABLE fencepost.components (component text PRIMARY KEY, version int NOT NULL);
INSERT INTO fencepost.components VALUES ('fences', 1);
CREATE TABLE fencepost.marks (
  name text COLLATE "C" PRIMARY KEY, token bigint NOT NULL CHECK (token BETWEEN 1 AND 9007199254740991), xid xid8 NOT NULL,
  set_at timestamptz NOT NULL, set_by text NOT NULL
) WITH (fillfactor = 50);
CREATE TABLE fencepost.resets (
  number bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY, name text COLLATE "C" NOT NULL, from_token bigint,
  to_token bigint, at timestamptz NOT NULL, by text NOT NULL, role text NOT NULL, why text NOT NULL
);
CREATE FUNCTION fencepost.rfc3339(at timestamptz) RETURNS text LANGUAGE sql STABLE AS $$ SELECT $1::text $$;
CREATE FUNCTION fencepost.enter(name text, token bigint, who text DEFAULT NULL) RETURNS void LANGUAGE sql SECURITY DEFINER
  AS $$ UPDATE fencepost.marks m SET token = $2, xid = pg_current_xact_id() WHERE m.name = $1 AND m.token <= $2 $$;
CREATE FUNCTION fencepost.check_entered(name text, relation regclass) RETURNS void LANGUAGE plpgsql SECURITY DEFINER AS $$
BEGIN
  PERFORM FROM fencepost.marks m WHERE m.name = check_entered.name AND m.xid = pg_current_xact_id();
  IF NOT FOUND THEN RAISE EXCEPTION 'refused' USING ERRCODE = 'FP003'; END IF;
END $$;
CREATE FUNCTION fencepost.entered_by_name() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
  AS $$ BEGIN PERFORM fencepost.check_entered(TG_ARGV[0], TG_RELID); RETURN NULL; END $$;
CREATE FUNCTION fencepost.entered_by_dce7c4174ce9323904a934a486c41288() RETURNS trigger LANGUAGE plpgsql SECURITY DEFINER
  AS $$ BEGIN PERFORM fencepost.check_entered(NEW.lock, TG_RELID); RETURN NULL; END $$;
INSERT INTO fencepost.marks VALUES ('a', 33, '7', now(), 'web-1:1');
INSERT INTO fencepost.resets (name, to_token, at, by, role, why) VALUES ('a', 3, now(), 'ann', 'ann', 'moved');
CREATE TABLE public.t (v int);
CREATE TRIGGER fencepost_rows AFTER INSERT OR UPDATE OR DELETE ON public.t
  FOR EACH ROW EXECUTE FUNCTION fencepost.entered_by_name('a');
"#;

#[tokio::test]
async fn concurrent_installs_install_once() {
    let database = Database::fresh().unwrap();
    let (one, two) = (connect(&database.url()).await, connect(&database.url()).await);
    let (first, second) = tokio::join!(postgres::install(&one), postgres::install(&two));
    let mut both = [first.unwrap(), second.unwrap()];
    both.sort_by_key(|done| *done == Installed::Already);
    assert_eq!(both, [Installed::Now, Installed::Already]);
    assert_eq!(postgres::install(&one).await.unwrap(), Installed::Already);
}

#[tokio::test]
async fn newer_fence_is_not_changed() {
    let (_database, client) = fenced().await;
    client.batch_execute("UPDATE fencepost.components SET version = 99").await.unwrap();
    let error = error_of(postgres::install(&client).await);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.one_line().contains("99"), "{error}");
}

/// Its marks have no secret. If it counted as absent, stale tokens would get in.
#[tokio::test]
async fn older_fence_is_refused_and_its_marks_can_be_kept() {
    let database = Database::fresh().unwrap();
    let client = connect(&database.url()).await;
    client.batch_execute(VERSION_1).await.unwrap();
    let error = error_of(postgres::install(&client).await);
    assert_eq!(error.kind(), ErrorKind::Refused);
    for part in
        ["version 1 of \"fences\"", "version 2", "docs/layouts/fences.md", "keeps its marks"]
    {
        assert!(error.one_line().contains(part), "{error}");
    }
    let unchanged = "SELECT name || token || xid FROM fencepost.marks";
    assert_eq!(ask(&client, unchanged).await, "a337", "nothing was written");

    // The remedy, as the page has it: the last two blocks.
    let blocks = PAGE.split("```sql\n").skip(1).map(|part| part.split_once("```").unwrap().0);
    let [.., drop_it, set_marks] = blocks.collect::<Vec<_>>()[..] else {
        panic!("the page has both")
    };
    client.batch_execute(drop_it).await.unwrap();
    let left = "SELECT count(*) FROM pg_proc WHERE pronamespace = 'fencepost'::regnamespace";
    assert_eq!(ask(&client, left).await, "0");
    assert_eq!(postgres::install(&client).await.unwrap(), Installed::Now);
    client.batch_execute(set_marks).await.unwrap();
    assert_eq!(attempt(&client, "SELECT fencepost.enter('a', 32)").await, Err("FP001".into()));
    attempt(&client, "SELECT fencepost.enter('a', 33)").await.unwrap();
    assert_eq!(ask(&client, "SELECT to_token FROM kept_resets").await, "3");
}

#[tokio::test]
async fn tables_match_the_page() {
    let (_database, client) = fenced().await;
    for table in ["marks", "resets"] {
        let columns = format!(
            "SELECT rpad('{table}', 8) || ' (' || string_agg(column_name || ' ' || data_type, ', '
                    ORDER BY ordinal_position) || ')'
               FROM information_schema.columns WHERE table_schema = 'fencepost' AND table_name = '{table}'"
        );
        let columns = ask(&client, &columns).await;
        assert!(PAGE.contains(&columns), "docs/layouts/fences.md does not have:\n{columns}");
    }
    let version = ask(&client, "SELECT version FROM fencepost.components").await;
    let version = format!("Version {version} of the component `fences`");
    assert!(PAGE.contains(&version), "docs/layouts/fences.md does not have: {version}");
}

#[tokio::test]
async fn missing_fence_is_reported_with_the_remedy() {
    let database = Database::fresh().unwrap();
    let mut client = connect(&database.url()).await;
    let error = error_of(postgres::begin(&mut client, &fencing("a", 1)).await);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.one_line().contains("fencepost fence install"), "{error}");
}

#[tokio::test]
async fn role_needs_two_grants_to_enter_and_can_do_nothing_else() {
    let (database, admin) = fenced().await;
    let role = format!("app_{}", database.name());
    admin.batch_execute(&format!("CREATE ROLE {role} LOGIN")).await.unwrap();
    let mut app = connect(&database.url_as(&role)).await;

    let error = error_of(postgres::begin(&mut app, &fencing("a", 1)).await);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.one_line().contains("GRANT USAGE"), "{error}");
    let error = error_of(postgres::install(&app).await);
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.one_line().contains("may create a schema"), "{error}");

    let grants = format!(
        "GRANT USAGE ON SCHEMA fencepost TO {role}; GRANT EXECUTE ON FUNCTION fencepost.enter TO {role}"
    );
    admin.batch_execute(&grants).await.unwrap();
    postgres::begin(&mut app, &fencing("a", 5)).await.unwrap().commit().await.unwrap();
    let stale = error_of(postgres::begin(&mut app, &fencing("a", 4)).await);
    assert_eq!(stale.kind(), ErrorKind::Stale);

    assert_eq!(postgres::install(&app).await.unwrap(), Installed::Already);
    let shown = error_of(postgres::show(&app, None).await);
    assert!(shown.to_string().contains("GRANT EXECUTE ON FUNCTION fencepost.show"), "{shown}");

    let forgotten = error_of(postgres::reset(&app, &name("a"), None, "eve", "why not").await);
    assert_eq!(forgotten.kind(), ErrorKind::Refused);
    for sql in [
        "UPDATE fencepost.marks SET token = 1",
        "DELETE FROM fencepost.marks",
        "SELECT * FROM fencepost.marks",
        "INSERT INTO fencepost.resets (name) VALUES ('a')",
        "SELECT fencepost.show()",
        "SELECT fencepost.reset('a', 1, 'eve', 'why not')",
        "CREATE TABLE fencepost.mine ()",
    ] {
        assert_eq!(refusal(&app, sql).await.0, "42501", "{sql}");
    }
    assert_eq!(ask(&admin, "SELECT token FROM fencepost.marks").await, "5");
    assert_eq!(ask(&admin, "SELECT count(*) FROM fencepost.resets").await, "0");
}

#[tokio::test]
async fn owner_can_protect_only_its_own_tables() {
    let (database, admin) = fenced().await;
    let role = format!("owner_{}", database.name());
    let sql = format!(
        "CREATE ROLE {role} LOGIN; GRANT USAGE ON SCHEMA fencepost TO {role};
         CREATE TABLE theirs (id int); CREATE TABLE own (id int);
         ALTER TABLE own OWNER TO {role}; GRANT ALL ON theirs TO {role}"
    );
    admin.batch_execute(&sql).await.unwrap();
    let owner = connect(&database.url_as(&role)).await;
    let lock = name("own");
    assert!(!postgres::protect(&owner, "own", NameFrom::Name(&lock)).await.unwrap());
    assert!(postgres::protect(&owner, "own", NameFrom::Column("id")).await.unwrap(), "it was");
    assert_eq!(refusal(&owner, "INSERT INTO own VALUES (1)").await.0, "FP003");
    for refused in [postgres::protect(&owner, "theirs", NameFrom::Name(&lock)).await, {
        postgres::protect(&admin, "theirs", NameFrom::Name(&lock)).await.unwrap();
        postgres::unprotect(&owner, "theirs").await
    }] {
        let error = error_of(refused);
        assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
        assert!(error.one_line().contains("only the owner of theirs"), "{error}");
    }
    assert!(postgres::unprotect(&admin, "theirs").await.unwrap());
    owner.batch_execute("INSERT INTO theirs VALUES (1)").await.unwrap();
}

/// A role that owns the schema, but may create none, can install into it.
#[tokio::test]
async fn owner_of_an_empty_schema_can_install_into_it() {
    let database = Database::fresh().unwrap();
    let admin = connect(&database.url()).await;
    let role = format!("given_{}", database.name());
    let sql = format!("CREATE ROLE {role} LOGIN; CREATE SCHEMA fencepost AUTHORIZATION {role}");
    admin.batch_execute(&sql).await.unwrap();
    let owner = connect(&database.url_as(&role)).await;
    assert_eq!(postgres::install(&owner).await.unwrap(), Installed::Now);
    // The error names the owner of the schema to an admin.
    let error = error_of(postgres::install(&admin).await);
    assert!(error.one_line().contains(&role), "{error}");
}

/// Transaction ids start again after a dump and restore, and the marks come back with their secrets: some day a transaction
/// has the id that a restored mark contains.
#[tokio::test]
async fn restored_mark_lets_nobody_in() {
    let (_database, client) = fenced().await;
    // Other tests on this server draw ids too, so there are marks for many of the next ones.
    client
        .batch_execute(
            "CREATE TABLE t (lock text); SELECT fencepost.protect('t', 'lock', NULL);
             INSERT INTO fencepost.marks SELECT number::text, 1, number::text, now(), 'dump'
               FROM (SELECT pg_current_xact_id()::text::bigint AS here) AS now,
                 generate_series(here + 1, here + 5000) AS number",
        )
        .await
        .unwrap();
    client.batch_execute("BEGIN").await.unwrap();
    let fits = "SELECT count(*) FROM fencepost.marks WHERE secret = pg_current_xact_id()::text";
    assert_eq!(ask(&client, fits).await, "1", "there is a mark with this transaction's number");
    let insert = "INSERT INTO t VALUES (pg_current_xact_id()::text)";
    assert_eq!(refusal(&client, insert).await.0, "FP003");
}

/// The checks run with the rights of the fence's owner: neither a column's name nor its type may inject code.
#[tokio::test]
async fn table_owner_gains_no_rights_from_protecting() {
    let (database, admin) = fenced().await;
    let app = format!("app_{}", database.name());
    let setup = format!(
        "CREATE ROLE {app} LOGIN; GRANT USAGE ON SCHEMA fencepost TO {app};
         GRANT EXECUTE ON FUNCTION fencepost.enter TO {app}; CREATE SCHEMA own AUTHORIZATION {app}"
    );
    admin.batch_execute(&setup).await.unwrap();
    let client = connect(&database.url_as(&app)).await;
    let sly = "x$check$;DROP TABLE fencepost.marks;--$body$''";
    let table = format!("SET check_function_bodies = off; CREATE TABLE own.sly (\"{sly}\" text)");
    client.batch_execute(&table).await.unwrap();
    postgres::protect(&client, "own.sly", NameFrom::Column(sly)).await.unwrap();
    let write = "INSERT INTO own.sly VALUES ('a')";
    assert_eq!(refusal(&client, write).await.0, "FP003");
    let entered = format!("BEGIN; SELECT fencepost.enter('a', 1); {write}; COMMIT");
    client.batch_execute(&entered).await.unwrap();

    client
        .batch_execute(
            "CREATE TYPE own.evil AS (x int);
             CREATE FUNCTION own.boom(own.evil) RETURNS text LANGUAGE plpgsql AS
               $$ BEGIN RAISE EXCEPTION 'it ran as %', current_user; END $$;
             CREATE CAST (own.evil AS text) WITH FUNCTION own.boom(own.evil);
             CREATE DOMAIN own.worse AS own.evil;
             CREATE TABLE own.t (n own.evil, m own.worse, d date, c char(9), v varchar, i int)",
        )
        .await
        .unwrap();
    for column in ["n", "m", "d", "c"] {
        let refused = postgres::protect(&client, "own.t", NameFrom::Column(column)).await;
        let error = error_of(refused);
        assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
        assert!(error.one_line().contains("text, varchar, uuid or an integer"), "{error}");
    }
    // Nor may a trigger of one's own that calls the function of another column.
    client.batch_execute("CREATE TABLE own.good (n text)").await.unwrap();
    postgres::protect(&client, "own.good", NameFrom::Column("n")).await.unwrap();
    let found = ask(
        &client,
        "SELECT tgfoid::regproc FROM pg_trigger
          WHERE tgrelid = 'own.good'::regclass AND tgname = 'fencepost_rows'",
    )
    .await;
    let trigger = format!(
        "CREATE TRIGGER mine AFTER INSERT ON own.t FOR EACH ROW EXECUTE FUNCTION {found}()"
    );
    client.batch_execute(&trigger).await.unwrap();
    let (code, message) = refusal(&client, "INSERT INTO own.t (n) VALUES (row(1))").await;
    assert_eq!(code, "FP003", "{message}");
}

/// If a crash could lose a mark, it would let a stale token in.
#[tokio::test]
async fn enter_waits_for_the_sync() {
    let (_database, client) = fenced().await;
    client.batch_execute("SET synchronous_commit = off; BEGIN").await.unwrap();
    ask(&client, "SELECT fencepost.enter('a', 1)").await;
    assert_eq!(ask(&client, "SHOW synchronous_commit").await, "local");
    client.batch_execute("COMMIT").await.unwrap();
    assert_eq!(ask(&client, "SHOW synchronous_commit").await, "off");
}

#[tokio::test]
async fn resets_are_serialized() {
    let (database, client) = fenced().await;
    let other = connect(&database.url()).await;
    client.batch_execute("BEGIN; SELECT fencepost.reset('r', 9, 'ann', 'moved')").await.unwrap();
    let waiting = tokio::spawn(async move {
        postgres::reset(&other, &name("r"), Some(token(3)), "bob", "moved").await
    });
    crate::enter::until_waiting(&client, 1).await;
    client.batch_execute("COMMIT").await.unwrap();
    let old = waiting.await.unwrap().unwrap().expect("it finds what the first one set");
    assert_eq!(old.token, token(9));
}
