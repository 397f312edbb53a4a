//! The keys match `docs/layouts/fences.md`.

use fencepost::Label;
use fencepost::fences::redis::Fence;
use fencepost_testkit::Redis;

use super::common::*;

/// The page, the code and a real server agree. The page writes FROM, TO, MILLIS, BY and WHY where these stand.
#[tokio::test]
async fn keys_match_the_page() {
    let page = include_str!("../../../../docs/layouts/fences.md");
    let server = Redis::builder().start().unwrap();
    let mut redis = connect(&server).await;
    let fence = Fence::new();
    let has = |shown: &str| {
        assert!(page.contains(shown), "docs/layouts/fences.md does not have:\n{shown}");
    };

    let who = Label::new("web-1").unwrap();
    fence.enter_as(&mut redis, &fencing("cart:7", 33), &who).await.unwrap();
    let key = "fencepost:mark:{cart:7}cart:7";
    let mark = text(&server, &["GET", key]);
    let words: Vec<_> = mark.splitn(3, ' ').collect();
    assert_eq!(words[1].parse::<u64>().unwrap().to_string().len(), 13, "milliseconds: {mark}");
    has(&format!("`{key}` is `\"{} 1795052632000 {}\"`", words[0], words[2]));

    fence.reset(&mut redis, &name("cart:7"), Some(token(7)), "ann", "restored").await.unwrap();
    let reset = text(&server, &["LINDEX", "fencepost:resets:{cart:7}cart:7", "-1"]);
    let lines: Vec<_> = reset.split('\n').collect();
    let numbers: Vec<_> = lines[0].split(' ').collect();
    assert_eq!((&numbers[..2], &lines[1..]), (&["33", "7"][..], &["ann", "restored"][..]));
    assert_eq!(numbers[2].parse::<u64>().unwrap().to_string().len(), 13, "milliseconds: {reset}");
    has("| `fencepost:mark:{TAG}NAME` | string | `TOKEN MILLIS WHO` |");
    has(
        "| `fencepost:resets:{TAG}NAME` | list | `FROM TO MILLIS`, LF, `BY`, LF, `WHY`; the last 1000 |",
    );
}
