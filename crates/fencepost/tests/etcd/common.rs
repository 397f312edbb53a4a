//! What the tests of etcd share: clients, ways to members that can be cut, waiting with a deadline, what
//! `etcdctl` sees.

use std::fmt::Debug;
use std::future::Future;
use std::io;
use std::sync::{Arc, Mutex, Once, PoisonError, Weak};
use std::time::Duration;

use fencepost::clock::{BootClock, Clock as _};
use fencepost::{Error, ErrorKind, Fencepost, Guard, Moment};
use fencepost_testbed::{Etcd, EtcdCluster, Mode, Proxy};
use tokio::task::JoinHandle;

/// A TTL that does not run out during a test: what ends before it did not end by expiry.
pub(crate) const LONG: Duration = Duration::from_mins(2);
/// Room for an election and a move to another member within a third of it, and short enough to see renewals.
pub(crate) const LEASE: Duration = Duration::from_secs(6);
/// How long a thing may take that should happen at once, an election included; far below [`LONG`].
pub(crate) const SOON: Duration = Duration::from_secs(15);
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
        pass(ms(5)).await;
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
            // A machine that is too busy to answer in seconds is not what is tested here.
            Err(error) if *error.kind() == ErrorKind::Unreachable && now() < end => {}
            outcome => return outcome.unwrap(),
        }
    }
}

pub(crate) async fn try_connect(url: &str) -> fencepost::Result<Fencepost> {
    listen();
    within(SOON, "a client connects, or says why not", Fencepost::connect(url)).await
}

/// A server to which nothing is done: tests share it, each with names of its own.
pub(crate) fn shared() -> Arc<Etcd> {
    // It goes with the last test that uses it, and so do its files.
    static SERVER: Mutex<Weak<Etcd>> = Mutex::new(Weak::new());
    let mut server = SERVER.lock().unwrap_or_else(PoisonError::into_inner);
    server.upgrade().unwrap_or_else(|| {
        let fresh = Arc::new(Etcd::builder().start().unwrap());
        *server = Arc::downgrade(&fresh);
        fresh
    })
}

/// One client's ways to the members of a cluster.
pub(crate) struct Ways(Vec<Proxy>);

impl Ways {
    pub(crate) fn to(cluster: &EtcdCluster) -> Self {
        let members = cluster.members().iter();
        Self(members.map(|member| Proxy::to(member.address()).unwrap()).collect())
    }

    /// A client that knows all members and asks this one, until it fails.
    pub(crate) async fn client_at(&self, at: usize) -> Fencepost {
        self.shut_but(at);
        let client = connect(&self.url()).await;
        self.open();
        assert!((0..self.0.len()).all(|index| self.used(index) == (index == at)));
        client
    }

    /// Shuts all ways but the one to this member.
    pub(crate) fn shut_but(&self, at: usize) {
        let others = self.0.iter().enumerate().filter(|(index, _)| *index != at);
        others.for_each(|(_, way)| way.set_mode(Mode::Refuse));
    }

    pub(crate) fn open(&self) {
        self.0.iter().for_each(|way| way.set_mode(Mode::Pass));
    }

    /// Whether the client is connected to this member.
    pub(crate) fn used(&self, at: usize) -> bool {
        self.0[at].connections() > 0
    }

    pub(crate) fn addresses(&self) -> Vec<String> {
        self.0.iter().map(|way| way.address().to_string()).collect()
    }

    pub(crate) fn url(&self) -> String {
        format!("etcd://{}", self.addresses().join(","))
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
        // The cluster may be about to elect a leader.
        client.inspect(name).await.is_ok_and(|info| info.waiting == count)
    })
    .await;
}

/// The leases of the holder and of those who wait, in line, as a key shows them.
pub(crate) fn line(etcd: &Etcd, name: &str) -> Vec<String> {
    let prefix = format!("{name}/");
    let words = ["get", "--prefix", "--keys-only", "--sort-by=CREATE", "--order=ASCEND", &prefix];
    let keys = etcd.etcdctl(&words).unwrap();
    let ends = keys.lines().filter_map(|key| key.strip_prefix(&prefix));
    ends.filter(|end| !end.contains('/')).map(str::to_owned).collect()
}

/// All leases that there are.
pub(crate) fn leases(etcd: &Etcd) -> Vec<String> {
    let list = etcd.etcdctl(&["lease", "list"]).unwrap();
    list.lines().filter(|line| !line.starts_with("found")).map(str::to_owned).collect()
}

/// How long the store keeps this lease, in whole seconds, rounded down. None if it is gone.
pub(crate) fn kept_for(etcd: &Etcd, lease: &str) -> Option<Duration> {
    let said = etcd.etcdctl(&["lease", "timetolive", lease]).unwrap();
    let (_, rest) = said.split_once("remaining(")?;
    let (seconds, _) = rest.split_once('s').unwrap();
    seconds.parse().ok().map(Duration::from_secs)
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
        assert!(!text.contains("hunter2"), "the password is in \"{text}\"");
    }
    error
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
