//! The script as other languages call it, as docs/fences/redis.md shows. Invalid input never gets in, and never
//! leaves a mark that refuses everybody.

use fencepost::ErrorKind;
use fencepost::fences::redis::Fence;
use fencepost::fences::redis::redis::cmd;
use fencepost_testkit::{Redis, Reply};

use super::common::*;

const KEY: &str = "fencepost:mark:{cart/7}cart/7";

/// One call: token, label, retention, and the commands.
fn call(server: &Redis, head: [&str; 3], commands: &[&str]) -> Reply {
    let script = include_str!("../../../fence/src/redis/act.lua");
    let words = [&["EVAL", script, "2", KEY, "cart:7"], &head[..], commands].concat();
    server.command(&words).unwrap()
}

#[tokio::test]
async fn other_languages_use_the_same_script() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let set = |token: &str, value: &str| {
        call(&server, [token, "web-1:4711", "0"], &["3", "SET", "cart:7", value])
    };
    assert_eq!(set("33", "a").items().unwrap()[0].text().unwrap(), "done");
    let fence = Fence::new();
    assert_eq!(
        fence.mark(&mut redis, &name("cart/7")).await.unwrap().unwrap().set_by,
        "web-1:4711"
    );
    fence.enter(&mut redis, &fencing("cart/7", 34)).await.unwrap();
    assert_eq!(set("33", "late").items().unwrap()[0].text().unwrap(), "stale");
    assert_eq!(text(&server, &["GET", "cart:7"]), "a");
    set("34", "b");
    assert_eq!(text(&server, &["GET", "cart:7"]), "b");
}

/// `tonumber` accepts most of these, and no comparison with NaN is true, so NaN would never be stale.
#[tokio::test]
async fn invalid_token_label_retention_or_command_changes_nothing() {
    let server = Redis::builder().start().unwrap();
    let long = "x".repeat(257);
    let set = &["3", "SET", "cart:7", "bad"][..];
    let mut bad: Vec<([&str; 3], &[&str])> = [
        "NaN",
        "nan",
        "-nan",
        "inf",
        "abc",
        "",
        "0",
        "-5",
        "+35",
        "35.0",
        "1e3",
        "0x30",
        " 35",
        "35 ",
        "35\n",
        "35\0",
        "035",
        "9007199254740992",
        "9007199254740993",
        "99999999999999999999",
    ]
    .map(|token| ([token, "web", "0"], set))
    .to_vec();
    bad.extend(
        ["", "a\nb", "a\tb", "\0", "\u{7f}", "\u{85}", &long].map(|who| (["35", who, "0"], set)),
    );
    bad.extend(
        [
            "",
            "00",
            "-1",
            "1e9",
            "soon",
            "NaN",
            "999",
            "0x1000",
            "315360000001",
            "99999999999999999999",
        ]
        .map(|retention| (["35", "web", retention], set)),
    );
    let torn: [&[&str]; 7] = [
        &["0"],
        &["4", "SET", "cart:7", "bad"],
        &["-1", "SET", "cart:7", "bad"],
        &["NaN", "SET", "cart:7", "bad"],
        &["SET", "cart:7", "bad"],
        &["3", "SET", "cart:7", "bad", "2"],
        &["7001", "SET", "cart:7", "bad"],
    ];
    bad.extend(torn.map(|commands| (["35", "web", "0"], commands)));
    // Without a mark, with a lower one, and with an equal one, which could lose its retention first.
    for before in [None, Some("33"), Some("35")] {
        server.command(&["FLUSHALL"]).unwrap();
        if let Some(token) = before {
            let data = call(&server, [token, "web", "60000"], &["3", "SET", "cart:7", "good"]);
            assert_eq!(data.items().unwrap()[0].text().unwrap(), "done");
        }
        let look = || {
            let (mark, data) = (server.command(&["GET", KEY]), server.command(&["GET", "cart:7"]));
            (mark.unwrap(), data.unwrap(), int(&server, &["PTTL", KEY]) > 0)
        };
        let was = look();
        for (head, commands) in &bad {
            let reply = call(&server, *head, commands);
            let refused =
                matches!(&reply, Reply::Error(message) if message.contains("nothing was done"));
            assert!(refused, "{head:?} {commands:?}: {reply:?}");
            assert_eq!(look(), was, "{head:?} {commands:?}");
        }
    }
    // The limits of valid input.
    for (token, who, retention) in [
        ("36", "x", "1000"),
        ("37", &long[1..], "315360000000"),
        ("9007199254740991", "\u{fc} x", "0"),
    ] {
        let reply = call(&server, [token, who, retention], set);
        assert_eq!(reply.items().unwrap()[0].text().unwrap(), "done", "{token}");
    }
}

/// A label that is not UTF-8 does not hide its mark.
#[tokio::test]
async fn mark_with_a_label_that_is_not_utf_8_counts() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let mut set = cmd("SET");
    set.arg(KEY).arg(b"34 1772357412345 w\xffb");
    set.query_async::<()>(&mut redis).await.unwrap();
    let fence = Fence::new();
    let error = error_of(fence.enter(&mut redis, &fencing("cart/7", 33)).await);
    assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
    fence.enter(&mut redis, &fencing("cart/7", 34)).await.unwrap();
}
