//! `fencepost ls --hot`: the most contended names.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use fencepost_testkit::command::{LIMIT, Running, Store, wait_for};
use rustix::process::Signal;
use serde_json::Value;

fn ls_hot(store: &Store, more: &[&str]) -> Value {
    let (code, out, err) = store.run(&[&["ls", "--hot", "--json"], more].concat());
    assert_eq!(code, Some(0), "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn most_contended_name_comes_first_and_is_hot() {
    let store = Store::new();
    assert_eq!(ls_hot(&store, &[])["names"], serde_json::json!([]));
    let start = |name: &str| store.start(&["run", name, "--label", "me", "--", "sleep", "1000"]);
    let quiet = start("quiet");
    let mut all: Vec<Running> = vec![start("warm"), start("warm")];
    all.extend((0..6).map(|_| start("wanted")));
    wait_for("seven holders and waiters", LIMIT, || {
        let seen = ls_hot(&store, &[]);
        seen["names"][0]["waiting"] == 5 && seen["names"][1]["waiting"] == 1
    });
    let seen = ls_hot(&store, &["--over", "300ms"]);
    let names = seen["names"].as_array().unwrap();
    assert!(seen["samples"].as_u64() > Some(1), "{seen}");
    let contended: Vec<_> =
        names.iter().map(|n| (n["name"].as_str().unwrap(), &n["hot"])).collect();
    assert_eq!(contended, [("wanted", &true.into()), ("warm", &false.into())], "{seen}");
    assert_eq!(names[0]["holder"], "me");
    let (_, out, _) = store.run(&["ls", "--hot"]);
    assert!(
        out.contains("\"wanted\" is hot: it had 5 waiters") && !out.contains("\"warm\" is hot"),
        "{out}"
    );
    assert!(!out.contains("quiet"), "{out}");
    let (code, _, err) = store.run(&["ls", "--over", "1s"]);
    assert_eq!(code, Some(64), "{err}");
    for process in all.iter().chain([&quiet]) {
        process.signal(Signal::TERM);
    }
    for process in all.into_iter().chain([quiet]) {
        process.end();
    }
    store.assert_empty();
}
