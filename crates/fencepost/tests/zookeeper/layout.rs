//! The nodes match `docs/layouts/zookeeper.md`, and a record of another layout is refused.

use fencepost::ErrorKind;
use fencepost_testkit::records::begin;
use fencepost_testkit::{LONG, connect, fails, ms};

use super::common::Site;

const PAGE: &str = include_str!("../../../../docs/layouts/zookeeper.md");

/// The page, the code and a real server agree. The page writes UUID, XX, TOKEN, RETENTION and LABEL where these stand.
#[tokio::test]
async fn nodes_match_the_page() {
    let site = Site::shared();
    let client = site.client().await;
    let data = |path: &str| site.server.get(&format!("{}{path}", site.chroot)).unwrap().unwrap();
    let shown = |path: &str, data: &str| {
        let line = format!("{path:<37}\"{}\"", data.replace('\n', "\\n"));
        assert!(PAGE.contains(&line), "docs/layouts/zookeeper.md does not have:\n{line}");
    };
    let node = |name: &str| {
        let node = site.children(name).remove(0);
        let uuid = node.strip_prefix("_c_").unwrap().split_once("-lock-").unwrap().0.to_owned();
        let path = format!("{name}/{node}");
        (path.replace(&uuid, "UUID"), data(&path))
    };
    let _guard = client.lock("orders/7").ttl(ms(30_000)).label("web-1").acquire().await.unwrap();
    let (path, text) = node("/orders/7");
    shown(&path, &text);
    let _leader = client.election("e").ttl(LONG).campaign("10.0.0.7").await.unwrap();
    let (path, text) = node("/e");
    shown(&path, &text);
    begin(&client, "k").await.done("412 invoices").await.unwrap();
    let shards = site.children("/.fencepost/records");
    let shard = shards.iter().find(|shard| shard.len() == 2).unwrap();
    let record = data(&format!("/.fencepost/records/{shard}/once%2Fk"));
    let mut lines = record.splitn(3, '\n');
    let (head, _label, result) =
        (lines.next().unwrap(), lines.next().unwrap(), lines.next().unwrap());
    let words: Vec<_> = head.split(' ').collect();
    assert!(
        words.len() == 5 && words[3..].iter().all(|word| word.parse::<u64>().is_ok()),
        "{record}"
    );
    let head = words[..3].join(" ");
    shown("/.fencepost/records/XX/once%2Fk", &format!("{head} TOKEN RETENTION\nLABEL\n{result}"));
    // A client that has written no record yet reads the leader's clock.
    site.client().await.once_records().await.unwrap();
    assert_eq!(data("/.fencepost/records/clock"), "");
    assert!(PAGE.contains("| `PATH/.fencepost/records/clock` | empty;"));
}

/// The page writes UUID and HEX for the hash of the owner.
#[tokio::test]
async fn nodes_of_other_styles_match_the_page() {
    let site = Site::shared();
    for (style, start, kind) in [("latch", "_c_", "-latch-"), ("kazoo", "", "__lock__")] {
        let client = connect(&format!("{}?style={style}", site.url())).await;
        let _guard = client.lock(style).ttl(ms(30_000)).label("web-1").acquire().await.unwrap();
        let node = site.children(&format!("/{style}")).remove(0);
        let (hash, number) = node.strip_prefix(start).unwrap().split_once(kind).unwrap();
        let digits: String = hash.chars().filter(char::is_ascii_hexdigit).collect();
        assert_eq!((digits.len(), number), (32, "0000000000"), "{node}");
        let hash = if hash.contains('-') { "UUID" } else { "HEX" };
        let shown = format!("`PATH/NAME/{start}{hash}{kind}NNNNNNNNNN`");
        assert!(PAGE.contains(&shown), "docs/layouts/zookeeper.md does not have:\n{shown}");
        let data = site.server.get(&format!("{}/{style}/{node}", site.chroot)).unwrap().unwrap();
        assert_eq!(data, "web-1\nfencepost 1 30000 -", "the same data");
    }
}

/// Nobody confirms this break, so its note stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn note_of_a_break_matches_the_page() {
    let site = Site::shared();
    let client = site.client().await;
    let _ = client.lock("b").ttl(LONG).lease_only().acquire().await.unwrap().detach();
    client.break_lock("b").await.unwrap().unwrap();
    let notes = site.children("/.fencepost/broken");
    let [hash] = notes.as_slice() else { panic!("{notes:?}") };
    assert!(hash.len() == 32 && hash.chars().all(|it| it.is_ascii_hexdigit()), "{hash}");
    assert!(
        PAGE.contains("| `PATH/.fencepost/broken/HASH` | a break, for the holder that it ended |")
    );
}

/// If it counted as absent, its work would run again.
#[tokio::test]
async fn record_of_another_layout_is_refused_and_unchanged() {
    let site = Site::shared();
    let client = site.client().await;
    begin(&client, "k").await.done("x").await.unwrap();
    let shards = site.children("/.fencepost/records");
    let shard = shards.iter().find(|shard| shard.len() == 2).unwrap();
    let path = format!("{}/.fencepost/records/{shard}/once%2Fk", site.chroot);
    let record = "fencepost 2 done 7 60000\nme\nx";
    site.server.delete(&path).unwrap();
    site.server.create(&path, record).unwrap();
    let said = [&*path, "delete", "update"];
    fails(client.once("k").begin().await, ErrorKind::Refused, &said);
    fails(client.once("k").record().await, ErrorKind::Refused, &said);
    assert_eq!(site.server.get(&path).unwrap().unwrap(), record);
}
