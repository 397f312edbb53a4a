//! `fencepost fence` on PostgreSQL and on Redis: its messages and exit codes.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use fencepost_testkit::command::Store;
use fencepost_testkit::{Database, Redis};

/// The command on a fresh database.
struct Fenced {
    store: Store,
    database: Database,
}

impl Fenced {
    fn new() -> Self {
        Self { store: Store::new(), database: Database::fresh().unwrap() }
    }

    fn fence(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        self.fence_at(&self.database.url(), arguments)
    }

    fn fence_at(&self, url: &str, arguments: &[&str]) -> (Option<i32>, String, String) {
        self.store.run(&[&["fence", "--resource", url], arguments].concat())
    }

    fn done(&self, arguments: &[&str]) -> String {
        let (code, out, err) = self.fence(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
        out
    }

    fn fails(&self, arguments: &[&str], expected: i32, words: &[&str]) {
        let (code, out, err) = self.fence(arguments);
        assert_eq!((code, out.as_str()), (Some(expected), ""), "{arguments:?}: {err}");
        assert_eq!(err.lines().count(), 1, "{err}");
        for word in words {
            assert!(err.contains(word), "{word:?} is missing: {err}");
        }
    }
}

#[test]
fn fence_works_from_install_to_reset() {
    let fenced = Fenced::new();
    fenced.fails(&["show"], 78, &["fencepost fence install"]);
    assert_eq!(fenced.done(&["install"]), "the fence is installed\n");
    assert_eq!(fenced.done(&["install", "--json"]), "{\"installed\":false}\n");
    fenced.done(&["enter", "invoice/42", "--token", "34"]);
    fenced.fails(&["enter", "invoice/42", "--token", "33"], 77, &["33", "34 has entered"]);
    assert!(fenced.done(&["show"]).contains("invoice/42  34 "));
    let reset = ["reset", "invoice/42", "--to", "3", "--why", "restored", "--by", "ada"];
    fenced.fails(&reset, 64, &["is 34 (", "admits all tokens from 3 on", "use --yes"]);
    let reset = [&reset[..], &["--yes"]].concat();
    assert!(fenced.done(&reset).starts_with("the mark of \"invoice/42\" is now 3; it was 34 ("));
    assert!(fenced.done(&["show", "--resets"]).contains("34    3   ada"));
}

#[test]
fn table_is_protected_until_unprotect() {
    let fenced = Fenced::new();
    fenced.done(&["install"]);
    fenced.database.psql("CREATE TABLE ledger (id int, lock text)").unwrap();
    let insert = "INSERT INTO ledger VALUES (1, 'a')";
    let said = fenced.done(&["protect", "ledger", "--name-from", "lock"]);
    assert!(said.contains("the lock that the row's column \"lock\" names"), "{said}");
    let error = fenced.database.psql(insert).unwrap_err().to_string();
    assert!(error.contains("call fencepost.enter('a', token) first"), "{error}");
    fenced.done(&["protect", "ledger", "--name", "the ledger"]);
    let error = fenced.database.psql(insert).unwrap_err().to_string();
    assert!(error.contains("call fencepost.enter('the ledger', token) first"), "{error}");
    fenced.fails(&["protect", "ledger", "--name-from", "kcol"], 64, &["has no column \"kcol\""]);
    fenced.fails(&["protect", "legder", "--name-from", "lock"], 64, &["legder"]);
    assert!(fenced.done(&["unprotect", "ledger"]).contains("no longer protected"));
    assert!(fenced.done(&["unprotect", "ledger"]).contains("nothing changed"));
    fenced.database.psql(insert).unwrap();
}

#[test]
fn role_without_privileges_is_refused_with_the_remedy() {
    let fenced = Fenced::new();
    fenced.done(&["install"]);
    let role = format!("app_{}", fenced.database.name());
    fenced.database.psql(&format!("CREATE ROLE {role} LOGIN")).unwrap();
    let url = fenced.database.url_as(&role);
    let (code, _, err) = fenced.fence_at(&url, &["enter", "a", "--token", "1"]);
    assert_eq!(code, Some(78), "{err}");
    assert!(err.contains("GRANT USAGE ON SCHEMA fencepost"), "{err}");
    let (code, _, err) = fenced.fence_at(&url, &["reset", "a", "--forget", "--why", "x"]);
    assert_eq!(code, Some(78), "{err}");
}

#[test]
fn fence_works_on_redis() {
    let (store, server) = (Store::new(), Redis::builder().password("s3cret").start().unwrap());
    let url = server.url();
    let say = |arguments: &[&str]| store.run(&[&["fence", "--resource", &url], arguments].concat());
    let done = |arguments: &[&str]| {
        let (code, out, err) = say(arguments);
        assert_eq!(code, Some(0), "{arguments:?}: {err}");
        out
    };
    assert!(done(&["install"]).starts_with("nothing to install"));
    assert_eq!(done(&["show"]), "NAME  TOKEN  SET BY  SET AT\n");
    done(&["enter", "invoice/42", "--token", "34"]);
    let (code, out, err) = say(&["enter", "invoice/42", "--token", "33"]);
    assert_eq!((code, out.as_str()), (Some(77), ""));
    assert!(err.contains("token 33 for \"invoice/42\" is stale: 34 has entered ("), "{err}");
    assert!(done(&["show", "invoice/42"]).contains("invoice/42  34 "));
    let reset = ["reset", "invoice/42", "--to", "3", "--why", "restored", "--by", "ada", "--yes"];
    assert!(done(&reset).starts_with("the mark of \"invoice/42\" is now 3; it was 34 ("));
    assert!(done(&["show", "--resets"]).contains("34    3   ada"));
    let (code, _, err) = say(&["protect", "t", "--name", "a"]);
    assert_eq!(code, Some(78), "{err}");
    // With another `beside` the lock has a second mark, and `show` shows both.
    let beside = format!("{url}?beside=%7Buser%3A7%7D");
    let elsewhere = ["fence", "--resource", &beside, "enter", "invoice/42", "--token", "1"];
    assert_eq!(store.run(&elsewhere).0, Some(0));
    assert_eq!(done(&["show", "invoice/42"]).lines().count(), 3);
    server.kill().unwrap();
    let (code, _, err) = say(&["show"]);
    assert_eq!(code, Some(69), "{err}");
    assert!(!err.contains("s3cret"), "{err}");
}
