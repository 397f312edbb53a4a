//! The connection to a cluster: one member at a time, the next one when it fails.
//!
//! What must hold: a call ends by its limit, whatever the members do, and then says of each why. A request may be sent
//! more than once, to different members: so it must be idempotent, and the reply says that it was retried.

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
use super::config::{Address, EtcdUrl};
use super::error::{from_status, is_stale_login};
use crate::backend::{Outcome, StoreError, StoreResult, Surroundings, short};
use crate::block_on::is_waiting;
use crate::clock::Clock;
use crate::race::{First, race};
use crate::retry::{ATTEMPT_TIMEOUT, retry};
use crate::url::User;

/// The timeout of the first attempt: short enough that every member is asked before the limit comes. In the next round
/// it is twice that, and so on.
const FIRST_TIMEOUT: Range<Duration> = Duration::from_millis(100)..Duration::from_secs(1);
/// After so many calls from a runtime it is worth a connection of its own.
const BUSY: usize = 64;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(2);
/// How often a connection that is used is probed, and how long that may take. Members drop clients that probe more
/// often than every five seconds.
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBE_TIMEOUT: Duration = Duration::from_secs(5);

pub(super) struct Connection {
    members: Vec<Member>,
    /// The member that is asked.
    current: AtomicUsize,
    /// How often a member failed.
    failures: AtomicUsize,
    /// How many calls came from runtimes that could have a connection of their own.
    calls: AtomicUsize,
    login: Option<Arc<Login>>,
    around: Surroundings,
}

struct Member {
    address: Address,
    /// On the client's runtime.
    channel: Mutex<Channel>,
    /// On the caller's runtime that has one.
    callers: Mutex<Option<(Id, Channel)>>,
}

struct Login {
    user: User,
    token: Mutex<Option<MetadataValue<Ascii>>>,
    /// Held while a new one is made, and only on the client's runtime: a caller that nobody polls would keep it.
    renewing: tokio::sync::Mutex<()>,
}

impl Connection {
    pub(super) fn open(url: &EtcdUrl, around: &Surroundings) -> Self {
        // What a channel spawns lives on the client's runtime.
        let _ours = around.runtime.enter();
        let members: Vec<_> = url.members.iter().cloned().map(Member::new).collect();
        // Clients do not all start at the same member.
        let mut start = [0; 8];
        let _ = getrandom::fill(&mut start);
        let start = usize::from_ne_bytes(start) % members.len();
        let login = url.user.clone().map(|user| {
            let (token, renewing) = (Mutex::default(), tokio::sync::Mutex::default());
            Arc::new(Login { user, token, renewing })
        });
        Self {
            members,
            current: AtomicUsize::new(start),
            failures: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
            login,
            around: around.clone(),
        }
    }

    pub(super) fn clock(&self) -> &dyn Clock {
        &*self.around.clock
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
        // What each member failed of.
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
                    // A caller in a hurry is no fault of the member: others have their watches there.
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
        reply
            .map_err(|error| if error.is_interrupted() { self.nobody(&error, said) } else { error })
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
        // A member without a leader is to say so, and to end its streams.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let token = match &self.login {
            Some(login) => Some(self.token(at, login).await?),
            None => None,
        };
        // One that is empty is taken for a wrong one, also where nobody has to log in.
        if let Some(token) = token.as_ref().filter(|token| !token.is_empty()) {
            request.metadata_mut().insert("token", token.clone());
        }
        let status = match rpc(self.channel(at), request).await {
            Ok(value) => return Ok(value),
            Err(status) => status,
        };
        // Nobody had to log in when we did.
        let needed_now = status.message().contains("user name is empty");
        let stale = needed_now || is_stale_login(&status);
        if let Some(login) = self.login.as_ref().filter(|_| stale) {
            // Unless somebody has a new one by now.
            let mut known = login.token.lock();
            if *known == token {
                *known = None;
            }
            if needed_now {
                return Err(StoreError::busy("etcd wants a login by now"));
            }
        }
        Err(from_status(&status, self.shown_at(at)))
    }

    /// The login that is valid, or a new one: one is enough for all who ask.
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
        match AbortOnDropHandle::new(self.around.runtime.spawn(renewed)).await {
            Ok(First::Left(token)) => token,
            Ok(First::Right(())) => Err(StoreError::no_reply("no answer to a login")),
            Err(_) => Err(StoreError::unavailable("this client is closing")),
        }
    }

    /// The way to a member. A runtime that calls all the time has one of its own, if it runs at any time: the hop to the
    /// client's thread and back is a good part of what a lock costs.
    fn channel(&self, at: usize) -> Channel {
        let member = &self.members[at];
        // A runtime of one thread stands still whenever nobody waits on it.
        // A thread that blocks in a call drives nothing meanwhile, even if it is a runtime's.
        let caller = (!is_waiting()).then(|| Handle::try_current().ok()).flatten();
        let caller = caller.filter(|caller| caller.runtime_flavor() == RuntimeFlavor::MultiThread);
        if let Some(caller) = caller {
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

    /// From now on another member is asked than this one, unless one has failed since `failures` was read.
    pub(super) fn leave(&self, at: usize, failures: usize) {
        *self.members[at].callers.lock() = None;
        let next = failures.wrapping_add(1);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        if self.failures.compare_exchange(failures, next, set, fetch).is_ok() {
            let next = (at + 1) % self.members.len();
            let _ = self.current.compare_exchange(at, next, set, fetch);
        }
    }

    /// The same for a member that does not answer: its connection may be dead without knowing it.
    fn give_up(&self, at: usize, failures: usize) {
        if self.failures() == failures {
            let _ours = self.around.runtime.enter();
            let member = &self.members[at];
            *member.channel.lock() = Member::connect(&member.address);
        }
        self.leave(at, failures);
    }

    /// The member that is asked.
    pub(super) fn current(&self) -> usize {
        self.current.load(Ordering::Relaxed)
    }

    /// As long as this stays the same, what was opened is not known to have failed.
    pub(super) fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    pub(super) fn shown_at(&self, at: usize) -> &str {
        &self.members[at].address.shown
    }

    fn nobody(&self, error: &StoreError, said: &Mutex<BTreeMap<usize, String>>) -> StoreError {
        let said = said.lock();
        let each = self.members.iter().enumerate().map(|(at, member)| {
            let said = said.get(&at).map_or("not asked", String::as_str);
            format!("{} ({said})", member.address.shown)
        });
        let each: Vec<_> = each.collect();
        let message = format!("no etcd member could answer: {}", each.join("; "));
        StoreError::busy(message).with_outcome(error.outcome())
    }
}

impl Login {
    fn known(&self) -> Option<MetadataValue<Ascii>> {
        self.token.lock().clone()
    }

    /// Logs in, unless somebody just has.
    async fn renew(
        &self,
        channel: Channel,
        shown: &str,
    ) -> Result<MetadataValue<Ascii>, StoreError> {
        let _renewing = self.renewing.lock().await;
        if let Some(token) = self.known() {
            return Ok(token);
        }
        let (name, password) = (self.user.name.clone(), self.user.password.clone());
        let request = api::AuthenticateRequest { name, password };
        let token = match api::auth_client::AuthClient::new(channel).authenticate(request).await {
            Ok(reply) => reply.into_inner().token,
            // Whoever asks may do all.
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

    /// A future that is dropped or polled no more is its caller's business, and nobody else's.
    #[tokio::test]
    async fn caller_that_is_not_polled_keeps_nobody_from_a_login() {
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
    async fn caller_in_a_hurry_does_not_leave_the_member() {
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
    async fn user_of_the_url_is_none_to_a_server_without_users_until_it_has_some() {
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
