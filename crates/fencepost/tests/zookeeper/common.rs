//! A server that the tests share, each with a chroot of its own; clients, and waiting with a deadline.

use std::fmt::Debug;
use std::future::Future;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Error, ErrorKind, Fencepost, Guard, Moment};
use fencepost_testbed::ZooKeeper;
use tokio::task::JoinHandle;

/// A TTL that does not run out during a test: what ends before it did not end by expiry.
pub(crate) const LONG: Duration = Duration::from_mins(1);
/// How long a thing may take that should happen at once; far below [`LONG`].
pub(crate) const SOON: Duration = Duration::from_secs(10);

/// Room for an election and a move to another member, and short enough to see renewals.
pub(crate) const LEASE: Duration = Duration::from_secs(6);

pub(crate) const fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
}

/// A part of a server.
pub(crate) struct Site {
    pub(crate) server: Arc<ZooKeeper>,
    pub(crate) chroot: String,
}

impl Site {
    /// On a server that is shared with other tests while any of them runs: Java starts slowly.
    pub(crate) fn shared() -> Self {
        static SERVER: Mutex<Weak<ZooKeeper>> = Mutex::new(Weak::new());
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let mut slot = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
        let server = slot.upgrade().unwrap_or_else(|| {
            let builder = ZooKeeper::builder().tick_time(200).max_session_timeout(200_000);
            Arc::new(builder.start().unwrap())
        });
        *slot = Arc::downgrade(&server);
        Self { server, chroot: format!("/t{}", NEXT.fetch_add(1, Ordering::Relaxed)) }
    }

    pub(crate) fn url(&self) -> String {
        format!("zookeeper://{}{}", self.server.address(), self.chroot)
    }

    pub(crate) async fn client(&self) -> Fencepost {
        connect(&self.url()).await
    }

    /// The nodes under this path of ours.
    pub(crate) fn children(&self, path: &str) -> Vec<String> {
        self.server.children(&format!("{}{path}", self.chroot)).unwrap_or_default()
    }

    /// How many sessions the server has.
    pub(crate) fn sessions(&self) -> usize {
        let dump = self.server.four_letter("dump").unwrap();
        // Session Sets (n)/(m): lists each by when it expires; then the ephemerals.
        let sets = dump.split("ephemeral nodes dump").next().unwrap_or_default();
        sets.lines().filter(|line| line.trim_start().starts_with("0x")).count()
    }
}

pub(crate) async fn connect(url: &str) -> Fencepost {
    let end = now() + SOON;
    loop {
        match within(SOON, "a client connects, or says why not", Fencepost::connect(url)).await {
            // A machine that is too busy to answer in a second is not what is tested here.
            Err(error) if *error.kind() == ErrorKind::Unreachable && now() < end => {}
            outcome => return outcome.unwrap(),
        }
    }
}

pub(crate) fn now() -> Moment {
    BootClock.now()
}

/// Lets real time pass, where that is what the test is about.
pub(crate) async fn pass(span: Duration) {
    BootClock.alarm(now() + span).await;
}

/// Waits until the condition holds; a test that would hang fails instead.
pub(crate) async fn until(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let end = now() + SOON;
    while !holds().await {
        assert!(now() < end, "not within {SOON:?}: {what}");
        pass(Duration::from_millis(5)).await;
    }
}

/// What the future gives, unless it takes longer than `limit`.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::select! {
        value = future => value,
        () = pass(limit) => panic!("not within {limit:?}: {what}"),
    }
}

/// Somebody waits for the lock, as long as it takes.
pub(crate) fn waits(
    client: &Fencepost,
    name: &str,
    ttl: Duration,
) -> JoinHandle<fencepost::Result<Guard>> {
    tokio::spawn(client.lock(name).ttl(ttl).acquire())
}

/// The one who waited has the lock now.
pub(crate) async fn granted(waiter: JoinHandle<fencepost::Result<Guard>>) -> Guard {
    let guard = within(SOON, "the waiter is granted", waiter).await.unwrap().unwrap();
    guard.check().unwrap();
    guard
}

/// Waits until the guard was renewed that often, and never lost meanwhile.
pub(crate) async fn until_renewed(guard: &Guard, times: usize) {
    for _ in 0..times {
        let before = guard.deadline();
        until("the guard is renewed", async || {
            guard.check().expect("the guard is not lost");
            guard.deadline() > before
        })
        .await;
    }
}

/// Waits until this many wait for the lock.
pub(crate) async fn until_waiting(client: &Fencepost, name: &str, count: usize) {
    until(&format!("{count} wait for \"{name}\""), async || {
        // The ensemble may be about to elect a leader.
        client.inspect(name).await.is_ok_and(|info| info.waiting == count)
    })
    .await;
}

/// The lock can be had at once: nobody else's grant, and none that was given up, stands in the way.
pub(crate) async fn nothing_is_left(client: &Fencepost, name: &str) {
    let guard = client.lock(name).ttl(LONG).acquire_within(SOON).await;
    guard.expect("what stood in the way should have been undone").release().await.unwrap();
    until(&format!("nothing is left of \"{name}\""), async || {
        let info = client.inspect(name).await.unwrap();
        info.holder.is_none() && info.waiting == 0
    })
    .await;
}

/// The call failed like this, and says these words, on one line.
#[track_caller]
pub(crate) fn fails<T: Debug>(
    outcome: fencepost::Result<T>,
    kind: &ErrorKind,
    words: &[&str],
) -> Error {
    let error = outcome.expect_err("it should fail");
    let message = error.to_string();
    assert_eq!(error.kind(), kind, "{message}");
    for word in words {
        assert!(message.contains(word), "\"{message}\" does not say \"{word}\"");
    }
    assert!(!message.contains('\n') && !message.contains("hunter2"), "{message}");
    error
}
