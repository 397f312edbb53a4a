//! The keys in etcd match `docs/layouts/etcd.md`, and a record of another layout is refused.

use fencepost::ErrorKind;
use fencepost_testkit::records::begin;
use fencepost_testkit::{Etcd, connect, fails};

use crate::common::{LONG, queue};

const PAGE: &str = include_str!("../../../../docs/layouts/etcd.md");

/// The page, the code and a real server agree. The page writes LEASE, TOKEN, SECONDS and LABEL where these stand.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_match_the_page() {
    let etcd = Etcd::builder().start().unwrap();
    let client = connect(&etcd.url()).await;
    let value = |key: &str| etcd.etcdctl(&["get", "--print-value-only", key]).unwrap();
    let shown = |key: &str, value: &str| {
        let line = format!("{key:<37}\"{}\"", value.trim_end().replace('\n', "\\n"));
        assert!(PAGE.contains(&line), "docs/layouts/etcd.md does not have:\n{line}");
    };
    let _guard = client.lock("orders/7").label("web-1").ttl(LONG).acquire().await.unwrap();
    let lease = queue(&etcd, "orders/7").remove(0);
    shown("orders/7/LEASE", &value(&format!("orders/7/{lease}")));
    let candidate =
        client.election("e").label("web-2").ttl(LONG).campaign("10.0.0.7").await.unwrap();
    let lease = queue(&etcd, "e").remove(0);
    shown("e/LEASE", &value(&format!("e/{lease}")));
    shown("fencepost.candidate/LEASE.label", &value(&format!("fencepost.candidate/{lease}.label")));
    drop(candidate);
    begin(&client, "k").await.done("412 invoices").await.unwrap();
    let record = value("fencepost.once/once/k.");
    let (head, result) = record.split_once('\n').unwrap();
    let words: Vec<_> = head.splitn(7, ' ').collect();
    let numbers = [words[4], words[5]].map(str::parse::<u64>);
    assert!(numbers.iter().all(Result::is_ok), "{record}");
    shown(
        "fencepost.once/once/k.",
        &format!("{} TOKEN SECONDS LABEL\n{result}", words[..4].join(" ")),
    );
}

/// Nobody confirms this break, so its note stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn note_of_a_break_matches_the_page() {
    let etcd = Etcd::builder().start().unwrap();
    let client = connect(&etcd.url()).await;
    let guard = client.lock("b").ttl(LONG).lease_only().acquire().await.unwrap();
    let (token, lease) = (guard.token(), queue(&etcd, "b").remove(0));
    let _ = guard.detach();
    client.break_lock("b").await.unwrap().unwrap();
    let notes = etcd.etcdctl(&["get", "--prefix", "fencepost.broken/"]).unwrap();
    assert_eq!(notes.trim_end(), format!("fencepost.broken/{lease}.{token}"), "the value is empty");
    assert!(PAGE.contains("| `fencepost.broken/LEASE.TOKEN` | empty |"));
}

/// If it counted as absent, its work would run again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn record_of_another_layout_is_refused_and_unchanged() {
    let etcd = Etcd::builder().start().unwrap();
    let client = connect(&etcd.url()).await;
    let (key, record) = ("fencepost.once/once/k.", "fencepost once 2 done 7 60 me\nx");
    etcd.etcdctl(&["put", key, record]).unwrap();
    let said = [key, "another layout", "delete", "update fencepost"];
    fails(client.once("k").begin().await, ErrorKind::Refused, &said);
    fails(client.once("k").record().await, ErrorKind::Refused, &said);
    assert_eq!(etcd.etcdctl(&["get", "--print-value-only", key]).unwrap().trim_end(), record);
}
