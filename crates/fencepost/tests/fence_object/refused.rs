//! What is refused: unsuitable stores, third-party objects, invalid calls.

use std::io::{Read as _, Write as _};
use std::net::TcpListener;
use std::sync::Arc;

use fencepost::fences::object::object_store::aws::{AmazonS3, AmazonS3Builder, S3ConditionalPut};
use fencepost::fences::object::object_store::local::LocalFileSystem;
use fencepost::fences::object::object_store::memory::InMemory;
use fencepost::fences::object::object_store::{ObjectStoreExt as _, RetryConfig};
use fencepost::fences::object::{Envelope, ObjectFence};
use fencepost::{ErrorKind, FencingToken, LockName};

use super::{Site, builder, fails, fencing, name, token};

fn s3(endpoint: &str) -> AmazonS3Builder {
    let once = RetryConfig { max_retries: 0, ..RetryConfig::default() };
    let builder = builder().with_endpoint(endpoint).with_bucket_name("b");
    builder.with_allow_http(true).with_skip_signature(true).with_retry(once)
}

#[tokio::test]
async fn store_without_conditional_put_is_refused_and_named() {
    let directory = tempfile::tempdir().unwrap();
    let local = Arc::new(LocalFileSystem::new_with_prefix(directory.path()).unwrap());
    let words = ["LocalFileSystem", "conditional put", "S3ConditionalPut::ETagMatch"];
    fails(ObjectFence::open(local, "").await, ErrorKind::Refused, &words);
    let left = std::fs::read_dir(directory.path()).unwrap().count();
    assert_eq!(left, 0, "the probe is taken away");

    let disabled = s3("http://127.0.0.1:1").with_conditional_put(S3ConditionalPut::Disabled);
    let words = ["AmazonS3", "S3ConditionalPut::ETagMatch"];
    let store = Arc::new(disabled.build().unwrap());
    fails(ObjectFence::open(store, "").await, ErrorKind::Refused, &words);
}

/// A server that gives this reply to each request.
fn server_that_says(answer: &'static str) -> Arc<AmazonS3> {
    server_that(move |_| answer)
}

/// A server that replies by the head of each request.
fn server_that(mut answer: impl FnMut(&str) -> &'static str + Send + 'static) -> Arc<AmazonS3> {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            let mut request = [0; 8192];
            let length = client.read(&mut request).unwrap_or(0);
            let answer = answer(&String::from_utf8_lossy(&request[..length]).to_lowercase());
            let end = "Content-Length: 0\r\nConnection: close\r\n\r\n";
            let _ = client.write_all(format!("HTTP/1.1 {answer}\r\n{end}").as_bytes());
        }
    });
    Arc::new(s3(&endpoint).build().unwrap())
}

/// Some servers do not support conditions. Some say so, some ignore them.
#[tokio::test]
async fn server_without_conditions_is_refused() {
    let store = server_that_says("200 OK\r\nETag: \"1\"");
    let words = ["AmazonS3", "If-None-Match", "ignores conditions"];
    fails(ObjectFence::open(store, "").await, ErrorKind::Refused, &words);
    let store = server_that_says("501 Not Implemented");
    let words = ["AmazonS3", "no conditional put", "S3ConditionalPut::ETagMatch"];
    fails(ObjectFence::open(store, "").await, ErrorKind::Refused, &words);
}

/// A server with half of the support creates an object once, and then lets everybody overwrite it.
#[tokio::test]
async fn server_with_only_one_condition_is_refused() {
    let mut made = 0;
    let store = server_that(move |request| {
        made += usize::from(request.contains("if-none-match"));
        let again = request.contains("if-none-match") && made > 1;
        if again { "412 Precondition Failed" } else { "200 OK\r\nETag: \"1\"" }
    });
    let words = ["AmazonS3", "whose If-Match did not hold", "ignores conditions"];
    fails(ObjectFence::open(store, "").await, ErrorKind::Refused, &words);
}

/// Without `s3:ListBucket`, S3 replies 403 for a missing object.
#[tokio::test]
async fn credentials_without_list_permission_are_refused_on_open() {
    let mut made = false;
    let store = server_that(move |request| {
        let first = request.starts_with("put") && !std::mem::replace(&mut made, true);
        match request.get(..3) {
            Some("put") if first => "200 OK\r\nETag: \"1\"",
            Some("put") => "412 Precondition Failed",
            _ => "403 Forbidden",
        }
    });
    fails(ObjectFence::open(store, "").await, ErrorKind::Refused, &["credentials", "to list"]);
}

#[tokio::test]
async fn unusable_store_reports_the_cause() {
    let nobody = Arc::new(s3("http://127.0.0.1:1").build().unwrap());
    fails(ObjectFence::open(nobody, "").await, ErrorKind::Unreachable, &["object store"]);
    let no_bucket = server_that_says("404 Not Found");
    fails(ObjectFence::open(no_bucket, "").await, ErrorKind::Refused, &["create the bucket"]);
    let forbidden = server_that_says("403 Forbidden");
    fails(ObjectFence::open(forbidden, "").await, ErrorKind::Refused, &["credentials"]);
    let ill = server_that_says("503 Slow Down");
    fails(ObjectFence::open(ill, "").await, ErrorKind::Unreachable, &["object store"]);
}

#[tokio::test]
async fn third_party_object_is_not_changed() {
    let site = Site::new();
    let (fence, store) = (site.fence().await, site.store());
    for body in ["{\"sum\": 1}", ""] {
        store.put(&site.path("theirs"), body.into()).await.unwrap();
        let words = ["theirs", "was not written through a fence", "choose another path"];
        let envelope = fence.envelope("theirs").unwrap();
        fails(envelope.enter(&fencing(1)).await, ErrorKind::Refused, &words);
        fails(envelope.write(&fencing(1), "x").await, ErrorKind::Refused, &words);
        fails(envelope.reset(&name(), None, "ops", "try").await, ErrorKind::Refused, &words);
        let pointer = fence.pointer("theirs").unwrap();
        fails(pointer.write(&fencing(1), "x").await, ErrorKind::Refused, &words);
        fails(pointer.peek().await, ErrorKind::Refused, &words);
        let there = store.get(&site.path("theirs")).await.unwrap().bytes().await.unwrap();
        assert_eq!(there, body);
    }
    assert!(site.files("theirs.data").await.is_empty());
}

#[tokio::test]
async fn shape_is_fixed_and_damage_is_reported() {
    let site = Site::new();
    let (fence, store) = (site.fence().await, site.store());
    fence.envelope("e").unwrap().write(&fencing(1), "12345").await.unwrap();
    fence.pointer("p").unwrap().write(&fencing(1), "12345").await.unwrap();
    let opened = fence.pointer("e").unwrap().read(&fencing(2)).await;
    fails(opened, ErrorKind::Refused, &["other shape", "`envelope`"]);
    let opened = fence.envelope("p").unwrap().write(&fencing(2), "x").await;
    fails(opened, ErrorKind::Refused, &["other shape", "`pointer`"]);
    let whole = store.get(&site.path("e")).await.unwrap().bytes().await.unwrap();
    store.put(&site.path("e"), whole.slice(..whole.len() - 1).into()).await.unwrap();
    let read = fence.envelope("e").unwrap().read(&fencing(2)).await;
    fails(read, ErrorKind::Refused, &["damaged", "restore"]);
}

#[tokio::test]
async fn invalid_calls_are_refused() {
    let fence = ObjectFence::open(Arc::new(InMemory::new()), "in/here").await.unwrap();
    for bad in
        ["", "a//b", "../x", ".", "a/./b", "a\nb", "x.data", "x.data/1-2", ".fencepost-probe-1"]
    {
        fails(fence.envelope(bad), ErrorKind::Invalid, &["path"]);
        fails(fence.pointer(bad), ErrorKind::Invalid, &["path"]);
    }
    let opened = ObjectFence::open(Arc::new(InMemory::new()), "a//b").await;
    fails(opened, ErrorKind::Invalid, &["a//b", "path"]);
    let envelope = fence.envelope("e").unwrap();
    let large = vec![0; Envelope::MAX_BYTES + 1];
    let written = envelope.write(&fencing(1), large).await;
    fails(written, ErrorKind::Invalid, &["16777217", "use a pointer"]);
    envelope.write(&fencing(1), vec![0; Envelope::MAX_BYTES]).await.unwrap();
    let other = LockName::new("ledger").unwrap();
    let (theirs, words) =
        (FencingToken::new(other.clone(), token(99)), ["invoice/42", "ledger", "reset the mark"]);
    fails(envelope.read(&theirs).await, ErrorKind::Invalid, &words);
    fails(envelope.write(&theirs, "x").await, ErrorKind::Invalid, &words);
    fails(envelope.reset(&other, None, "ops", "x").await, ErrorKind::Invalid, &["invoice/42"]);
    assert_eq!(envelope.mark(&name()).await.unwrap().unwrap().token, token(1));
}
