//! Files of the format before open and go on.

use fencepost::Value;

use super::records::{LONG, runs};
use super::{connect, edit, place, used};

/// What format 2 added.
const BACK_TO_1: &str = "
    ALTER TABLE locks DROP COLUMN value;
    DROP TABLE fencepost_records;
    PRAGMA user_version = 1;
";

#[tokio::test(flavor = "multi_thread")]
async fn a_file_of_format_1_goes_on_with_its_locks_and_tokens() {
    let place = place();
    let token = used(&place.path, true).await;
    edit(&place.path, BACK_TO_1);
    // Several at once: one of them brings it up to date.
    let opening: Vec<_> = (0..6)
        .map(|_| {
            let path = place.path.clone();
            tokio::spawn(async move { connect(&path).await })
        })
        .collect();
    for opened in opening {
        let fp = opened.await.unwrap().unwrap();
        assert!(fp.lock("x").try_acquire().await.unwrap().is_none(), "the lease runs on");
    }
    let fp = connect(&place.path).await.unwrap();
    let holder = fp.inspect("x").await.unwrap().holder.unwrap();
    assert_eq!((holder.token.unwrap().get(), holder.value), (token, None));
    let leadership = fp.election("e").ttl(LONG).campaign("me").await.unwrap();
    assert!(leadership.term().get() > token);
    let leader = fp.election("e").leader().await.unwrap().unwrap();
    assert_eq!(leader.value, Some(Value::found(b"me")));
    assert!(runs(&fp, "k", "").await.unwrap());
    assert!(!runs(&fp, "k", "").await.unwrap());
}
