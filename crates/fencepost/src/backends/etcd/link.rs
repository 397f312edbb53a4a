//! The way to a cluster: one member at a time, the next one when it fails.
//!
//! What must hold: a call ends within its limit, whatever the members do, and then says of each why. A call
//! may be made more than once, at different members, when nobody knows whether the first was done: so
//! what is called must be the same when it is done twice, and the answer says that it was asked again.

use std::future::Future;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use fencepost_core::Moment;
use parking_lot::{Mutex, MutexGuard};
use tokio::runtime::{Handle, Id, RuntimeFlavor};
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::Channel;
use tonic::{Request, Response, Status};

use super::address::{Address, EtcdUrl};
use super::api;
use super::faults::Fault;
use crate::backend::{Surroundings, short};
use crate::clock::Clock;
use crate::race::{First, race};
use crate::url::User;

/// How long the first member asked may take before the next is asked: short enough that every member is
/// asked before the limit comes. In the next round twice that, and so on.
const FIRST_TRY: Range<Duration> = Duration::from_millis(100)..Duration::from_secs(1);
const LONGEST_TRY: Duration = Duration::from_secs(4);
/// How long to leave members alone when all of them have failed, and the second time twice that.
const BREATH: Duration = Duration::from_millis(50);
const LONGEST_BREATH: Duration = Duration::from_millis(500);
/// After so many calls from a runtime it is worth a connection of its own.
const BUSY: usize = 64;
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
    /// How often a runtime asked that could have a lane.
    calls: AtomicUsize,
    login: Option<Login>,
    around: Surroundings,
}

struct Member {
    address: Address,
    /// On our own thread.
    channel: Mutex<Channel>,
    /// On the runtime that has the lane.
    lane: Mutex<Option<(Id, Channel)>>,
}

struct Login {
    user: User,
    /// Held while a new one is made.
    token: tokio::sync::Mutex<Option<MetadataValue<Ascii>>>,
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
        let login =
            url.user.clone().map(|user| Login { user, token: tokio::sync::Mutex::default() });
        Self {
            members,
            current: AtomicUsize::new(start),
            failures: AtomicUsize::new(0),
            calls: AtomicUsize::new(0),
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
        self.call_noting(message, limit, &mut false, rpc).await
    }

    /// The same. Sets `again` as soon as nobody knows whether a try was carried out: if it fails with that
    /// unset, nothing was done.
    pub(super) async fn call_noting<M, T, C>(
        &self,
        message: &M,
        limit: Moment,
        again: &mut bool,
        rpc: impl Fn(Channel, Request<M>) -> C,
    ) -> Result<Answer<T>, Fault>
    where
        M: Clone,
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let mut said = vec![String::new(); self.members.len()];
        let (mut tries, mut logins) = (0, 0);
        *again = false;
        let share = limit.since(self.clock().now()) / (2 * said.len() as u32).max(1);
        let first = share.clamp(FIRST_TRY.start, FIRST_TRY.end);
        loop {
            let (at, failures) = (self.current.load(Ordering::Relaxed), self.failures());
            let sent = self.clock().now();
            let round = (tries / self.members.len()).min(8);
            let patience = (first * (1 << round)).min(LONGEST_TRY);
            let until = (sent + patience).min(limit);
            match race(Box::pin(self.ask(at, message, &rpc)), self.clock().alarm(until)).await {
                First::Left(Ok(value)) => return Ok(Answer { value, sent, again: *again }),
                First::Left(Err(Fault::Elsewhere(why))) => {
                    said[at] = why;
                    self.leave(at, failures);
                }
                First::Left(Err(Fault::StaleLogin)) if self.login.is_some() && logins < 3 => {
                    logins += 1;
                    continue;
                }
                First::Left(Err(Fault::NoLease { .. })) => {
                    return Err(Fault::NoLease { again: *again });
                }
                First::Left(Err(fault)) => return Err(fault),
                First::Right(()) => {
                    // What it said before tells more than that it had no time to say it again.
                    if said[at].is_empty() {
                        said[at] = format!("no answer within {}", short(until.since(sent)));
                    }
                    // A caller in a hurry is no fault of the member.
                    if until < limit || until.since(sent) >= patience {
                        self.give_up(at, failures);
                    }
                }
            }
            // Nobody knows how far it came.
            *again = true;
            tries += 1;
            if tries % self.members.len() == 0 {
                let breath = (BREATH * (1 << round)).min(LONGEST_BREATH);
                self.clock().alarm((self.clock().now() + breath).min(limit)).await;
            }
            if self.clock().now() >= limit {
                return Err(Fault::Unreachable(self.nobody(&said)));
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
        match self.stream_at(at, message, rpc).await {
            Err(Fault::StaleLogin) => {
                Err(Fault::Elsewhere("the login was not valid any more".into()))
            }
            outcome => outcome,
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
        let answer = self.stream_at(at, message.clone(), rpc).await;
        answer.map(|(answer, _)| answer)
    }

    async fn stream_at<M, T, C>(
        &self,
        at: usize,
        message: M,
        rpc: impl FnOnce(Channel, Request<M>) -> C,
    ) -> Result<(T, usize), Fault>
    where
        C: Future<Output = Result<Response<T>, Status>>,
    {
        let mut request = Request::new(message);
        // A member without a leader is to say so, and to end its streams.
        request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
        let token = match &self.login {
            Some(login) => Some(self.token(at, login).await?),
            None => None,
        };
        if let Some(token) = &token {
            request.metadata_mut().insert("token", token.clone());
        }
        let channel = self.members[at].channel_of_caller();
        let fault = match Box::pin(rpc(channel, request)).await {
            Ok(response) => return Ok((response.into_inner(), at)),
            Err(status) => Fault::of(&status, &self.members[at].address.shown),
        };
        if let (Fault::StaleLogin, Some(login)) = (&fault, &self.login) {
            // Unless somebody has a new one by now.
            let mut known = login.token.lock().await;
            if *known == token {
                *known = None;
            }
        }
        Err(fault)
    }

    /// The login that is valid, or a new one: one is enough for all who ask.
    async fn token(&self, at: usize, login: &Login) -> Result<MetadataValue<Ascii>, Fault> {
        let mut known = login.token.lock().await;
        if let Some(token) = &*known {
            return Ok(token.clone());
        }
        let member = &self.members[at];
        let channel = member.channel_of_caller();
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
        let mut token: MetadataValue<Ascii> = token
            .parse()
            .map_err(|_| Fault::Refused("the login that etcd gave is not printable".into()))?;
        token.set_sensitive(true);
        *known = Some(token.clone());
        Ok(token)
    }

    /// From now on another member is asked than this one, unless one has failed since `failures` was read.
    pub(super) fn leave(&self, at: usize, failures: usize) {
        *self.members[at].lane() = None;
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
            let _on_ours = self.around.runtime.enter();
            let member = &self.members[at];
            *member.channel() = Member::connect(&member.address);
        }
        self.leave(at, failures);
    }

    /// Whether this caller makes its calls on its own runtime: if that runs at any time, and asks all the
    /// time. The hop to our thread and back is a good part of what a lock costs.
    pub(super) fn caller_has_lane(&self) -> bool {
        let Ok(caller) = Handle::try_current() else { return false };
        // A runtime of one thread stands still whenever nobody waits on it.
        if caller.runtime_flavor() != RuntimeFlavor::MultiThread {
            return false;
        }
        let member = &self.members[self.current.load(Ordering::Relaxed)];
        let mut lane = member.lane();
        if lane.as_ref().is_some_and(|(owner, _)| *owner == caller.id()) {
            return true;
        }
        if self.calls.fetch_add(1, Ordering::Relaxed) % BUSY == BUSY - 1 {
            *lane = Some((caller.id(), Member::connect(&member.address)));
        }
        false
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
        Self { address, channel, lane: Mutex::default() }
    }

    /// The lane's, for whoever runs on the lane's runtime.
    fn channel_of_caller(&self) -> Channel {
        let caller = Handle::try_current().ok().map(|caller| caller.id());
        match &*self.lane() {
            Some((owner, channel)) if Some(*owner) == caller => channel.clone(),
            _ => self.channel().clone(),
        }
    }

    fn lane(&self) -> MutexGuard<'_, Option<(Id, Channel)>> {
        self.lane.lock()
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
        self.channel.lock()
    }
}
