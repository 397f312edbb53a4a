//! Takes a position in a lock's queue, and waits there.
//!
//! A try creates the node and decides by the list: the first node holds. A waiter watches the node before its own. Before
//! the grant counts, it reads the list again, and its own node, which must exist and be of this session (etcd#11456,
//! CURATOR-604). A persistent node before it is no contender, whatever its name: it is skipped. If the node or the
//! session ended during the wait, the position is lost, and a new owner takes a new one.
//!
//! Both run on the client's own thread, beside the session. Each request is noted in the position before it leaves, so a
//! release undoes it wherever they stopped.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::client::{CreateMode, KeepAlive, Key, Session};
use super::error::{Code, code, gone, if_exists, retry_if_unavailable};
use super::layout::{Contender, NodeData, check_value, holder, in_order, path_of, token_of};
use super::locks::{lease_only_refused, watch_own_node};
use super::positions::{Position, QueueView};
use super::shared::{Shared, ttl_of};
use crate::backend::{
    Acquired, Grant, HolderInfo, Liveness, Outcome, Queue, Reply, Request, StoreError, StoreResult,
};
use crate::backends::may_count_from;
use crate::outage::Outage;
use crate::race::{First, race};
use crate::retry::{CALL_TIMEOUT, retry};

/// How often the directory may be deleted while we use it.
const VANISHED: usize = 8;
/// The last read of a waiter may take this long beyond its limit.
const LAST_READ_TIMEOUT: Duration = Duration::from_millis(100);

/// Tries once: takes a position, and says whether it is the first. `Queue::Skip` gives up any other position.
pub(super) async fn try_acquire(
    shared: &Arc<Shared>,
    request: &Request,
    queue: Queue,
    limit: Moment,
) -> StoreResult<Acquired> {
    check_value(request.value.as_ref())?;
    if request.value.is_some() && request.liveness == Liveness::LeaseOnly {
        return Err(lease_only_refused(&request.grant.name));
    }
    let dir = path_of(&shared.chroot, &request.grant.name);
    let position = shared.positions.enter(Position::new(request, dir));
    let entry = QueueEntry { shared: Arc::clone(shared), position };
    let attempts = async move {
        let clock = &*entry.shared.context.clock;
        retry(clock, limit, |_| entry.attempt(queue)).await
    };
    on_our_thread(shared, attempts).await
}

/// Waits at the position that a try took.
pub(super) async fn wait(
    shared: &Arc<Shared>,
    request: &Request,
    limit: Moment,
) -> StoreResult<Acquired> {
    let Some(position) = shared.positions.get(&request.grant) else {
        return Ok(Reply::new(Acquired::PositionLost, shared.now()));
    };
    let entry = QueueEntry { shared: Arc::clone(shared), position };
    on_our_thread(shared, async move { entry.wait(limit).await }).await
}

/// Runs beside the sessions, so that a reply need not wake another thread. It ends with its caller.
async fn on_our_thread(
    shared: &Shared,
    work: impl Future<Output = StoreResult<Acquired>> + Send + 'static,
) -> StoreResult<Acquired> {
    let task = AbortOnDropHandle::new(shared.context.runtime.spawn(work));
    task.await.unwrap_or_else(|_| Err(StoreError::unavailable("this client is closing")))
}

struct QueueEntry {
    shared: Arc<Shared>,
    position: Arc<Position>,
}

/// The contender before us.
enum Before {
    Nobody,
    /// Notified when it is gone.
    One(oneshot::Receiver<()>),
    /// One was deleted while we read.
    Moved,
}

impl QueueEntry {
    /// One attempt to take a position and to decide.
    async fn attempt(&self, queue: Queue) -> Result<(Acquired, Moment), StoreError> {
        let answer = self.join(queue).await;
        if let Err(error) = &answer
            && code(error) == Some(Code::SessionGone)
        {
            // The session and our node are gone: take a new position in a new session.
            self.position.move_to(None);
        }
        answer.map_err(retry_if_unavailable)
    }

    async fn join(&self, queue: Queue) -> Result<(Acquired, Moment), StoreError> {
        let mut wary = false;
        loop {
            let session = self.session();
            let _kept = self.keep_alive();
            session.ready().await?;
            if self.position.node().is_none() {
                self.take_position(&session).await?;
            }
            let Some(seen) = self.look().await? else {
                self.lose_position();
                continue;
            };
            let Some(first) = seen.ahead.first() else { return self.granted(seen) };
            if queue == Queue::Join {
                let ahead = seen.ahead.len() as u64;
                self.position.state().seen = Some(seen);
                return Ok((Acquired::Queued { ahead }, self.shared.now()));
            }
            // Usually the first one holds. If it is no contender, read all of them.
            let first = if wary {
                self.shared.first_of(&seen.session, &self.position.dir, &seen.ahead).await?
            } else {
                Some(first.clone())
            };
            let Some(first) = first else { return self.granted(seen) };
            if let Some(holder) = self.withdraw(&seen.session, &first, wary).await? {
                return Ok((Acquired::Held(holder), self.shared.now()));
            }
            wary = true;
        }
    }

    /// Waits until we are first, or `limit` comes. An outage does not end the wait.
    async fn wait(&self, limit: Moment) -> StoreResult<Acquired> {
        let (clock, mut outage) = (&*self.shared.context.clock, Outage::default());
        loop {
            let _kept = self.keep_alive();
            let last = (clock.now() + CALL_TIMEOUT).min(limit + LAST_READ_TIMEOUT);
            let (seen, before) = match retry(clock, last, |_| self.look_before()).await {
                Ok(Reply { value: Some(seen), .. }) => seen,
                Ok(_) => return Ok(Reply::new(Acquired::PositionLost, clock.now())),
                Err(error) if error.is_transient() && clock.now() < limit => {
                    outage.log(clock.now(), &self.position.id.name, &error);
                    self.shared.pause().await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            outage.end();
            let gone = match before {
                Before::Nobody => {
                    let (granted, sent) = self.granted(seen)?;
                    return Ok(Reply::new(granted, sent));
                }
                Before::Moved => continue,
                Before::One(gone) => gone,
            };
            // It may have moved to another session.
            let _kept = self.keep_alive();
            // A broken connection ends both watches: read again what they would have reported.
            let ahead = seen.ahead.len() as u64;
            if let First::Right(()) = race(race(gone, seen.own), self.beat_until(limit)).await {
                return Ok(Reply::new(Acquired::Queued { ahead }, clock.now()));
            }
        }
    }

    /// Keeps the session's credit recent until `limit`, so that a grant can count from it. All waiters of a session share
    /// one write.
    async fn beat_until(&self, limit: Moment) {
        let clock = &*self.shared.context.clock;
        let (Some(session), Some(node)) = (self.position.session(), self.position.node()) else {
            return clock.alarm(limit).await;
        };
        loop {
            // A lease is two thirds of the session's timeout.
            let third = session.timeout() * 2 / 9;
            clock.alarm(session.heartbeat_due(third).min(limit)).await;
            if clock.now() >= limit {
                return;
            }
            if session.claim_heartbeat(third) {
                // If it fails, the grant is confirmed as after a wait without heartbeats; if the node is gone, its watch
                // says so. On a task of its own: the wait may end first, and others rely on it.
                self.shared.context.runtime.spawn(session.alive(&node));
            }
        }
    }

    /// Our position, and who is before us; `None` if our position is lost.
    async fn look_before(&self) -> Result<(Option<(QueueView, Before)>, Moment), StoreError> {
        let look = async {
            // The list that the try read is good enough to choose whom to watch, but not to decide that we are first.
            let old = self.position.state().seen.take();
            let fresh = old.is_none();
            let seen = if fresh { self.look().await? } else { old };
            let Some(seen) = seen else { return Ok(None) };
            let before = match self.before(&seen.session, &seen.ahead).await? {
                Before::Nobody if !fresh => Before::Moved,
                before => before,
            };
            Ok(Some((seen, before)))
        };
        match look.await {
            Err(error) if code(&error) == Some(Code::SessionGone) => Ok((None, Moment::default())),
            seen => Ok((seen?, Moment::default())),
        }
    }

    /// The session of this position.
    fn session(&self) -> Arc<Session> {
        let known = self.position.session().filter(|session| !session.is_over());
        known.unwrap_or_else(|| {
            let session = self.shared.session_for(self.position.asked, self.position.liveness);
            self.shared.move_position(&self.position, Arc::clone(&session));
            session
        })
    }

    /// Keeps a script's session alive until it is granted: from then on only its renewals do.
    fn keep_alive(&self) -> Option<KeepAlive> {
        let session = self.position.session()?;
        (self.position.liveness == Liveness::LeaseOnly).then(|| session.keep_alive())
    }

    /// Reads the position of our node; `None` if it does not exist, or is not ours.
    async fn look(&self) -> Result<Option<QueueView>, StoreError> {
        let position = &self.position;
        loop {
            let (Some(session), Some(node)) = (position.session(), position.node()) else {
                return Ok(None);
            };
            let children = session.children(&position.dir);
            // A watch on the children of a node that cannot have any: it reports the node's end, and no heartbeats.
            let own = session.children_watched(&node);
            let (children, own) = (if_exists(children.await)?, if_exists(own.await)?);
            let (Some(children), Some((_, stat, own))) = (children, own) else { return Ok(None) };
            if stat.session != session.id() {
                return Ok(None);
            }
            let mut contenders = in_order(&children);
            let own_name = node.rsplit('/').next().unwrap_or_default();
            let (marked, ours) =
                (position.tag.finder(), |other: &Contender| other.node == own_name);
            let double = contenders.iter().position(|other| marked(&other.node) && !ours(other));
            let Some(ahead) = contenders.iter().position(ours) else {
                return Err(StoreError::busy("the server does not list our node yet"));
            };
            if let Some(double) = double {
                self.settle_double(&session, &node, &contenders[double], double > ahead).await?;
                continue;
            }
            contenders.truncate(ahead);
            return Ok(Some(QueueView { session, stat, own, ahead: contenders }));
        }
    }

    /// We are first. The grant counts from the session's last confirmed write, be it the one that created our node or a
    /// heartbeat during the wait; or it must be confirmed by another one.
    fn granted(&self, seen: QueueView) -> Result<(Acquired, Moment), StoreError> {
        let ttl = ttl_of(&seen.session)?;
        let token = token_of(&seen.stat).ok_or_else(|| {
            StoreError::refused(format!(
                "ZooKeeper's transaction number {} is above 2^53, the largest token: the ensemble has had \
                too many elections to be used for locks",
                seen.stat.czxid
            ))
        })?;
        let now = self.shared.now();
        let credited = seen.session.credited().filter(|sent| may_count_from(*sent, ttl, now));
        self.position.state().grant = Some((token, ttl));
        self.position.leased(now + ttl.as_duration());
        let (shared, position) = (Arc::clone(&self.shared), Arc::clone(&self.position));
        let task = async move { watch_own_node(&shared, &position, seen.own).await };
        self.position.hand_to(self.shared.context.runtime.spawn(task).abort_handle());
        let grant = Grant::new(token, ttl).with_needs_confirmation(credited.is_none());
        Ok((Acquired::Granted(grant), credited.unwrap_or_default()))
    }

    /// The last of these that is a contender, with a notification of its end.
    async fn before(&self, session: &Session, ahead: &[Contender]) -> Result<Before, StoreError> {
        for one in ahead.iter().rev() {
            let path = self.position.child(one);
            let (stat, gone) = match session.children_watched(&path).await {
                Ok((_, stat, gone)) => (Some(stat), gone),
                Err(error) => match code(&error) {
                    Some(Code::NoNode) => return Ok(Before::Moved),
                    Some(Code::NoAuth) => session.exists_watched(&path).await?,
                    _ => return Err(error),
                },
            };
            match stat {
                None => return Ok(Before::Moved),
                Some(stat) if stat.ends() => return Ok(Before::One(gone)),
                Some(_) => {}
            }
        }
        Ok(Before::Nobody)
    }

    /// Our node does not exist, or is not ours: create a new one.
    fn lose_position(&self) {
        let mut state = self.position.state();
        (state.node, state.grant) = (None, None);
    }

    /// Creates our node, unless an earlier attempt has.
    async fn take_position(&self, session: &Arc<Session>) -> Result<(), StoreError> {
        let position = &self.position;
        if position.state().unsure {
            let found = self.find(session).await?;
            let mut state = position.state();
            (state.unsure, state.node) = (false, found);
            if state.node.is_some() {
                return Ok(());
            }
        }
        let written = self.written(session)?;
        position.state().made_with(written.clone());
        let path = format!("{}/{}", position.dir, position.tag.prefix(self.shared.style));
        for _ in 0..VANISHED {
            let ask = || session.create(&path, &written, CreateMode::Ephemeral, self.shared.access);
            let Some(asked) = position.ask_for_node(ask) else {
                return Err(StoreError::refused("this acquire was withdrawn"));
            };
            let made = asked.await;
            {
                let mut state = position.state();
                state.unsure = made.as_ref().is_err_and(|it| it.outcome() == Outcome::Unknown);
                state.node = made.as_ref().ok().cloned();
            }
            match if_exists(made)? {
                None => {
                    self.shared.make_directory(session, &position.dir, self.shared.access).await?;
                }
                Some(_) => return Ok(()),
            }
        }
        Err(StoreError::busy(format!(
            "other clients keep deleting the directory of \"{}\": retry",
            position.id.name
        )))
    }

    /// The data of our node.
    fn written(&self, session: &Session) -> Result<Vec<u8>, StoreError> {
        let position = &self.position;
        if let Some(value) = &position.value {
            return Ok(value.as_bytes().to_vec());
        }
        let sealed = match position.liveness {
            Liveness::Process => None,
            Liveness::LeaseOnly => Some(session.key().seal(&position.id).ok_or_else(|| {
                StoreError::busy("the system gave no random numbers to encrypt a session")
            })?),
        };
        Ok(NodeData { label: position.label.clone(), ttl: ttl_of(session)?, sealed }.bytes())
    }

    /// Our node of this session, if an attempt whose reply was lost has created one.
    async fn find(&self, session: &Session) -> Result<Option<String>, StoreError> {
        for node in self.shared.nodes_of(session, &self.position.dir, self.position.tag).await? {
            if let Some((data, stat)) = if_exists(session.data(&node).await)?
                && stat.session == session.id()
            {
                self.position.state().made_with(data);
                return Ok(Some(node));
            }
        }
        Ok(None)
    }

    /// There is another node of this owner: of an earlier attempt, or of another process.
    async fn settle_double(
        &self,
        session: &Arc<Session>,
        node: &str,
        double: &Contender,
        later: bool,
    ) -> Result<(), StoreError> {
        let position = &self.position;
        let path = position.child(double);
        let Some((data, stat)) = if_exists(session.data(&path).await)? else { return Ok(()) };
        if stat.session == session.id() {
            // Two of ours: keep the first. A release that comes meanwhile looks for both.
            position.state().unsure = true;
            let (goes, stays) =
                if later { (path.as_str(), None) } else { (node, Some((&path, data))) };
            gone(session.delete(goes).await)?;
            let mut state = position.state();
            state.unsure = false;
            if let Some((path, data)) = stays {
                state.node = Some(path.clone());
                state.made_with(data);
            }
            return Ok(());
        }
        // A node of another session is not ours (CURATOR-604). A script's is: the owner decrypts its session.
        if position.liveness == Liveness::LeaseOnly
            && let Some(node_data) = NodeData::read(&data)
            && let Some(key) = node_data.sealed.and_then(|it| Key::unseal(&it, &position.id))
        {
            let other = self.shared.attach(node_data.ttl, key);
            let _kept = other.keep_alive();
            match other.ready().await {
                Ok(()) => {
                    gone(session.delete(node).await)?;
                    self.shared.close_later(session);
                    self.shared.move_position(position, other);
                    let mut state = position.state();
                    state.node = Some(path);
                    state.made_with(data);
                    return Ok(());
                }
                Err(error) if code(&error) == Some(Code::SessionGone) => {}
                Err(error) => {
                    other.leave();
                    return Err(error);
                }
            }
        }
        gone(session.delete(&path).await)
    }

    /// Gives up our position, and says who is first. `None` if that one turns out to be no contender: then take another
    /// position.
    async fn withdraw(
        &self,
        session: &Arc<Session>,
        first: &Contender,
        known: bool,
    ) -> Result<Option<Option<HolderInfo>>, StoreError> {
        let Some(node) = self.position.node() else { return Ok(None) };
        let path = self.position.child(first);
        let asked = session.data(&path);
        let deleted = session.delete(&node);
        let seen = asked.await;
        gone(deleted.await)?;
        let secret = seen.as_ref().is_err_and(|error| code(error) == Some(Code::NoAuth));
        let stat = match &seen {
            Ok((_, stat)) => Some(*stat),
            Err(_) if secret => session.exists(&path).await?,
            Err(_) => None,
        };
        if !known && stat.is_some_and(|stat| !stat.ends()) {
            self.lose_position();
            return Ok(None);
        }
        self.shared.positions.remove(&self.position);
        if self.position.liveness == Liveness::LeaseOnly {
            self.shared.close_later(session);
        }
        Ok(Some(match seen {
            Ok((data, stat)) => Some(holder(first, &data, &stat)),
            Err(_) => secret.then(HolderInfo::third_party),
        }))
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Ttl;
    use fencepost_testkit::{ZooKeeperEnsemble, ms, pass};

    use super::super::client::Access;
    use super::super::records::tests::{open, start};
    use super::*;

    /// A follower answers pings and reads for as long as it does not know that it lost its leader, while the next leader
    /// may end the session.
    #[tokio::test]
    async fn only_writes_give_credit() {
        let three = ZooKeeperEnsemble::start().unwrap();
        let leader = three.leader().unwrap();
        let store = open(three.members()[(leader + 1) % 3].address()).await;
        let ttl = Ttl::new(Duration::from_secs(1)).unwrap();
        let session = store.shared.session_for(ttl, Liveness::Process);
        let write = || session.create("/x-", b"", CreateMode::Ephemeral, Access::Open);
        write().await.unwrap();
        three.members()[leader].stop().unwrap();
        let credited = session.credited();
        assert!(credited.is_some());
        // Pings go out in between.
        for _ in 0..5 {
            session.children("/").await.expect("the follower still answers");
            pass(ms(200)).await;
        }
        assert_eq!(session.credited(), credited);
        three.members()[leader].resume().unwrap();
        while write().await.is_err() {
            pass(ms(50)).await;
        }
        assert!(session.credited() > credited);
    }

    /// A multi that failed is answered as if it had succeeded, even if the session is being closed.
    #[tokio::test]
    async fn write_that_failed_gives_no_credit() {
        let (_server, store) = start().await;
        let session = store.shared.control();
        session.alive("/").await.unwrap();
        let credited = session.credited();
        assert!(credited.is_some());
        session.alive("/nothing").await.unwrap_err();
        session.delete("/nothing").await.unwrap_err();
        assert_eq!(session.credited(), credited);
        session.alive("/").await.unwrap();
        assert!(session.credited() > credited);
    }
}
