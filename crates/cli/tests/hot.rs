//! `fencepost ls --hot`: which names everybody waits for.

#![allow(clippy::unwrap_used, reason = "a test that can not go on fails")]

use fencepost_testkit::command::{LIMIT, Running, Store, wait_for};
use rustix::process::Signal;
use serde_json::Value;

fn hot(store: &Store, more: &[&str]) -> Value {
    let (code, out, err) = store.say(&[&["ls", "--hot", "--json"], more].concat());
    assert_eq!(code, Some(0), "{err}");
    serde_json::from_str(&out).unwrap()
}

#[test]
fn the_most_wanted_name_comes_first_and_is_called_hot() {
    let store = Store::new();
    assert_eq!(hot(&store, &[])["names"], serde_json::json!([]));
    let start = |name: &str| store.start(&["run", name, "--label", "me", "--", "sleep", "1000"]);
    let quiet = start("quiet");
    let mut all: Vec<Running> = vec![start("warm"), start("warm")];
    all.extend((0..6).map(|_| start("wanted")));
    wait_for("seven who hold or wait", LIMIT, || {
        let seen = hot(&store, &[]);
        seen["names"][0]["waiting"] == 5 && seen["names"][1]["waiting"] == 1
    });
    let seen = hot(&store, &["--over", "300ms"]);
    let names = seen["names"].as_array().unwrap();
    assert!(seen["looks"].as_u64() > Some(1), "{seen}");
    let told: Vec<_> = names.iter().map(|n| (n["name"].as_str().unwrap(), &n["hot"])).collect();
    assert_eq!(told, [("wanted", &true.into()), ("warm", &false.into())], "{seen}");
    assert_eq!(names[0]["holder"], "me");
    let (_, out, _) = store.say(&["ls", "--hot"]);
    assert!(
        out.contains("\"wanted\" is hot: 5 waited") && !out.contains("\"warm\" is hot"),
        "{out}"
    );
    assert!(!out.contains("quiet"), "{out}");
    let (code, _, err) = store.say(&["ls", "--over", "1s"]);
    assert_eq!(code, Some(64), "{err}");
    for process in all.iter().chain([&quiet]) {
        process.signal(Signal::TERM);
    }
    for process in all.into_iter().chain([quiet]) {
        process.end();
    }
    store.assert_empty();
}
