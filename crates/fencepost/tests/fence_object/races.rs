//! Sixteen writers at once: first on the server alone, then through the fence.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use fencepost::ErrorKind;
use fencepost::fences::object::object_store::{
    self, ObjectStore as _, ObjectStoreExt as _, PutMode, UpdateVersion,
};
use tokio::sync::Barrier;
use tokio::task::JoinSet;

use super::{Site, fencing};

const WRITERS: usize = 16;
const ROUNDS: usize = 3;
/// Fewer rounds where all writers collide: the server queues them and takes seconds to refuse.
const COLLISION_ROUNDS: usize = 2;

fn is_changed(error: &object_store::Error) -> bool {
    use object_store::Error::{AlreadyExists, Precondition};
    matches!(error, AlreadyExists { .. } | Precondition { .. })
}

/// All writers meet between the read and the put, so that each round is a collision. Without the condition they are
/// the control, which must lose updates.
async fn bare(site: &Site, on_condition: bool) -> (u64, u64) {
    let path = site.path(if on_condition { "with" } else { "without" });
    site.store().put(&path, "0".into()).await.unwrap();
    let barrier = Arc::new(Barrier::new(WRITERS));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (store, path, barrier) = (site.store(), path.clone(), Arc::clone(&barrier));
        writers.spawn(async move {
            let mut done = 0;
            for _ in 0..COLLISION_ROUNDS {
                let got = store.get(&path).await.unwrap();
                let (e_tag, version) = (got.meta.e_tag.clone(), got.meta.version.clone());
                let value = String::from_utf8(got.bytes().await.unwrap().to_vec()).unwrap();
                let next = (value.parse::<u64>().unwrap() + 1).to_string();
                barrier.wait().await;
                let mode = if on_condition {
                    PutMode::Update(UpdateVersion { e_tag, version })
                } else {
                    PutMode::Overwrite
                };
                match store.put_opts(&path, next.into(), mode.into()).await {
                    Ok(_) => done += 1,
                    Err(error) => assert!(is_changed(&error), "{error}"),
                }
                barrier.wait().await;
            }
            done
        });
    }
    let done = writers.join_all().await.into_iter().sum();
    let value = site.store().get(&path).await.unwrap().bytes().await.unwrap();
    (done, String::from_utf8(value.to_vec()).unwrap().parse().unwrap())
}

/// The fence depends on this.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn server_compares_and_sets() {
    let site = Site::new();
    let (done, value) = bare(&site, true).await;
    eprintln!("{WRITERS} writers, on a condition: {done} acknowledged, the counter is {value}");
    assert_eq!(done, value);
    let (done, value) = bare(&site, false).await;
    eprintln!("control without a condition: {done} acknowledged, the counter is {value}");
    assert!(value < done, "the control lost nothing, so nothing was shown");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn server_creates_an_object_once() {
    let site = Site::new();
    // Each object has a queue of its own, so they need not wait for each other.
    let mut rounds = JoinSet::new();
    for round in 0..COLLISION_ROUNDS {
        let site = site.clone();
        rounds.spawn(async move {
            let barrier = Arc::new(Barrier::new(WRITERS));
            let mut writers = JoinSet::new();
            for writer in 0..WRITERS {
                let (store, barrier) = (site.store(), Arc::clone(&barrier));
                let path = site.path(&format!("new/{round}"));
                writers.spawn(async move {
                    barrier.wait().await;
                    let body = writer.to_string().into();
                    let put = store.put_opts(&path, body, PutMode::Create.into()).await;
                    if let Err(error) = &put {
                        assert!(is_changed(error), "{error}");
                    }
                    put.is_ok()
                });
            }
            writers.join_all().await.into_iter().filter(|made| *made).count()
        });
    }
    assert_eq!(rounds.join_all().await, [1; COLLISION_ROUNDS]);
}

/// The worst possible lock: it grants to everybody at once.
async fn fenced(site: &Site, envelope: bool) {
    let granted = Arc::new(AtomicU64::new(0));
    let mut writers = JoinSet::new();
    for _ in 0..WRITERS {
        let (site, granted) = (site.clone(), Arc::clone(&granted));
        writers.spawn(async move {
            let fence = site.fence().await;
            let (as_envelope, as_pointer) =
                (fence.envelope("e").unwrap(), fence.pointer("p").unwrap());
            let (mut done, mut refused) = (0_u64, 0_u64);
            for _ in 0..ROUNDS {
                let fencing = fencing(granted.fetch_add(1, Ordering::SeqCst) + 1);
                let read = if envelope {
                    as_envelope.read(&fencing).await
                } else {
                    as_pointer.read(&fencing).await
                };
                let written = match read {
                    Err(error) => Err(error),
                    Ok(data) => {
                        let value = data.map_or(0, |data| {
                            std::str::from_utf8(&data).unwrap().parse::<u64>().unwrap()
                        });
                        let next = (value + 1).to_string();
                        if envelope {
                            as_envelope.write(&fencing, next).await
                        } else {
                            as_pointer.write(&fencing, next).await
                        }
                    }
                };
                match written {
                    Ok(()) => done += 1,
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Stale, "{error}");
                        refused += 1;
                    }
                }
            }
            (done, refused)
        });
    }
    let (mut done, mut refused) = (0, 0);
    for (one_done, one_refused) in writers.join_all().await {
        (done, refused) = (done + one_done, refused + one_refused);
    }
    let fence = site.fence().await;
    let data = if envelope {
        fence.envelope("e").unwrap().peek().await.unwrap()
    } else {
        fence.pointer("p").unwrap().peek().await.unwrap()
    };
    let value: u64 = std::str::from_utf8(&data.unwrap()).unwrap().parse().unwrap();
    let shape = if envelope { "envelope" } else { "pointer" };
    eprintln!("{WRITERS} writers, {shape}: {done} acknowledged, {refused} refused, it is {value}");
    assert!(done > 0 && refused > 0);
    assert_eq!(done, value);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_writers_lose_nothing_in_an_envelope() {
    fenced(&Site::new(), true).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_writers_lose_nothing_behind_a_pointer() {
    let site = Site::new();
    fenced(&site, false).await;
    // Refused writers have removed their data: what is left was current once.
    let pointer = site.fence().await.pointer("p").unwrap();
    let deleted = pointer.gc(std::time::Duration::ZERO).await.unwrap();
    let left = site.files("p.data").await;
    assert_eq!(left.len(), 1, "{deleted} were deleted, and these are left: {left:?}");
    let value: usize = super::text(&pointer).await.parse().unwrap();
    assert_eq!(deleted + 1, value, "each write left one");
}

/// Threads of one holder: all succeed, in some order.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn sixteen_threads_of_one_holder_all_write() {
    let site = Site::new();
    let mut writers = JoinSet::new();
    for writer in 0..WRITERS {
        let site = site.clone();
        writers.spawn(async move {
            let envelope = site.fence().await.envelope("e").unwrap();
            envelope.write(&fencing(7), writer.to_string()).await
        });
    }
    for written in writers.join_all().await {
        written.unwrap();
    }
}
