//! How long marks are kept, and what is reported when they can be lost.

use std::time::Duration;

use fencepost::ErrorKind;
use fencepost::fences::redis::{self, Fence};
use fencepost::guarantees::Correctness;
use fencepost_testkit::wait::{SOON, until};
use fencepost_testkit::{Persistence, Redis};

use super::common::*;

const KEY: &str = "fencepost:mark:{a}a";

#[tokio::test]
async fn marks_do_not_expire_by_default() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let (fence, day) = (Fence::new(), Duration::from_hours(24));
    fence.enter(&mut redis, &fencing("a", 1)).await.unwrap();
    assert_eq!(int(&server, &["PTTL", KEY]), -1);
    let brief = fence.clone().retain(day).unwrap();
    brief.enter(&mut redis, &fencing("a", 1)).await.unwrap();
    let left = int(&server, &["PTTL", KEY]);
    assert!(left > 0 && left <= day.as_millis() as i64, "{left}");
    // Each accepted call renews it, reads included; a refused one does not.
    server.command(&["PEXPIRE", KEY, "60000"]).unwrap();
    brief.enter(&mut redis, &fencing("a", 1)).await.unwrap();
    assert!(int(&server, &["PTTL", KEY]) > 60_000);
    brief.checked(&fencing("a", 2)).get("x").run::<()>(&mut redis).await.unwrap();
    server.command(&["PEXPIRE", KEY, "60000"]).unwrap();
    assert_eq!(error_of(brief.enter(&mut redis, &fencing("a", 1)).await).kind(), ErrorKind::Stale);
    assert!(int(&server, &["PTTL", KEY]) <= 60_000);
    // The last call decides.
    fence.enter(&mut redis, &fencing("a", 2)).await.unwrap();
    assert_eq!(int(&server, &["PTTL", KEY]), -1);
    for bad in [Duration::ZERO, Duration::from_millis(999), Duration::from_hours(24 * 3651)] {
        assert_eq!(error_of(fence.clone().retain(bad)).kind(), ErrorKind::Invalid);
    }
}

/// The cost of a retention: a holder that was paused for longer gets in.
#[tokio::test]
async fn expired_mark_refuses_nobody() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let brief = Fence::new().retain(Duration::from_secs(1)).unwrap();
    brief.enter(&mut redis, &fencing("a", 34)).await.unwrap();
    assert_eq!(error_of(brief.enter(&mut redis, &fencing("a", 33)).await).kind(), ErrorKind::Stale);
    until(SOON, "the mark has run out", || Ok(server.command(&["EXISTS", KEY])?.int()? == 0))
        .unwrap();
    brief.enter(&mut redis, &fencing("a", 33)).await.unwrap();
}

#[tokio::test]
async fn marks_survive_a_crash_of_a_synced_server() {
    let server = Redis::builder().persist(Persistence::Always).start().unwrap();
    let fence = Fence::new();
    let mut redis = connect(&server).await;
    assert_eq!(redis::fit(&mut redis).await.unwrap(), Correctness::Fit);
    fence.checked(&fencing("a", 34)).set("k", 1).run::<()>(&mut redis).await.unwrap();
    fence.reset(&mut redis, &name("a"), Some(token(50)), "ops", "a test").await.unwrap();
    server.restart().unwrap();
    let mut redis = connect(&server).await;
    let late = fence.checked(&fencing("a", 49)).set("k", 2).run::<()>(&mut redis).await;
    assert_eq!(error_of(late).kind(), ErrorKind::Stale);
    assert_eq!(text(&server, &["GET", "k"]), "1");
    assert_eq!(redis::audit(&mut redis, None).await.unwrap().len(), 1);
}

/// Control for the test above: a server without persistence lets the stale token in, and `fit` has reported it.
#[tokio::test]
async fn control_marks_are_lost_without_persistence_and_fit_reports_it() {
    let server = Redis::builder().start().unwrap();
    let fence = Fence::new();
    let mut redis = connect(&server).await;
    let Correctness::Unfit { why, remedy } = redis::fit(&mut redis).await.unwrap() else {
        panic!("it keeps nothing");
    };
    assert!(why.contains("appendonly is no, so a restart forgets the marks"), "{why}");
    assert!(remedy.contains("appendonly yes"), "{remedy}");
    assert!(!why.contains("lock") && !why.contains("grant"), "{why}");
    fence.enter(&mut redis, &fencing("a", 34)).await.unwrap();
    server.restart().unwrap();
    let mut redis = connect(&server).await;
    fence.enter(&mut redis, &fencing("a", 33)).await.unwrap();
}

#[tokio::test]
async fn fit_reports_replicas_eviction_and_missing_rights() {
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
    let error = error_of(Fence::new().enter(&mut at_replica, &fencing("a", 1)).await);
    assert_eq!(error.kind(), ErrorKind::Refused);
    assert!(error.one_line().contains("replica"), "{error}");
    server.command(&["ACL", "SETUSER", "default", "-config", "-info"]).unwrap();
    let Correctness::Unfit { why, .. } = redis::fit(&mut redis).await.unwrap() else {
        panic!("nobody knows");
    };
    assert!(why.contains("may not read its configuration"), "{why}");
}

/// Redis checks its memory only before a script's first write, which must not be the one that keeps the mark.
#[tokio::test]
async fn full_server_refuses_checked_commands() {
    let server = Redis::builder().config("maxmemory-policy", "noeviction").start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    let brief = fence.clone().retain(Duration::from_hours(1)).unwrap();
    // The retention of the existing mark, and of the next call.
    for (was, now, ends) in [
        (&fence, &fence, false),
        (&brief, &fence, false),
        (&fence, &brief, true),
        (&brief, &brief, true),
    ] {
        was.enter(&mut redis, &fencing("a", 5)).await.unwrap();
        server.command(&["CONFIG", "SET", "maxmemory", "1"]).unwrap();
        let equal =
            error_of(now.checked(&fencing("a", 5)).set("k", "v").run::<()>(&mut redis).await);
        assert_eq!(equal.kind(), ErrorKind::Unreachable, "{equal}");
        assert!(equal.one_line().contains("OOM"), "{equal}");
        let kept = int(&server, &["PTTL", KEY]);
        assert_eq!(kept > 0, ends, "a command that failed keeps the mark as well: {kept}");
        let higher =
            error_of(now.checked(&fencing("a", 6)).set("k", "v").run::<()>(&mut redis).await);
        assert_eq!(higher.kind(), ErrorKind::Unreachable, "{higher}");
        assert!(text(&server, &["GET", KEY]).starts_with("5 "), "the mark is as it was");
        assert_eq!(int(&server, &["EXISTS", "k"]), 0);
        // Entering again and deleting need no memory.
        now.checked(&fencing("a", 5)).del("k").run::<()>(&mut redis).await.unwrap();
        server.command(&["CONFIG", "SET", "maxmemory", "0"]).unwrap();
    }
}

/// A replica's mark may be outdated, so it serves no fenced read either.
#[tokio::test]
async fn replica_refuses_fenced_reads() {
    let server = Redis::builder().start().unwrap();
    let replica = Redis::builder().replica_of(&server).start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    fence.checked(&fencing("a", 5)).set("k", "v").run::<()>(&mut redis).await.unwrap();
    until(SOON, "the replica has the mark", || Ok(replica.command(&["EXISTS", KEY])?.int()? == 1))
        .unwrap();
    let mut at_replica = connect(&replica).await;
    for fence in [fence.clone(), fence.retain(Duration::from_hours(1)).unwrap()] {
        for calls in [fence.checked(&fencing("a", 5)).get("k"), fence.checked(&fencing("a", 5))] {
            let error = error_of(calls.run::<()>(&mut at_replica).await);
            assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
            assert!(error.one_line().contains("name its primary"), "{error}");
        }
    }
}

/// A mark that cannot be compared refuses everybody until it is reset.
#[tokio::test]
async fn damaged_mark_is_an_error() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    for damage in ["", "34", "34 ", "many 1 x", "-1 1 x", "34 x y"] {
        server.command(&["SET", KEY, damage]).unwrap();
        let error = error_of(fence.enter(&mut redis, &fencing("a", 99)).await);
        assert_eq!(error.kind(), ErrorKind::Refused, "{damage:?}: {error}");
        assert!(error.one_line().contains("fence reset"), "{error}");
    }
    assert!(
        fence
            .reset(&mut redis, &name("a"), Some(token(5)), "ops", "it was damaged")
            .await
            .unwrap()
            .is_none()
    );
    fence.enter(&mut redis, &fencing("a", 5)).await.unwrap();
    server.command(&["DEL", KEY]).unwrap();
    server.command(&["LPUSH", KEY, "x"]).unwrap();
    let error = error_of(fence.enter(&mut redis, &fencing("a", 99)).await);
    assert_eq!(error.kind(), ErrorKind::Refused, "{error}");
    assert!(error.one_line().contains("did not write"), "{error}");
    fence.reset(&mut redis, &name("a"), None, "ops", "it was none").await.unwrap();
    fence.enter(&mut redis, &fencing("a", 1)).await.unwrap();
    let reasons: Vec<_> =
        redis::audit(&mut redis, None).await.unwrap().into_iter().map(|reset| reset.why).collect();
    assert_eq!(reasons, ["it was damaged", "it was none"]);
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

/// The size that the docs give.
#[tokio::test]
async fn mark_is_small() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let (fence, long) = (Fence::new(), "invoice/2026/march/0042");
    for name in ["a", long] {
        fence.enter(&mut redis, &fencing(name, 1_772_357_412_345_678)).await.unwrap();
    }
    let key = format!("fencepost:mark:{{{long}}}{long}");
    let (small, usual) =
        (int(&server, &["MEMORY", "USAGE", KEY]), int(&server, &["MEMORY", "USAGE", &key]));
    eprintln!("a mark takes {small} bytes for a name of 1 byte, {usual} for one of {}", long.len());
    assert!(usual < 300, "{usual}");
}

#[tokio::test]
async fn url_sets_slot_and_retention() {
    let server = Redis::builder().password("s3cret").start().unwrap();
    let url = format!("{}?beside=%7Buser%3A7%7D&retention=1d", server.url());
    let mut redis = redis::connect(&url).await.unwrap();
    let fence = redis.fence().unwrap();
    fence.enter(&mut redis.connection, &fencing("a", 1)).await.unwrap();
    assert!(int(&server, &["PTTL", "fencepost:mark:{user:7}a"]) > 86_000_000);
    for (bad, kind) in [
        ("redis://:s3cret@127.0.0.1:1", ErrorKind::Unreachable),
        ("redis://:s3cret@127.0.0.1?prefix=x", ErrorKind::Invalid),
        ("redis://:s3cret@127.0.0.1?retention=soon", ErrorKind::Invalid),
        (&format!("redis://:wr0ng@127.0.0.1:{}", server.port()), ErrorKind::Refused),
        ("nonsense", ErrorKind::Invalid),
    ] {
        let error = error_of(redis::connect(bad).await);
        assert_eq!(error.kind(), kind, "{bad}: {error}");
        assert!(!error.one_line().contains("s3cret"), "{error}");
        assert!(!error.one_line().contains("wr0ng"), "{error}");
    }
}

#[tokio::test]
async fn dead_server_is_unreachable() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    server.kill().unwrap();
    let error = error_of(Fence::new().enter(&mut redis, &fencing("a", 1)).await);
    assert_eq!(error.kind(), ErrorKind::Unreachable, "{error}");
    assert_eq!(error_of(redis::fit(&mut redis).await).kind(), ErrorKind::Unreachable);
}
