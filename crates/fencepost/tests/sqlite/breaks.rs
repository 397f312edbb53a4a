//! A holder in another process learns of a break at once, not with its next renewal.

use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{LossCause, Moment};

use super::other::{LONG, Other, ask, url};
use super::{connect, place, until, within};

/// How many rounds to measure; the figures are printed. Without it, enough to see that it works.
const ROUNDS: &str = "FENCEPOST_BREAK_ROUNDS";

fn has_socket(path: &std::path::Path) -> bool {
    let inside = std::fs::read_dir(path.with_extension("db.d")).unwrap();
    inside.flatten().any(|entry| entry.file_name().to_string_lossy().starts_with("w-"))
}

/// The lease of each holder runs for minutes, and its renewal is due in more than one: only a notification comes sooner.
#[tokio::test(flavor = "multi_thread")]
async fn a_broken_holder_in_another_process_learns_at_once() {
    let rounds: usize = std::env::var(ROUNDS).map_or(3, |rounds| rounds.parse().unwrap());
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let mut spans = Vec::new();
    for _ in 0..rounds.min(1000) {
        let mut holder = Other::start(None, "022", "hold", &url(&place.path));
        assert!(holder.says().starts_with("granted"));
        until(|| has_socket(&place.path));
        let start = BootClock.now();
        let broken = fp.break_lock("x").await.unwrap().unwrap();
        assert!(broken.confirmed, "it was not confirmed");
        let said = holder.says();
        let lost: u64 = said.strip_prefix("lost broken ").expect(&said).parse().unwrap();
        spans.push(Moment::from_nanos(lost).since(start));
    }
    spans.sort_unstable();
    let at = |part: usize| spans[(spans.len() * part / 100).min(spans.len() - 1)];
    eprintln!("break to loss, {} rounds: p50 {:?}, p99 {:?}", spans.len(), at(50), at(99));
}

/// The holder's client has no socket yet, or its client has released it all before.
#[tokio::test(flavor = "multi_thread")]
async fn a_break_right_after_the_grant_is_not_missed() {
    let place = place();
    let (ours, theirs) = (connect(&place.path).await.unwrap(), connect(&place.path).await.unwrap());
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
async fn a_client_breaks_its_own_grant() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let guard = fp.lock("x").ttl(LONG).acquire().await.unwrap();
    assert!(fp.break_lock("x").await.unwrap().unwrap().confirmed);
    assert_eq!(within(guard.lost()).await, LossCause::Broken);
    // The confirmation is not the end of the note: a release says the same however often it comes.
    let error = fp.release("x", guard.owner()).await.unwrap_err();
    assert_eq!(*error.kind(), fencepost::ErrorKind::NotHeld(Some(LossCause::Broken)), "{error}");
}

/// A script has its grant in no process: there is nobody to wait for.
#[tokio::test]
async fn a_script_is_not_waited_for() {
    let place = place();
    super::used(&place.path, true).await;
    let fp = connect(&place.path).await.unwrap();
    let broken = fp.break_lock("x").await.unwrap().unwrap();
    assert!(!broken.confirmed);
    assert_eq!(ask(None, "break", &url(&place.path)), "free");
}

/// A break that is told to the wrong, or made up, costs a renewal.
#[tokio::test(flavor = "multi_thread")]
async fn a_forged_notification_ends_nothing() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let guard = fp.lock("x").ttl(LONG).acquire().await.unwrap();
    until(|| has_socket(&place.path));
    let sender = std::os::unix::net::UnixDatagram::unbound().unwrap();
    let before = guard.standing().deadline();
    let mut messages = vec![Vec::new(), vec![0; 8], vec![0; 16], vec![0; 17], vec![255; 4096]];
    messages.push(guard.owner().bits().to_be_bytes().to_vec());
    for entry in std::fs::read_dir(place.path.with_extension("db.d")).unwrap().flatten() {
        if entry.file_name().to_string_lossy().starts_with("w-") {
            for message in &messages {
                sender.send_to(message, entry.path()).unwrap();
            }
        }
    }
    until(|| guard.standing().deadline() > before);
    guard.check().unwrap();
    guard.release().await.unwrap();
}

/// What a store's owner makes of the names there must not decide where another user, or root, sends anything.
#[tokio::test(flavor = "multi_thread")]
async fn a_notification_goes_to_sockets_of_the_store_only() {
    let place = place();
    super::used(&place.path, true).await;
    let directory = place.path.with_extension("db.d");
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
    // Opening sees whether anybody listens there, and leaves those that live.
    let fp = connect(&place.path).await.unwrap();
    fp.break_lock("x").await.unwrap().unwrap();
    let mut message = [0; 32];
    assert_eq!(ours.recv(&mut message).unwrap(), 16);
    for (number, other) in others.iter().enumerate() {
        let nothing = other.recv(&mut message).unwrap_err();
        assert_eq!(nothing.kind(), std::io::ErrorKind::WouldBlock, "socket {number}");
    }
}

/// What a holder is told when its file is gone.
#[tokio::test(flavor = "multi_thread")]
async fn a_holder_whose_file_is_gone_learns_the_cause() {
    let place = place();
    let fp = connect(&place.path).await.unwrap();
    let guard = fp.lock("x").ttl(Duration::from_millis(600)).acquire().await.unwrap();
    std::fs::remove_file(&place.path).unwrap();
    assert_eq!(within(guard.lost()).await, LossCause::StoreUnreachable);
    let why = guard.standing().renewal_error().expect("its renewals failed");
    let path = place.path.display().to_string();
    assert!(why.contains(&path) && why.contains("removed or replaced"), "{why}");
}
