//! How long marks are kept, and what is told when they can not be.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost::fences::redis::{self, Fence};
use fencepost::guarantees::Correctness;
use fencepost_testkit::wait::{SOON, until};
use fencepost_testkit::{Persistence, Redis};

use super::common::*;

const KEY: &str = "fencepost:mark:{a}a";

#[tokio::test]
async fn marks_do_not_expire_unless_told() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let (fence, day) = (Fence::new(), Duration::from_hours(24));
    fence.enter(&mut redis, &name("a"), token(1)).await.unwrap();
    assert_eq!(int(&server, &["PTTL", KEY]), -1);
    let brief = fence.clone().retain(day).unwrap();
    brief.enter(&mut redis, &name("a"), token(1)).await.unwrap();
    let left = int(&server, &["PTTL", KEY]);
    assert!(left > 0 && left <= day.as_millis() as i64, "{left}");
    // Every accepted call renews it, a read too; a refused one does not.
    server.command(&["PEXPIRE", KEY, "60000"]).unwrap();
    brief.enter(&mut redis, &name("a"), token(1)).await.unwrap();
    assert!(int(&server, &["PTTL", KEY]) > 60_000);
    brief.checked(&name("a"), token(2)).get("x").run::<()>(&mut redis).await.unwrap();
    server.command(&["PEXPIRE", KEY, "60000"]).unwrap();
    assert_eq!(
        *error_of(brief.enter(&mut redis, &name("a"), token(1)).await).kind(),
        ErrorKind::Stale
    );
    assert!(int(&server, &["PTTL", KEY]) <= 60_000);
    // The last one decides.
    fence.enter(&mut redis, &name("a"), token(2)).await.unwrap();
    assert_eq!(int(&server, &["PTTL", KEY]), -1);
    for bad in [Duration::ZERO, Duration::from_millis(999), Duration::from_hours(24 * 3651)] {
        assert_eq!(*error_of(fence.clone().retain(bad)).kind(), ErrorKind::Invalid);
    }
}

/// What a retention costs: whoever was paused for longer gets in.
#[tokio::test]
async fn a_mark_that_ran_out_keeps_nobody_out() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let brief = Fence::new().retain(Duration::from_secs(1)).unwrap();
    brief.enter(&mut redis, &name("a"), token(34)).await.unwrap();
    assert_eq!(
        *error_of(brief.enter(&mut redis, &name("a"), token(33)).await).kind(),
        ErrorKind::Stale
    );
    until(SOON, "the mark has run out", || Ok(server.command(&["EXISTS", KEY])?.int()? == 0))
        .unwrap();
    brief.enter(&mut redis, &name("a"), token(33)).await.unwrap();
}

#[tokio::test]
async fn a_crash_of_a_synced_server_keeps_the_marks() {
    let server = Redis::builder().persist(Persistence::Always).start().unwrap();
    let fence = Fence::new();
    let mut redis = connect(&server).await;
    assert_eq!(redis::fit(&mut redis).await.unwrap(), Correctness::Fit);
    fence.checked(&name("a"), token(34)).set("k", 1).run::<()>(&mut redis).await.unwrap();
    fence.reset(&mut redis, &name("a"), Some(token(50)), "ops", "a test").await.unwrap();
    server.restart().unwrap();
    let mut redis = connect(&server).await;
    let late = fence.checked(&name("a"), token(49)).set("k", 2).run::<()>(&mut redis).await;
    assert_eq!(*error_of(late).kind(), ErrorKind::Stale);
    assert_eq!(text(&server, &["GET", "k"]), "1");
    assert_eq!(redis::audit(&mut redis, None).await.unwrap().len(), 1);
}

/// The control of the one above: on a server that keeps nothing, the stale one gets in. `fit` has said so.
#[tokio::test]
async fn a_crash_of_a_server_without_persistence_loses_them_and_fit_tells_before() {
    let server = Redis::builder().start().unwrap();
    let fence = Fence::new();
    let mut redis = connect(&server).await;
    let Correctness::Unfit { why, remedy } = redis::fit(&mut redis).await.unwrap() else {
        panic!("it keeps nothing");
    };
    assert!(why.contains("appendonly is no, so a restart forgets the marks"), "{why}");
    assert!(remedy.contains("appendonly yes"), "{remedy}");
    assert!(!why.contains("lock") && !why.contains("grant"), "{why}");
    fence.enter(&mut redis, &name("a"), token(34)).await.unwrap();
    server.restart().unwrap();
    let mut redis = connect(&server).await;
    fence.enter(&mut redis, &name("a"), token(33)).await.unwrap();
}

#[tokio::test]
async fn fit_tells_of_replicas_evictions_and_rights() {
    let server = Redis::builder()
        .persist(Persistence::Always)
        .config("maxmemory-policy", "allkeys-lru")
        .start()
        .unwrap();
    let replica = Redis::builder().replica_of(&server).start().unwrap();
    let mut redis = connect(&server).await;
    let Correctness::Unfit { why, .. } = redis::fit(&mut redis).await.unwrap() else {
        panic!("it is unfit");
    };
    assert!(why.contains("a mark can be evicted") && why.contains("a replica"), "{why}");
    let mut at_replica = connect(&replica).await;
    let error = error_of(Fence::new().enter(&mut at_replica, &name("a"), token(1)).await);
    assert_eq!(*error.kind(), ErrorKind::Refused);
    assert!(error.to_string().contains("replica"), "{error}");
    server.command(&["ACL", "SETUSER", "default", "-config", "-info"]).unwrap();
    let Correctness::Unfit { why, .. } = redis::fit(&mut redis).await.unwrap() else {
        panic!("nobody knows");
    };
    assert!(why.contains("may not read its configuration"), "{why}");
}

/// Redis asks only before a script's first write whether there is memory left: what keeps the mark must not be it.
#[tokio::test]
async fn a_full_server_refuses_checked_commands_too() {
    let server = Redis::builder().config("maxmemory-policy", "noeviction").start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    let brief = fence.clone().retain(Duration::from_hours(1)).unwrap();
    // The mark before it, and the one that is asked for: for ever, or for a time.
    for (was, now, ends) in [
        (&fence, &fence, false),
        (&brief, &fence, false),
        (&fence, &brief, true),
        (&brief, &brief, true),
    ] {
        was.enter(&mut redis, &name("a"), token(5)).await.unwrap();
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
        let equal =
            error_of(now.checked(&name("a"), token(5)).set("k", "v").run::<()>(&mut redis).await);
        assert_eq!(*equal.kind(), ErrorKind::Unreachable, "{equal}");
        assert!(equal.to_string().contains("OOM"), "{equal}");
        let kept = int(&server, &["PTTL", KEY]);
        assert_eq!(kept > 0, ends, "a command that failed keeps the mark as well: {kept}");
        let higher =
            error_of(now.checked(&name("a"), token(6)).set("k", "v").run::<()>(&mut redis).await);
        assert_eq!(*higher.kind(), ErrorKind::Unreachable, "{higher}");
        assert!(text(&server, &["GET", KEY]).starts_with("5 "), "the mark is as it was");
        assert_eq!(int(&server, &["EXISTS", "k"]), 0);
        // To enter again and to delete needs no memory.
        now.checked(&name("a"), token(5)).del("k").run::<()>(&mut redis).await.unwrap();
        server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    }
}

/// A replica's mark may be an old one, so it serves no fenced read either.
#[tokio::test]
async fn a_replica_serves_no_fenced_read() {
    let server = Redis::builder().start().unwrap();
    let replica = Redis::builder().replica_of(&server).start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    fence.checked(&name("a"), token(5)).set("k", "v").run::<()>(&mut redis).await.unwrap();
    until(SOON, "the replica has the mark", || Ok(replica.command(&["EXISTS", KEY])?.int()? == 1))
        .unwrap();
    let mut at_replica = connect(&replica).await;
    for fence in [fence.clone(), fence.retain(Duration::from_hours(1)).unwrap()] {
        for calls in
            [fence.checked(&name("a"), token(5)).get("k"), fence.checked(&name("a"), token(5))]
        {
            let error = error_of(calls.run::<()>(&mut at_replica).await);
            assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
            assert!(error.to_string().contains("name its primary"), "{error}");
        }
    }
}

/// A mark that can not be compared with keeps everybody out, and can be set anew.
#[tokio::test]
async fn a_damaged_mark_is_an_error_and_not_no_mark() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    for damage in ["", "34", "34 ", "many 1 x", "-1 1 x", "34 x y"] {
        server.command(&["SET", KEY, damage]).unwrap();
        let error = error_of(fence.enter(&mut redis, &name("a"), token(99)).await);
        assert_eq!(*error.kind(), ErrorKind::Refused, "{damage:?}: {error}");
        assert!(error.to_string().contains("fence reset"), "{error}");
    }
    assert!(
        fence
            .reset(&mut redis, &name("a"), Some(token(5)), "ops", "it was damaged")
            .await
            .unwrap()
            .is_none()
    );
    fence.enter(&mut redis, &name("a"), token(5)).await.unwrap();
    server.command(&["DEL", KEY]).unwrap();
    server.command(&["LPUSH", KEY, "x"]).unwrap();
    let error = error_of(fence.enter(&mut redis, &name("a"), token(99)).await);
    assert_eq!(*error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.to_string().contains("did not write"), "{error}");
    fence.reset(&mut redis, &name("a"), None, "ops", "it was none").await.unwrap();
    fence.enter(&mut redis, &name("a"), token(1)).await.unwrap();
    let told: Vec<_> =
        redis::audit(&mut redis, None).await.unwrap().into_iter().map(|reset| reset.why).collect();
    assert_eq!(told, ["it was damaged", "it was none"]);
}

#[tokio::test]
async fn resets_are_capped_at_a_thousand() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    for number in 1..=1005 {
        fence
            .reset(&mut redis, &name("a"), Some(token(number)), "ops", &number.to_string())
            .await
            .unwrap();
    }
    let kept = redis::audit(&mut redis, None).await.unwrap();
    assert_eq!((kept.len(), &*kept[0].why, &*kept[999].why), (1000, "6", "1005"));
}

/// What the docs say a mark costs.
#[tokio::test]
async fn a_mark_is_small() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let (fence, long) = (Fence::new(), name("invoice/2026/march/0042"));
    for name in [&name("a"), &long] {
        fence.enter(&mut redis, name, token(1_772_357_412_345_678)).await.unwrap();
    }
    let key = format!("fencepost:mark:{{{long}}}{long}");
    let (small, usual) =
        (int(&server, &["MEMORY", "USAGE", KEY]), int(&server, &["MEMORY", "USAGE", &key]));
    eprintln!(
        "a mark takes {small} bytes for a name of 1 byte, {usual} for one of {}",
        long.as_str().len()
    );
    assert!(usual < 300, "{usual}");
}

#[tokio::test]
async fn a_url_says_where_and_how_long() {
    let server = Redis::builder().password("s3cret").start().unwrap();
    let url = format!("{}?beside=%7Buser%3A7%7D&retention=1d", server.url());
    let mut redis = redis::connect(&url).await.unwrap();
    let fence = redis.fence().unwrap();
    fence.enter(&mut redis.connection, &name("a"), token(1)).await.unwrap();
    assert!(int(&server, &["PTTL", "fencepost:mark:{user:7}a"]) > 86_000_000);
    for (bad, kind) in [
        ("redis://:s3cret@127.0.0.1:1", ErrorKind::Unreachable),
        ("redis://:s3cret@127.0.0.1?prefix=x", ErrorKind::Invalid),
        ("redis://:s3cret@127.0.0.1?retention=soon", ErrorKind::Invalid),
        (&format!("redis://:wr0ng@127.0.0.1:{}", server.port()), ErrorKind::Refused),
        ("nonsense", ErrorKind::Invalid),
    ] {
        let error = error_of(redis::connect(bad).await);
        assert_eq!(*error.kind(), kind, "{bad}: {error}");
        assert!(!error.to_string().contains("s3cret"), "{error}");
        assert!(!error.to_string().contains("wr0ng"), "{error}");
    }
}

#[tokio::test]
async fn a_server_that_is_gone_is_out_of_reach() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    server.kill().unwrap();
    let error = error_of(Fence::new().enter(&mut redis, &name("a"), token(1)).await);
    assert_eq!(*error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(*error_of(redis::fit(&mut redis).await).kind(), ErrorKind::Unreachable);
}
