//! A writer that is killed when its data are there and the pointer does not name them yet.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use fencepost::fences::object::ObjectFence;
use fencepost::object_store::aws::AmazonS3Builder;
use fencepost_process::Process;
use fencepost_testkit::gate::Act;

use super::{Site, name, text, token};

const ENDPOINT: &str = "FENCEPOST_TEST_ENDPOINT";
const BUCKET: &str = "FENCEPOST_TEST_BUCKET";
const FOLDER: &str = "FENCEPOST_TEST_FOLDER";

/// What the other process does.
#[tokio::test]
#[ignore = "it is run, and killed, by the test below"]
async fn the_writer_that_is_killed() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else { return };
    let store = AmazonS3Builder::new()
        .with_endpoint(endpoint)
        .with_bucket_name(std::env::var(BUCKET).unwrap())
        .with_allow_http(true)
        .with_skip_signature(true)
        .build();
    let folder = std::env::var(FOLDER).unwrap();
    let fence = ObjectFence::open(Arc::new(store.unwrap()), &folder).await.unwrap();
    let pointer = fence.pointer("p").unwrap();
    pointer.write(&name(), token(34), "never seen").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_killed_writer_leaves_is_never_seen_and_is_swept() {
    let site = Site::new();
    let gate = site.gate();
    let pointer = site.fence().await.pointer("p").unwrap();
    pointer.write(&name(), token(33), "old").await.unwrap();
    pointer.enter(&name(), token(34)).await.unwrap();
    let ((arrived, arrival), (killed, death)) = (channel(), channel::<()>());
    let hold = move || {
        arrived.send(()).unwrap();
        death.recv().unwrap();
    };
    gate.once("PUT", site.ends("p"), Act::LoseRequest(Box::new(hold)));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "killed::the_writer_that_is_killed", "--ignored"])
        .env(ENDPOINT, gate.endpoint())
        .env(BUCKET, site.server.bucket())
        .env(FOLDER, &site.folder)
        .stdout(Stdio::null());
    let mut writer = Process::spawn(command).unwrap();
    arrival.recv_timeout(Duration::from_mins(1)).unwrap();
    assert_eq!(site.files("p.data").await.len(), 2, "its data are there");
    writer.kill().unwrap();
    killed.send(()).unwrap();
    assert_eq!(pointer.read(&name(), token(35)).await.unwrap().unwrap(), "old");
    assert_eq!(pointer.sweep(Duration::from_hours(1)).await.unwrap(), 0, "it might be slow");
    assert_eq!(pointer.sweep(Duration::ZERO).await.unwrap(), 1);
    assert_eq!(site.files("p.data").await.len(), 1);
    assert_eq!(text(&pointer).await, "old");
}
