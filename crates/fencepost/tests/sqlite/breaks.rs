//! A holder in another process learns of a break at once, not with its next renewal.

use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{LossCause, Moment};

use super::other_process::{LONG, OtherProcess, ask, url};
use super::{connect, store_file, until, within};

/// How many rounds to measure; the figures are printed. By default only a few.
const ROUNDS: &str = "FENCEPOST_BREAK_ROUNDS";

fn has_socket(path: &std::path::Path) -> bool {
    let inside = std::fs::read_dir(path.with_extension("db.d")).unwrap();
    inside.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("w-"))
}

/// The lease of each holder lasts minutes, and its renewal is due in more than one: only a notification comes sooner.
#[tokio::test(flavor = "multi_thread")]
async fn broken_holder_in_another_process_learns_at_once() {
    let rounds: usize = std::env::var(ROUNDS).map_or(3, |rounds| rounds.parse().unwrap());
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let mut spans = Vec::new();
    for _ in 0..rounds.min(1000) {
        let mut holder = OtherProcess::start(None, "022", "hold", &url(&store_file.path));
        assert!(holder.says().starts_with("granted"));
        until(|| has_socket(&store_file.path));
        let start = BootClock.now();
        let broken = fp.break_lock("x").await.unwrap().unwrap();
        assert!(broken.confirmed, "it was not confirmed");
        let line = holder.says();
        let lost: u64 = line.strip_prefix("lost broken ").expect(&line).parse().unwrap();
        spans.push(Moment::from_nanos(lost).since(start));
    }
    spans.sort_unstable();
    let at = |part: usize| spans[(spans.len() * part / 100).min(spans.len() - 1)];
    eprintln!("break to loss, {} rounds: p50 {:?}, p99 {:?}", spans.len(), at(50), at(99));
}

/// The holder's client has no socket yet, or has released all earlier grants.
#[tokio::test(flavor = "multi_thread")]
async fn break_right_after_the_grant_is_not_missed() {
    let store_file = store_file();
    let (ours, theirs) =
        (connect(&store_file.path).await.unwrap(), connect(&store_file.path).await.unwrap());
    for round in 0..20 {
        if round % 2 == 0 {
            ours.lock("before").acquire().await.unwrap().release().await.unwrap();
        }
        let guard = ours.lock("x").ttl(LONG).acquire().await.unwrap();
        let broken = theirs.break_grant("x", guard.token()).await.unwrap().unwrap();
        assert_eq!(within(guard.lost()).await, LossCause::Broken);
        assert!(broken.confirmed, "round {round}");
    }
}

/// A client that breaks its own grant needs no socket.
#[tokio::test(flavor = "multi_thread")]
async fn client_breaks_its_own_grant() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let guard = fp.lock("x").ttl(LONG).acquire().await.unwrap();
    assert!(fp.break_lock("x").await.unwrap().unwrap().confirmed);
    assert_eq!(within(guard.lost()).await, LossCause::Broken);
    // The note outlives the confirmation: a retried release gets the same answer.
    let error = fp.release("x", guard.owner()).await.unwrap_err();
    let why = (error.kind(), error.loss_cause());
    assert_eq!(why, (fencepost::ErrorKind::NotHeld, Some(LossCause::Broken)), "{error}");
}

/// No process keeps a lease-only grant, so there is nothing to wait for.
#[tokio::test]
async fn break_of_a_lease_only_grant_does_not_wait() {
    let store_file = store_file();
    super::used(&store_file.path, true).await;
    let fp = connect(&store_file.path).await.unwrap();
    let broken = fp.break_lock("x").await.unwrap().unwrap();
    assert!(!broken.confirmed);
    assert_eq!(ask(None, "break", &url(&store_file.path)), "free");
}

/// A forged or misdirected notification only costs a renewal.
#[tokio::test(flavor = "multi_thread")]
async fn forged_notification_ends_nothing() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let guard = fp.lock("x").ttl(LONG).acquire().await.unwrap();
    until(|| has_socket(&store_file.path));
    let sender = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let before = guard.handle().deadline();
    let mut messages = vec![Vec::new(), vec![0; 8], vec![0; 16], vec![0; 17], vec![255; 4096]];
    messages.push(guard.owner().bits().to_be_bytes().to_vec());
    for entry in std::fs::read_dir(store_file.path.with_extension("db.d")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("w-") {
            for message in &messages {
                sender.send_to(message, entry.path()).unwrap();
            }
        }
    }
    until(|| guard.handle().deadline() > before);
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// Names that the store's owner creates there must not direct messages of another user, or root, elsewhere.
#[tokio::test(flavor = "multi_thread")]
async fn notification_goes_to_sockets_of_the_store_only() {
    let store_file = store_file();
    super::used(&store_file.path, true).await;
    let directory = store_file.path.with_extension("db.d");
    let listen = |path: &std::path::Path| {
        let socket = std::os::unix::net::UnixDatagram::bind(path).unwrap();
        socket.set_nonblocking(true).unwrap();
        socket
    };
    let outside = listen(&directory.with_file_name("outside"));
    std::os::unix::fs::symlink("../outside", directory.join("w-0000000000000001")).unwrap();
    let mut others = vec![outside, listen(&directory.join("w-no.name"))];
    if rustix::process::geteuid().is_root() {
        let path = directory.join("w-0000000000000002");
        others.push(listen(&path));
        std::os::unix::fs::chown(path, Some(65534), None).unwrap();
    }
    let ours = listen(&directory.join("w-0000000000000003"));
    // Opening the store checks each socket for a listener, and keeps the live ones.
    let fp = connect(&store_file.path).await.unwrap();
    fp.break_lock("x").await.unwrap().unwrap();
    let mut message = [0; 32];
    assert_eq!(ours.recv(&mut message).unwrap(), 16);
    for (number, other) in others.iter().enumerate() {
        let nothing = other.recv(&mut message).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "socket {number}");
    }
}

/// The cause that a holder gets when its file is removed.
#[tokio::test(flavor = "multi_thread")]
async fn holder_whose_file_was_removed_learns_the_cause() {
    let store_file = store_file();
    let fp = connect(&store_file.path).await.unwrap();
    let guard = fp.lock("x").ttl(Duration::from_millis(600)).acquire().await.unwrap();
    std::fs::remove_file(&store_file.path).unwrap();
    assert_eq!(within(guard.lost()).await, LossCause::StoreUnreachable);
    let why = guard.handle().renewal_error().expect("its renewals failed");
    let path = store_file.path.display().to_string();
    assert!(why.contains(&path) && why.contains("removed or replaced"), "{why}");
}
