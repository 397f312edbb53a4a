//! The way to a cluster: one member at a time, the next one when it fails.
//!
//! What must hold: a call ends within its limit, whatever the members do, and then says of each why. A call
//! may be made more than once, at different members, when nobody knows whether the first was done: so
//! what is called must be the same when it is done twice, and the answer says that it was asked again.

use std::future::Future;
use std::ops::Range;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use fencepost_core::Moment;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::address::{Address, EtcdUrl};
use super::api;
use super::faults::Fault;
use crate::backend::{Surroundings, short};
use crate::clock::Clock;
use crate::race::{First, race};
use crate::url::servers::User;

/// How long the first member asked may take before the next is asked: short enough that every member is
/// asked before the limit comes. In the next round twice that, and so on.
const FIRST_TRY: Range<Duration> = Duration::from_millis(100)..Duration::from_secs(1);
const LONGEST_TRY: Duration = Duration::from_secs(4);
/// How long to leave members alone when all of them have failed.
const BREATH: Duration = Duration::from_millis(50);
const CONNECT_WITHIN: Duration = Duration::from_secs(2);
/// How often a connection that is used is tried, and how long that may take. Members drop those who ask
/// more often than every five seconds.
const PROBE_EVERY: Duration = Duration::from_secs(10);
const PROBE_WITHIN: Duration = Duration::from_secs(5);

pub(super) struct Link {
    members: Vec<Member>,
    /// The member that is asked.
    current: AtomicUsize,
    /// How often a member failed.
    failures: AtomicUsize,
    login: Option<Login>,
    around: Surroundings,
}

struct Member {
    address: Address,
    channel: Mutex<Channel>,
}

struct Login {
    user: User,
    token: Mutex<Option<MetadataValue<Ascii>>>,
}

/// An answer, and what else is known of it.
#[derive(Debug)]
pub(super) struct Answer<T> {
    pub(super) value: T,
    /// When the request left that was answered.
    pub(super) sent: Moment,
    /// Whether the same was asked before and may have been done.
    pub(super) again: bool,
}

impl Link {
    pub(super) fn open(url: &EtcdUrl, around: &Surroundings) -> Self {
        // What a channel spawns lives on our own thread.
        let _on_ours = around.runtime.enter();
        let members: Vec<_> = url.members.iter().cloned().map(Member::new).collect();
        // Clients do not all start at the same member.
        let mut start = [0; 8];
        let _ = getrandom::fill(&mut start);
        let start = usize::from_ne_bytes(start) % members.len();
        let login = url.user.clone().map(|user| Login { user, token: Mutex::default() });
        Self {
            members,
            current: AtomicUsize::new(start),
            failures: AtomicUsize::new(0),
            login,
            around: around.clone(),
        }
    }

    pub(super) fn clock(&self) -> &Arc<dyn Clock> {
        &self.around.clock
    }

    /// The members, for people.
    pub(super) fn shown(&self) -> String {
        let shown: Vec<_> = self.members.iter().map(|member| &*member.address.shown).collect();
        shown.join(", ")
    }

    /// Asks one member after the other until one answers, at most until `limit`.
    pub(super) async fn call<M, T, C>(
        &self,
        message: &M,
        limit: Moment,
        rpc: impl Fn(Channel, Request<M>) -> C,
    ) -> Result<Answer<T>, Fault>
    where
        M: Clone,
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let mut said = vec![String::new(); self.members.len()];
        let (mut tries, mut logins) = (0, 0);
        let mut again = false;
        let share = limit.since(self.clock().now()) / (2 * said.len() as u32).max(1);
        let first = share.clamp(FIRST_TRY.start, FIRST_TRY.end);
        loop {
            let at = self.current.load(Ordering::Relaxed);
            let sent = self.clock().now();
            let round = (tries / self.members.len()).min(8);
            let patience = (first * (1 << round)).min(LONGEST_TRY);
            let until = (sent + patience).min(limit);
            match race(Box::pin(self.ask(at, message, &rpc)), self.clock().alarm(until)).await {
                First::Left(Ok(value)) => return Ok(Answer { value, sent, again }),
                First::Left(Err(Fault::Elsewhere(why))) => said[at] = why,
                First::Left(Err(Fault::StaleLogin)) if logins < 2 => {
                    logins += 1;
                    if let Some(login) = &self.login {
                        *login.token() = None;
                        continue;
                    }
                    return Err(Fault::StaleLogin);
                }
                First::Left(Err(Fault::NoLease { .. })) => return Err(Fault::NoLease { again }),
                First::Left(Err(fault)) => return Err(fault),
                First::Right(()) => {
                    // What it said before tells more than that it had no time to say it again.
                    if said[at].is_empty() {
                        said[at] = format!("no answer within {}", short(until.since(sent)));
                    }
                    // The connection may be dead without knowing it.
                    self.renew_channel(at);
                }
            }
            // Nobody knows how far it came.
            again = true;
            self.leave(at);
            tries += 1;
            if self.clock().now() >= limit {
                return Err(Fault::Unreachable(self.nobody(&said)));
            }
            if tries % self.members.len() == 0 {
                self.clock().alarm((self.clock().now() + BREATH).min(limit)).await;
            }
        }
    }

    /// Opens a stream at the current member. It fails at once if that one can not.
    pub(super) async fn stream<M, T, C>(
        &self,
        message: M,
        rpc: impl FnOnce(Channel, Request<M>) -> C,
    ) -> Result<(T, usize), Fault>
    where
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let at = self.current.load(Ordering::Relaxed);
        let request = self.request(at, message).await?;
        let channel = self.members[at].channel().clone();
        match Box::pin(rpc(channel, request)).await {
            Ok(response) => Ok((response.into_inner(), at)),
            Err(status) => Err(Fault::of(&status, &self.members[at].address.shown)),
        }
    }

    /// Asks this one member.
    pub(super) async fn ask<M, T, C>(
        &self,
        at: usize,
        message: &M,
        rpc: &impl Fn(Channel, Request<M>) -> C,
    ) -> Result<T, Fault>
    where
        M: Clone,
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let request = self.request(at, message.clone()).await?;
        let channel = self.members[at].channel().clone();
        match Box::pin(rpc(channel, request)).await {
            Ok(response) => Ok(response.into_inner()),
            Err(status) => Err(Fault::of(&status, &self.members[at].address.shown)),
        }
    }

    /// A member without a leader is to say so, and to end its streams.
    async fn request<M>(&self, at: usize, message: M) -> Result<Request<M>, Fault> {
        let mut request = Request::new(message);
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        if let Some(login) = &self.login {
            let token = login.token().clone();
            let token = match token {
                Some(token) => token,
                None => self.log_in(at, login).await?,
            };
            request.metadata_mut().insert("token", token);
        }
        Ok(request)
    }

    async fn log_in(&self, at: usize, login: &Login) -> Result<MetadataValue<Ascii>, Fault> {
        let member = &self.members[at];
        let channel = member.channel().clone();
        let request = api::AuthenticateRequest {
            name: login.user.name.clone(),
            password: login.user.password.clone(),
        };
        let answer = api::auth_client::AuthClient::new(channel).authenticate(request).await;
        let token = match answer {
            Ok(answer) => answer.into_inner().token,
            // Whoever asks may do all.
            Err(status) if status.message().contains("authentication is not enabled") => {
                String::new()
            }
            Err(status) => return Err(Fault::of(&status, &member.address.shown)),
        };
        let token: MetadataValue<Ascii> = token
            .parse()
            .map_err(|_| Fault::Refused("the login that etcd gave is not printable".into()))?;
        *login.token() = Some(token.clone());
        Ok(token)
    }

    /// From now on another member is asked than this one.
    pub(super) fn leave(&self, at: usize) {
        self.failures.fetch_add(1, Ordering::Relaxed);
        let next = (at + 1) % self.members.len();
        let _ = self.current.compare_exchange(at, next, Ordering::Relaxed, Ordering::Relaxed);
    }

    /// As long as this stays the same, what was opened is not known to have failed.
    pub(super) fn failures(&self) -> usize {
        self.failures.load(Ordering::Relaxed)
    }

    fn renew_channel(&self, at: usize) {
        let _on_ours = self.around.runtime.enter();
        let member = &self.members[at];
        *member.channel() = Member::connect(&member.address);
    }

    pub(super) fn count(&self) -> usize {
        self.members.len()
    }

    pub(super) fn shown_at(&self, at: usize) -> &str {
        &self.members[at].address.shown
    }

    fn nobody(&self, said: &[String]) -> String {
        let each = self.members.iter().zip(said).map(|(member, said)| {
            let said = if said.is_empty() { "not asked" } else { said };
            format!("{} ({said})", member.address.shown)
        });
        let each: Vec<_> = each.collect();
        format!("no etcd member could answer: {}", each.join("; "))
    }
}

impl Member {
    fn new(address: Address) -> Self {
        let channel = Mutex::new(Self::connect(&address));
        Self { address, channel }
    }

    fn connect(address: &Address) -> Channel {
        address
            .endpoint
            .clone()
            .connect_timeout(CONNECT_WITHIN)
            .http2_keep_alive_interval(PROBE_EVERY)
            .keep_alive_timeout(PROBE_WITHIN)
            .connect_lazy()
    }

    fn channel(&self) -> MutexGuard<'_, Channel> {
        self.channel.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Login {
    fn token(&self) -> MutexGuard<'_, Option<MetadataValue<Ascii>>> {
        self.token.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
