//! The connection to a cluster: one member at a time, the next one when it fails.
//!
//! What must hold: a call ends by its limit, whatever the members do, and its error says for each member why. A request
//! may be sent more than once, to different members: so it must be idempotent, and the reply says that it was retried.

use std::collections::BTreeMap;
use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tokio_util::task::AbortOnDropHandle;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Status};

use super::api;
use super::config::{Address, Config};
use super::error::{from_status, is_stale_login};
use crate::backend::{BackendContext, Outcome, StoreError, StoreResult, short};
use crate::block_on::is_waiting;
use crate::clock::Clock;
use crate::race::{First, race};
use crate::random;
use crate::retry::{ATTEMPT_TIMEOUT, retry};
use crate::url::User;

/// The timeout of the first attempt: short enough that every member is tried before the limit comes. It doubles with
/// each round.
const FIRST_TIMEOUT: Range<Duration> = Duration::from_millis(100)..Duration::from_secs(1);
/// After this many calls from a runtime, a connection of its own is worth its cost.
const BUSY: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a connection in use is probed, and how long a probe may take. Members disconnect clients that probe more
/// often than every five seconds.
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Connection {
    members: Vec<Member>,
    /// The current member.
    current: AtomicUsize,
    /// How often a member failed.
    failures: AtomicUsize,
    /// How many calls came from runtimes that could have a connection of their own.
    calls: AtomicUsize,
    login: Option<Arc<Login>>,
    context: BackendContext,
}

struct Member {
    address: Address,
    /// On the client's runtime.
    channel: Mutex<Channel>,
    /// On the runtime of a busy caller.
    callers: Mutex<Option<(Id, Channel)>>,
}

struct Login {
    user: User,
    token: Mutex<Option<MetadataValue<Ascii>>>,
    /// Held while a new login is made, and only on the client's runtime: a caller that is not polled would keep it.
    renewing: tokio::sync::Mutex<()>,
}

impl Connection {
    pub(super) fn open(config: &Config, context: &BackendContext) -> Self {
        // A channel spawns its tasks on the client's runtime.
        let _ours = context.runtime.enter();
        let members: Vec<_> = config.members.iter().cloned().map(Member::new).collect();
        // Clients do not all start at the same member.
        let start = random::below(members.len());
        let login = config.user.clone().map(|user| {
            let (token, renewing) = (Mutex::default(), tokio::sync::Mutex::default());
            Arc::new(Login { user, token, renewing })
        });
        Self {
            members,
            current: AtomicUsize::new(start),
            failures: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            login,
            context: context.clone(),
        }
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.context.clock
    }

    /// The members, for people.
    pub(super) fn shown(&self) -> String {
        let shown: Vec<_> = self.members.iter().map(|member| &*member.address.shown).collect();
        shown.join(", ")
    }

    /// Sends an idempotent request to one member after the other, until one of them answers or refuses, or `limit` comes.
    pub(super) async fn call<M, T, C>(
        &self,
        message: &M,
        limit: Moment,
        rpc: impl Fn(Channel, Request<M>) -> C,
    ) -> StoreResult<T>
    where
        M: Clone,
        C: Future<Output = Result<T, Status>>,
    {
        let (clock, count) = (self.clock(), self.members.len() as u32);
        let time = limit.since(clock.now());
        let first = (time / (2 * count)).clamp(FIRST_TIMEOUT.start, FIRST_TIMEOUT.end);
        let hurried = time < 2 * first;
        // Why each member failed.
        let said = Mutex::new(BTreeMap::new());
        let (said, rpc) = (&said, &rpc);
        let reply = retry(clock, limit, |number| async move {
            let (at, failures) = (self.current(), self.failures());
            let timeout = (first * (1 << (number / count).min(8))).min(ATTEMPT_TIMEOUT);
            let sent = clock.now();
            let stop = (sent + timeout).min(limit);
            let sending = Box::pin(self.send(at, message.clone(), rpc));
            match race(sending, clock.alarm(stop)).await {
                First::Left(Ok(value)) => Ok((value, sent)),
                First::Left(Err(error)) => {
                    if error.outcome() == Outcome::Unknown {
                        self.leave(at, failures);
                    }
                    said.lock().insert(at, error.to_string());
                    Err(error)
                }
                First::Right(()) => {
                    // A short limit of the caller is not the member's failure: other watches of the client use that member.
                    if !hurried && stop.since(sent) >= timeout {
                        self.give_up(at, failures);
                    }
                    let late = format!("no answer within {}", short(stop.since(sent)));
                    // Keep the member's earlier error: it says more than this timeout.
                    said.lock().entry(at).or_insert_with(|| late.clone());
                    Err(StoreError::no_reply(late))
                }
            }
        })
        .await;
        reply.map_err(|error| {
            if error.is_interrupted() { self.no_member_answered(&error, said) } else { error }
        })
    }

    /// Sends a request to this member, once.
    pub(super) async fn send<M, T, C>(
        &self,
        at: usize,
        message: M,
        rpc: impl FnOnce(Channel, Request<M>) -> C,
    ) -> Result<T, StoreError>
    where
        C: Future<Output = Result<T, Status>>,
    {
        let mut request = Request::new(message);
        // Makes a member without a leader fail the call, and end its streams.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let token = match &self.login {
            Some(login) => Some(self.token(at, login).await?),
            None => None,
        };
        // An empty token counts as a wrong one, even if authentication is off.
        if let Some(token) = token.as_ref().filter(|token| !token.is_empty()) {
            request.metadata_mut().insert("token", token.clone());
        }
        let status = match rpc(self.channel(at), request).await {
            Ok(value) => return Ok(value),
            Err(status) => status,
        };
        // Authentication was off when we logged in.
        let needed_now = status.message().contains("user name is empty");
        let stale = needed_now || is_stale_login(&status);
        if let Some(login) = self.login.as_ref().filter(|_| stale) {
            // Unless another call has logged in since.
            let mut known = login.token.lock();
            if *known == token {
                *known = None;
            }
            if needed_now {
                return Err(StoreError::busy("etcd requires a login now"));
            }
        }
        Err(from_status(&status, self.shown_at(at)))
    }

    /// The valid login, or a new one: all callers share it.
    async fn token(
        &self,
        at: usize,
        login: &Arc<Login>,
    ) -> Result<MetadataValue<Ascii>, StoreError> {
        if let Some(token) = login.known() {
            return Ok(token);
        }
        let (login, shown) = (Arc::clone(login), self.shown_at(at).to_owned());
        let channel = self.members[at].channel.lock().clone();
        let limit = self.clock().alarm(self.clock().now() + ATTEMPT_TIMEOUT);
        let renewed = async move { race(login.renew(channel, &shown), limit).await };
        match AbortOnDropHandle::new(self.context.runtime.spawn(renewed)).await {
            Ok(First::Left(token)) => token,
            Ok(First::Right(())) => Err(StoreError::no_reply("no answer to a login")),
            Err(_) => Err(StoreError::unavailable("this client is closing")),
        }
    }

    /// The channel to a member. A runtime that calls continuously has one of its own, if it always runs: the hop to the
    /// client's thread and back is a good part of a lock's cost.
    fn channel(&self, at: usize) -> Channel {
        let member = &self.members[at];
        if let Some(caller) = running_caller() {
            let mut callers = member.callers.lock();
            match &*callers {
                Some((owner, channel)) if *owner == caller.id() => return channel.clone(),
                _ if self.calls.fetch_add(1, Ordering::Relaxed) % BUSY == BUSY - 1 => {
                    *callers = Some((caller.id(), Member::connect(&member.address)));
                }
                _ => {}
            }
        }
        member.channel.lock().clone()
    }

    /// Moves on from this member, unless a member has failed since `failures` was read.
    pub(super) fn leave(&self, at: usize, failures: usize) {
        *self.members[at].callers.lock() = None;
        let next = failures.wrapping_add(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.failures.compare_exchange(failures, next, set, fetch).is_ok() {
            let next = (at + 1) % self.members.len();
            let _ = self.current.compare_exchange(at, next, set, fetch);
        }
    }

    /// The same for a member that does not answer: its connection may be dead without an error.
    fn give_up(&self, at: usize, failures: usize) {
        if self.failures() == failures {
            let _ours = self.context.runtime.enter();
            let member = &self.members[at];
            *member.channel.lock() = Member::connect(&member.address);
        }
        self.leave(at, failures);
    }

    /// The current member.
    pub(super) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// As long as this does not change, no connection is known to have failed.
    pub(super) fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    pub(super) fn shown_at(&self, at: usize) -> &str {
        &self.members[at].address.shown
    }

    fn no_member_answered(
        &self,
        error: &StoreError,
        said: &Mutex<BTreeMap<usize, String>>,
    ) -> StoreError {
        let said = said.lock();
        let each = self.members.iter().enumerate().map(|(at, member)| {
            let said = said.get(&at).map_or("not tried", String::as_str);
            format!("{} ({said})", member.address.shown)
        });
        let each: Vec<_> = each.collect();
        let message = format!("no etcd member could answer: {}", each.join("; "));
        StoreError::busy(message).with_outcome(error.outcome())
    }
}

/// The caller's runtime, if it always runs.
pub(super) fn running_caller() -> Option<Handle> {
    // A runtime with one thread stops whenever nothing blocks on it.
    // A thread that blocks in a call drives nothing meanwhile, even if it belongs to a runtime.
    let caller = (!is_waiting()).then(|| Handle::try_current().ok()).flatten();
    caller.filter(|caller| caller.runtime_flavor() == RuntimeFlavor::MultiThread)
}

impl Login {
    fn known(&self) -> Option<MetadataValue<Ascii>> {
        self.token.lock().clone()
    }

    /// Logs in, unless another call just has.
    async fn renew(
        &self,
        channel: Channel,
        shown: &str,
    ) -> Result<MetadataValue<Ascii>, StoreError> {
        let _renewing = self.renewing.lock().await;
        if let Some(token) = self.known() {
            return Ok(token);
        }
        let (name, password) = (self.user.name.clone(), self.user.password.0.clone());
        let request = api::AuthenticateRequest { name, password };
        let token = match api::auth_client::AuthClient::new(channel).authenticate(request).await {
            Ok(reply) => reply.into_inner().token,
            // Authentication is off: every client may do everything.
            Err(status) if status.message().contains("authentication is not enabled") => {
                String::new()
            }
            Err(status) => return Err(from_status(&status, shown)),
        };
        let mut token: MetadataValue<Ascii> = token
            .parse()
            .map_err(|_| StoreError::refused("the login that etcd gave is not printable"))?;
        token.set_sensitive(true);
        *self.token.lock() = Some(token.clone());
        Ok(token)
    }
}

impl Member {
    fn new(address: Address) -> Self {
        let channel = Mutex::new(Self::connect(&address));
        Self { address, channel, callers: Mutex::default() }
    }

    fn connect(address: &Address) -> Channel {
        address
            .endpoint
            .clone()
            .connect_timeout(CONNECT_TIMEOUT)
            .http2_keep_alive_interval(PROBE_EVERY)
            .keep_alive_timeout(PROBE_TIMEOUT)
            .connect_lazy()
    }
}

#[cfg(test)]
mod tests {
    use std::future::ready;

    use fencepost_testkit::{Etcd as Server, Mode, Proxy};

    use super::super::requests::range_of;
    use super::super::testing::open;
    use super::*;

    /// If a caller drops or stops polling its future, other callers must not notice.
    #[tokio::test]
    async fn unpolled_caller_does_not_block_a_login() {
        let server = Server::builder().start().unwrap();
        let etcd = open(format!("me:secret@{}", server.address())).await;
        let connection = &etcd.0.connection;
        let login = connection.login.as_ref().unwrap();
        *login.token.lock() = None;
        let limit = connection.clock().now() + Duration::from_secs(3);
        let nothing = range_of((b"nothing".to_vec(), Vec::new()));
        let mut stalled = [(); 2].map(|()| Box::pin(connection.range(&nothing, limit)));
        for call in &mut stalled {
            assert!(matches!(race(call, ready(())).await, First::Right(())));
        }
        connection.range(&nothing, limit).await.unwrap();
    }

    #[tokio::test]
    async fn short_limit_is_not_a_failure_of_the_member() {
        let server = Server::builder().start().unwrap();
        let proxy = Proxy::to(server.address()).unwrap();
        let etcd = open(proxy.address()).await;
        let connection = &etcd.0.connection;
        let nothing = range_of((b"nothing".to_vec(), Vec::new()));
        proxy.set_mode(Mode::Silent);
        for (limit, failures) in [(120, 0), (1000, 1)] {
            let limit = connection.clock().now() + Duration::from_millis(limit);
            connection.range(&nothing, limit).await.unwrap_err();
            assert_eq!(connection.failures(), failures);
        }
    }

    #[tokio::test]
    async fn credentials_in_the_url_are_used_once_authentication_is_enabled() {
        let server = Server::builder().start().unwrap();
        let etcd = open(format!("root:secret@{}", server.address())).await;
        let (connection, nothing) =
            (&etcd.0.connection, range_of((b"nothing".to_vec(), Vec::new())));
        server.etcdctl(&["user", "add", "root", "--new-user-password=secret"]).unwrap();
        server.etcdctl(&["auth", "enable"]).unwrap();
        let limit = connection.clock().now() + Duration::from_secs(3);
        connection.range(&nothing, limit).await.unwrap();
    }
}
