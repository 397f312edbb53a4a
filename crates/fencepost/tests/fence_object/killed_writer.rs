//! A writer is killed after it has put its data and before the pointer names them.

use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::Duration;

use fencepost::fences::object::ObjectFence;
use fencepost_process::Process;
use fencepost_testkit::gate::Act;

use super::{Site, builder, fencing, text};

const ENDPOINT: &str = "FENCEPOST_TEST_ENDPOINT";
const BUCKET: &str = "FENCEPOST_TEST_BUCKET";
const FOLDER: &str = "FENCEPOST_TEST_FOLDER";

/// The other process.
#[tokio::test]
#[ignore = "it is run, and killed, by the test below"]
async fn writer() {
    let Ok(endpoint) = std::env::var(ENDPOINT) else { return };
    let store = builder()
        .with_endpoint(endpoint)
        .with_bucket_name(std::env::var(BUCKET).unwrap())
        .with_allow_http(true)
        .with_skip_signature(true)
        .build();
    let folder = std::env::var(FOLDER).unwrap();
    let fence = ObjectFence::open(Arc::new(store.unwrap()), &folder).await.unwrap();
    let pointer = fence.pointer("p").unwrap();
    pointer.write(&fencing(34), "never seen").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn data_of_a_killed_writer_is_never_visible_and_is_removed() {
    let site = Site::new();
    let gate = site.gate();
    let pointer = site.fence().await.pointer("p").unwrap();
    pointer.write(&fencing(33), "old").await.unwrap();
    pointer.enter(&fencing(34)).await.unwrap();
    let ((arrived, arrival), (killed, death)) = (channel(), channel::<()>());
    let hold = move || {
        arrived.send(()).unwrap();
        death.recv().unwrap();
    };
    gate.once("PUT", site.ends("p"), Act::LoseRequest(Box::new(hold)));
    let mut command = Command::new(std::env::current_exe().unwrap());
    command
        .args(["--exact", "killed_writer::writer", "--ignored"])
        .env(ENDPOINT, gate.endpoint())
        .env(BUCKET, site.server.bucket())
        .env(FOLDER, &site.folder)
        .stdout(Stdio::null());
    let mut writer = Process::spawn(command).unwrap();
    arrival.recv_timeout(Duration::from_mins(1)).unwrap();
    assert_eq!(site.files("p.data").await.len(), 2, "its data are there");
    writer.kill().unwrap();
    killed.send(()).unwrap();
    assert_eq!(pointer.read(&fencing(35)).await.unwrap().unwrap(), "old");
    assert_eq!(pointer.gc(Duration::from_hours(1)).await.unwrap(), 0, "it might be slow");
    assert_eq!(pointer.gc(Duration::ZERO).await.unwrap(), 1);
    assert_eq!(site.files("p.data").await.len(), 1);
    assert_eq!(text(&pointer).await, "old");
}
