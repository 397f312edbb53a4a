//! What the tests of both Redis stores share: clients, waiting with a deadline, errors, the log.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::sync::{Mutex, Once, PoisonError};
use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Error, ErrorKind, Fencepost, Moment};
use fencepost_testbed::Redis;

/// A TTL that does not run out during a test: what ends before it did not end by expiry.
pub(crate) const LONG: Duration = Duration::from_mins(1);
/// How long a thing may take that should happen at once; far below [`LONG`].
pub(crate) const SOON: Duration = Duration::from_secs(10);
/// The password of every server that has one: no error and no line of the log may show it.
pub(crate) const SECRET: &str = "hunter2/and more";

pub(crate) const fn ms(span: u64) -> Duration {
    Duration::from_millis(span)
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
        pass(ms(2)).await;
    }
}

/// What the future gives, unless it takes longer than `limit`.
pub(crate) async fn within<T>(limit: Duration, what: &str, future: impl Future<Output = T>) -> T {
    tokio::select! {
        value = future => value,
        () = pass(limit) => panic!("not within {limit:?}: {what}"),
    }
}

pub(crate) async fn connect(url: &str) -> Fencepost {
    let end = now() + SOON;
    loop {
        match try_connect(url).await {
            // A machine that is too busy to answer in two seconds is not what is tested here.
            Err(error) if *error.kind() == ErrorKind::Unreachable && now() < end => {}
            outcome => return outcome.unwrap(),
        }
    }
}

pub(crate) async fn try_connect(url: &str) -> fencepost::Result<Fencepost> {
    listen();
    within(SOON, "a client connects, or says why not", Fencepost::connect(url)).await
}

/// Two clients that know nothing of each other.
pub(crate) async fn two(url: &str) -> (Fencepost, Fencepost) {
    (connect(url).await, connect(url).await)
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

/// Waits until this many wait for the lock.
pub(crate) async fn until_waiting(client: &Fencepost, name: &str, count: usize) {
    until(&format!("{count} wait for \"{name}\""), async || {
        // The client may be about to connect again.
        client.inspect(name).await.is_ok_and(|info| info.waiting == count)
    })
    .await;
}

pub(crate) fn has(server: &Redis, key: &str) -> bool {
    server.command(&["EXISTS", key]).unwrap().int().unwrap() == 1
}

/// The call failed like this, and says these words: on one line, without the password.
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
    assert!(!message.contains('\n'), "an error is one line: {message}");
    for text in [message, format!("{error:?}"), log()] {
        assert!(!shows_the_secret(&text), "the password is in \"{text}\"");
    }
    error
}

fn shows_the_secret(text: &str) -> bool {
    // Once as it is, once as a URL has it.
    text.contains(SECRET) || text.contains("hunter2")
}

static LOG: Mutex<Vec<u8>> = Mutex::new(Vec::new());

struct Log;

impl io::Write for Log {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        LOG.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Takes down what the library logs, for all tests of this process.
fn listen() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let log = tracing_subscriber::fmt().with_max_level(tracing::Level::WARN);
        log.with_ansi(false).with_writer(|| Log).init();
    });
}

fn log() -> String {
    String::from_utf8_lossy(&LOG.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
}

/// Whether one line of the log has all these words. Tests run side by side: one of the words tells whose
/// line it is.
pub(crate) fn logged(words: &[&str]) -> bool {
    log().lines().any(|line| words.iter().all(|word| line.contains(word)))
}
