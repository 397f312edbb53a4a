//! Which commands run behind the check, and which do not.

use fencepost::fences::redis::Fence;
use fencepost::fences::redis::redis::{cmd, pipe};
use fencepost::{ErrorKind, Label};
use fencepost_testkit::Redis;

use super::common::*;

#[tokio::test]
async fn helpers_run_the_commands_they_are_named_for() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    let checked = fence.checked(&fencing("cart/7", 33));
    let ((), fields, sum, gone, there): ((), i64, i64, i64, Option<String>) = checked
        .set("a", "one")
        .hset("h", "field", 5)
        .incr("n", 42)
        .del("nothing")
        .get("a")
        .run(&mut redis)
        .await
        .unwrap();
    assert_eq!((fields, sum, gone, there.as_deref()), (1, 42, 0, Some("one")));
    // The first command entered.
    let mark = fence.mark(&mut redis, &name("cart/7")).await.unwrap().unwrap();
    assert_eq!(mark.token, token(33));
    assert!(mark.set_by.ends_with(&format!(":{}", std::process::id())), "{mark:?}");
    let stale =
        error_of(fence.checked(&fencing("cart/7", 32)).set("a", "two").run::<()>(&mut redis).await);
    assert_eq!(stale.kind(), ErrorKind::Stale);
    assert_eq!(text(&server, &["GET", "a"]), "one");
}

/// The message has the same words as on every store, because people and scripts search for them.
#[tokio::test]
async fn refusal_names_the_holder_and_the_time() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    fence
        .enter_as(&mut redis, &fencing("invoice/42", 34), &Label::new("web-2:4711").unwrap())
        .await
        .unwrap();
    let message = error_of(fence.enter(&mut redis, &fencing("invoice/42", 33)).await).one_line();
    let expected = "token 33 for \"invoice/42\" is stale: 34 has entered (web-2:4711, 20";
    assert!(message.starts_with(expected) && message.ends_with("Z)"), "{message}");
}

#[tokio::test]
async fn values_and_keys_are_bytes() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    let every: Vec<u8> = (0..=255).collect();
    let ((), back): ((), Vec<u8>) = fence
        .checked(&fencing("a", 1))
        .set(&every, &*every)
        .get(&every)
        .run(&mut redis)
        .await
        .unwrap();
    assert_eq!(back, every);
}

/// Lua compares strings lexically and prints large numbers with an exponent: neither may have an effect.
#[tokio::test]
async fn tokens_are_compared_to_their_last_digit() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    for number in [9, 10, 99_999_999_999_999, 100_000_000_000_001, 9_007_199_254_740_990] {
        fence.enter(&mut redis, &fencing("a", number)).await.unwrap();
        let below = error_of(fence.enter(&mut redis, &fencing("a", number - 1)).await);
        assert_eq!(below.kind(), ErrorKind::Stale, "{number}");
        assert_eq!(fence.mark(&mut redis, &name("a")).await.unwrap().unwrap().token, token(number));
    }
    fence.enter(&mut redis, &fencing("a", 9_007_199_254_740_991)).await.unwrap();
}

#[tokio::test]
async fn flushed_script_is_sent_again() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    for round in 1..=3 {
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        let (sum,): (i64,) =
            fence.checked(&fencing("a", round)).incr("n", 1).run(&mut redis).await.unwrap();
        assert_eq!(sum, round.cast_signed(), "once, not twice");
        server.command(&["SCRIPT", "FLUSH"]).unwrap();
        fence.reset(&mut redis, &name("a"), None, "ops", "a test").await.unwrap();
    }
}

/// A script is not rolled back: the error must say which commands ran.
#[tokio::test]
async fn failed_command_is_named_and_the_earlier_ones_are_done() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    server.command(&["LPUSH", "list", "x"]).unwrap();
    let fence = Fence::new();
    let three =
        fence.checked(&fencing("a", 5)).set("before", 1).hset("list", "f", 1).set("after", 1);
    let error = error_of(three.run::<()>(&mut redis).await);
    assert_eq!(error.kind(), ErrorKind::Invalid);
    let message = error.one_line();
    for words in ["command 2, HSET, failed", "the one before it was done", "WRONGTYPE"] {
        assert!(message.contains(words), "{message}");
    }
    assert_eq!(int(&server, &["EXISTS", "before", "after"]), 1);
    assert_eq!(fence.mark(&mut redis, &name("a")).await.unwrap().unwrap().token, token(5));
    let first = fence.checked(&fencing("a", 5)).hset("list", "f", 1);
    let message = error_of(first.run::<()>(&mut redis).await).one_line();
    assert!(message.contains("nothing was written but the mark"), "{message}");
    // A command that is invalid by itself: the server refuses it when it runs.
    let odd = fence.checked(&fencing("a", 5)).command(cmd("FROB").arg("x"), "x");
    let message = error_of(odd.run::<()>(&mut redis).await).one_line();
    assert!(message.contains("command 1, FROB, failed"), "{message}");
}

#[tokio::test]
async fn unchecked_command_is_refused_before_anything_is_sent() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    for (command, key) in [
        (cmd("BLPOP").arg("jobs").arg(0).take(), "jobs"),
        (cmd("subscribe").arg("news").take(), "news"),
        (cmd("EVAL").arg("return 1").arg(1).arg("k").take(), "k"),
        (cmd("SET").arg("k").arg(1).take(), "another"),
        (cmd("SET").arg("fencepost:mark:{a}a").arg(1).take(), "fencepost:mark:{a}a"),
        (cmd("").arg("k").take(), "k"),
    ] {
        // Earlier commands are not run either.
        let calls =
            fence.checked(&fencing("a", 9)).set("before", 1).command(&command, key).set("b", 1);
        assert_eq!(error_of(calls.run::<()>(&mut redis).await).kind(), ErrorKind::Invalid);
    }
    let none: &[&str] = &[];
    for command in ["MULTI", "EXEC", "FLUSHALL"] {
        let calls = fence.checked(&fencing("a", 9)).command(&cmd(command), none);
        assert_eq!(error_of(calls.run::<()>(&mut redis).await).kind(), ErrorKind::Invalid);
    }
    assert_eq!(int(&server, &["DBSIZE"]), 0, "nothing was sent");
}

/// Whether they are named as keys or not: without its mark a fence would let a stale token in.
#[tokio::test]
async fn commands_cannot_reach_the_keys_of_the_fence() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    fence.reset(&mut redis, &name("a"), Some(token(9)), "ops", "a test").await.unwrap();
    let (mark, resets, none) = ("fencepost:mark:{a}a", "fencepost:resets:{a}a", &[] as &[&str]);
    for command in [
        cmd("DEL").arg(mark).take(),
        cmd("UNLINK").arg("x").arg(resets).take(),
        cmd("RENAME").arg("x").arg(mark).take(),
    ] {
        let error = error_of(
            fence.checked(&fencing("a", 9)).command(&command, none).run::<()>(&mut redis).await,
        );
        assert_eq!(error.kind(), ErrorKind::Invalid);
        assert!(error.one_line().contains("a key of the fence"), "{error}");
        assert_eq!(int(&server, &["EXISTS", mark, resets]), 2);
    }
    let others = cmd("SET").arg("fencepost:marks").arg("my fencepost:mark:").take();
    fence.checked(&fencing("a", 9)).command(&others, none).run::<()>(&mut redis).await.unwrap();
}

#[tokio::test]
async fn pipeline_is_checked_as_a_whole() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    let mut pipeline = pipe();
    pipeline.cmd("LPUSH").arg("jobs").arg(&["x", "y"]).cmd("LRANGE").arg("jobs").arg(0).arg(-1);
    pipeline.cmd("PING");
    let (count, jobs, pong): (i64, Vec<String>, String) =
        fence.checked(&fencing("a", 2)).pipeline(&pipeline, "jobs").run(&mut redis).await.unwrap();
    assert_eq!((count, jobs, pong.as_str()), (2, vec!["y".into(), "x".into()], "PONG"));
    let stale = fence.checked(&fencing("a", 1)).pipeline(&pipeline, &["jobs"]);
    assert_eq!(error_of(stale.run::<()>(&mut redis).await).kind(), ErrorKind::Stale);
    assert_eq!(int(&server, &["LLEN", "jobs"]), 2);
    let unknown = fence.checked(&fencing("a", 2)).pipeline(&pipeline, &["jobs", "other"]);
    let message = error_of(unknown.run::<()>(&mut redis).await).one_line();
    assert!(message.contains("\"other\" is not an argument"), "{message}");
}

/// The limit is Lua's stack: just below it works.
#[tokio::test]
async fn long_command_is_passed_on_whole() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    let values: Vec<u32> = (0..6998).collect();
    let push = cmd("RPUSH").arg("list").arg(&values).take();
    let (count,): (usize,) =
        fence.checked(&fencing("a", 1)).command(&push, "list").run(&mut redis).await.unwrap();
    assert_eq!(count, values.len());
    let push = cmd("RPUSH").arg("list").arg(&values).arg(1).take();
    let error = error_of(
        fence.checked(&fencing("a", 1)).command(&push, "list").run::<()>(&mut redis).await,
    );
    assert!(error.one_line().contains("split it"), "{error}");
}

#[tokio::test]
async fn reply_of_another_type_reports_that_the_commands_ran() {
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    let wrong = fence
        .checked(&fencing("a", 1))
        .set("k", "text")
        .get("k")
        .run::<((), i64)>(&mut redis)
        .await;
    assert!(error_of(wrong).one_line().contains("the commands ran"));
    assert_eq!(text(&server, &["GET", "k"]), "text");
}
