//! Takes a place in line for a lock, and waits there.
//!
//! A try makes the node and decides by the list: who is first holds. A waiter watches the node before its own, and
//! looks again before it believes: at the list, and at its own node, which must be there and of this session
//! (etcd#11456, CURATOR-604). A node before it that stays is no contender, whatever it is called: it is passed over.
//! If the node or the session ended while it waited, its place is lost, and a fresh owner takes a fresh one.
//!
//! Both run on the client's own thread, beside the session. What they ask for is known to the place before it leaves,
//! so a release undoes it wherever they stopped.

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use tokio::sync::oneshot;
use tokio_util::task::AbortOnDropHandle;

use super::client::{Kept, Key, Make, Session};
use super::error::{Code, code, found, gone, retry_if_unavailable};
use super::layout::{Contender, Note, check_value, holder, in_order, path_of, token_of};
use super::locks::{lease_only_refused, look_after};
use super::places::{Place, Seen};
use super::shared::{Shared, ttl_of};
use crate::backend::{
    Acquired, Grant, HolderInfo, Liveness, Outcome, Queue, Reply, Request, StoreError, StoreResult,
};
use crate::outage::Outage;
use crate::race::{First, race};
use crate::retry::{CALL_TIMEOUT, retry};

/// How often a directory may vanish before our eyes.
const VANISHED: usize = 8;
/// The last look of a waiter may take this long beyond its limit.
const LAST_LOOK: Duration = Duration::from_millis(100);

/// Tries once: takes a place, and says whether it is the first. `Queue::Skip` gives up any other place.
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
    let place = shared.places.enter(Place::new(request, dir));
    let line = Line { shared: Arc::clone(shared), place };
    let attempts = async move {
        let clock = &*line.shared.around.clock;
        retry(clock, limit, |_| line.attempt(queue)).await
    };
    on_our_thread(shared, attempts).await
}

/// Waits at the place that a try took.
pub(super) async fn wait(
    shared: &Arc<Shared>,
    request: &Request,
    limit: Moment,
) -> StoreResult<Acquired> {
    let Some(place) = shared.places.get(&request.grant) else {
        return Ok(Reply::new(Acquired::PlaceLost, shared.now()));
    };
    let line = Line { shared: Arc::clone(shared), place };
    on_our_thread(shared, async move { line.wait(limit).await }).await
}

/// Runs beside the sessions, so that an answer need not wake another thread. It ends with its caller.
async fn on_our_thread(
    shared: &Shared,
    work: impl Future<Output = StoreResult<Acquired>> + Send + 'static,
) -> StoreResult<Acquired> {
    let task = AbortOnDropHandle::new(shared.around.runtime.spawn(work));
    task.await.unwrap_or_else(|_| Err(StoreError::unavailable("this client is closing")))
}

struct Line {
    shared: Arc<Shared>,
    place: Arc<Place>,
}

/// Who is before us.
enum Before {
    Nobody,
    /// The word that it goes.
    One(oneshot::Receiver<()>),
    /// One went while we looked.
    Moved,
}

impl Line {
    /// One attempt to take a place and to decide.
    async fn attempt(&self, queue: Queue) -> Result<(Acquired, Moment), StoreError> {
        let answer = self.stand(queue).await;
        if let Err(error) = &answer
            && code(error) == Some(Code::SessionGone)
        {
            // It, and what we had in it, is gone: a fresh place in a fresh session.
            self.place.move_to(None);
        }
        answer.map_err(retry_if_unavailable)
    }

    async fn stand(&self, queue: Queue) -> Result<(Acquired, Moment), StoreError> {
        let (mut made, mut wary) = (None, false);
        loop {
            let session = self.session();
            let _kept = self.keep();
            session.ready().await?;
            if self.place.node().is_none() {
                made = self.take_place(&session).await?;
            }
            let Some(seen) = self.look().await? else {
                self.lose_place();
                continue;
            };
            let Some(first) = seen.ahead.first() else { return self.granted(seen, made) };
            if queue == Queue::Join {
                let ahead = seen.ahead.len() as u64;
                self.place.stand().seen = Some(seen);
                return Ok((Acquired::Queued { ahead }, self.shared.now()));
            }
            // Most often the first one holds. If it is no contender, all are looked at.
            let first = if wary {
                self.shared.first_of(&seen.session, &self.place.dir, &seen.ahead).await?
            } else {
                Some(first.clone())
            };
            let Some(first) = first else { return self.granted(seen, made) };
            if let Some(holder) = self.withdraw(&seen.session, &first, wary).await? {
                return Ok((Acquired::Held(holder), self.shared.now()));
            }
            wary = true;
        }
    }

    /// Waits until it is our turn, or `limit` comes. An outage does not end the wait.
    async fn wait(&self, limit: Moment) -> StoreResult<Acquired> {
        let (clock, mut outage) = (&*self.shared.around.clock, Outage::default());
        loop {
            let _kept = self.keep();
            let last = (clock.now() + CALL_TIMEOUT).min(limit + LAST_LOOK);
            let (seen, before) = match retry(clock, last, |_| self.look_before()).await {
                Ok(Reply { value: Some(seen), .. }) => seen,
                Ok(_) => return Ok(Reply::new(Acquired::PlaceLost, clock.now())),
                Err(error) if error.is_transient() && clock.now() < limit => {
                    outage.log(clock.now(), &self.place.id.name, &error);
                    self.shared.pause().await;
                    continue;
                }
                Err(error) => return Err(error),
            };
            outage.end();
            let gone = match before {
                Before::Nobody => {
                    let (granted, sent) = self.granted(seen, None)?;
                    return Ok(Reply::new(granted, sent));
                }
                Before::Moved => continue,
                Before::One(gone) => gone,
            };
            // It may have moved to another session.
            let _kept = self.keep();
            // A connection that breaks ends both: what it would have told has to be looked at.
            let ahead = seen.ahead.len() as u64;
            let told = race(race(gone, seen.own), clock.alarm(limit)).await;
            if let First::Right(()) = told {
                return Ok(Reply::new(Acquired::Queued { ahead }, clock.now()));
            }
        }
    }

    /// Where we stand, and who is before us; `None` if our place is lost.
    async fn look_before(&self) -> Result<(Option<(Seen, Before)>, Moment), StoreError> {
        let look = async {
            // What the try saw will do to find whom to watch, and not to believe that it is our turn.
            let old = self.place.stand().seen.take();
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

    /// The session that carries this place.
    fn session(&self) -> Arc<Session> {
        let known = self.place.session().filter(|session| !session.is_over());
        known.unwrap_or_else(|| {
            let session = self.shared.session_for(self.place.asked, self.place.liveness);
            self.shared.move_place(&self.place, Arc::clone(&session));
            session
        })
    }

    /// Keeps a script's session alive until it is granted: from then on its renewals alone do.
    fn keep(&self) -> Option<Kept> {
        let session = self.place.session()?;
        (self.place.liveness == Liveness::LeaseOnly).then(|| session.keep())
    }

    /// Looks where our node stands; `None` if it is not there, or not ours.
    async fn look(&self) -> Result<Option<Seen>, StoreError> {
        let place = &self.place;
        loop {
            let (Some(session), Some(node)) = (place.session(), place.node()) else {
                return Ok(None);
            };
            let children = session.children(&place.dir);
            // The children of a node that can have none: told when it goes, not when a heartbeat sets its data.
            let own = session.children_watched(&node);
            let (children, own) = (found(children.await)?, found(own.await)?);
            let (Some(children), Some((_, stat, own))) = (children, own) else { return Ok(None) };
            if stat.session != session.id() {
                return Ok(None);
            }
            let mut line = in_order(&children);
            let own_name = node.rsplit('/').next().unwrap_or_default();
            let (marked, ours) = (place.mark.finder(), |other: &Contender| other.node == own_name);
            let double = line.iter().position(|other| marked(&other.node) && !ours(other));
            let Some(ahead) = line.iter().position(ours) else {
                return Err(StoreError::busy("the server does not list our node yet"));
            };
            if let Some(double) = double {
                self.settle_double(&session, &node, &line[double], double > ahead).await?;
                continue;
            }
            line.truncate(ahead);
            return Ok(Some(Seen { session, stat, own, ahead: line }));
        }
    }

    /// It is our turn. `made`: the node that we made just now, and from when that counts. A grant that was waited for
    /// has to be confirmed.
    fn granted(
        &self,
        seen: Seen,
        made: Option<(String, Moment)>,
    ) -> Result<(Acquired, Moment), StoreError> {
        let ttl = ttl_of(&seen.session)?;
        let token = token_of(&seen.stat).ok_or_else(|| {
            StoreError::refused(format!(
                "ZooKeeper's transaction number {} is beyond 2^53, which no token may be: the \
                 ensemble has had too many elections to be used for locks",
                seen.stat.czxid
            ))
        })?;
        let made = made.filter(|(node, _)| self.place.node().as_ref() == Some(node));
        self.place.stand().grant = Some((token, ttl));
        self.place.leased(self.shared.now() + ttl.as_duration());
        let (shared, place) = (Arc::clone(&self.shared), Arc::clone(&self.place));
        let task = async move { look_after(&shared, &place, seen.own).await };
        self.place.hand_to(self.shared.around.runtime.spawn(task).abort_handle());
        let grant = Grant { token, ttl, queued: made.is_none(), presence: None };
        Ok((Acquired::Granted(grant), made.map_or_else(Moment::default, |(_, sent)| sent)))
    }

    /// The last of these that is a contender, and the word that it goes.
    async fn before(&self, session: &Session, ahead: &[Contender]) -> Result<Before, StoreError> {
        for one in ahead.iter().rev() {
            let path = self.place.child(one);
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

    /// Our node is not there, or not ours: a fresh one is due.
    fn lose_place(&self) {
        let mut stand = self.place.stand();
        (stand.node, stand.grant) = (None, None);
    }

    /// Makes our node, unless an earlier attempt has. Which node it made, and from when that counts.
    async fn take_place(
        &self,
        session: &Arc<Session>,
    ) -> Result<Option<(String, Moment)>, StoreError> {
        let place = &self.place;
        if place.stand().unsure {
            let found = self.find(session).await?;
            let mut stand = place.stand();
            (stand.unsure, stand.node) = (false, found);
            if stand.node.is_some() {
                return Ok(None);
            }
        }
        let written = self.written(session)?;
        place.stand().made_with(written.clone());
        let path = format!("{}/{}", place.dir, place.mark.prefix(self.shared.style));
        for _ in 0..VANISHED {
            let ask = || session.create(&path, &written, Make::Ephemeral, self.shared.access);
            let Some(asked) = place.ask_for_node(ask) else {
                return Err(StoreError::refused("this acquire was withdrawn"));
            };
            let made = asked.await;
            {
                let mut stand = place.stand();
                stand.unsure = made.as_ref().is_err_and(|it| it.outcome() == Outcome::Unknown);
                stand.node = made.as_ref().ok().map(|(node, _)| node.clone());
            }
            match found(made)? {
                None => self.shared.make_directory(session, &place.dir, self.shared.access).await?,
                made => return Ok(made),
            }
        }
        Err(StoreError::busy(format!("the directory of \"{}\" keeps vanishing", place.id.name)))
    }

    /// What is to stand in our node.
    fn written(&self, session: &Session) -> Result<Vec<u8>, StoreError> {
        let place = &self.place;
        if let Some(value) = &place.value {
            return Ok(value.as_bytes().to_vec());
        }
        let sealed = match place.liveness {
            Liveness::Process => None,
            Liveness::LeaseOnly => Some(session.key().seal(&place.id).ok_or_else(|| {
                StoreError::busy("the system has no random numbers to seal a session")
            })?),
        };
        Ok(Note { label: place.label.clone(), ttl: ttl_of(session)?, sealed }.bytes())
    }

    /// Our node of this session, if an attempt whose answer was lost has made one.
    async fn find(&self, session: &Session) -> Result<Option<String>, StoreError> {
        for node in self.shared.nodes_of(session, &self.place.dir, self.place.mark).await? {
            if let Some((data, stat)) = found(session.data(&node).await)?
                && stat.session == session.id()
            {
                self.place.stand().made_with(data);
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
        let place = &self.place;
        let path = place.child(double);
        let Some((data, stat)) = found(session.data(&path).await)? else { return Ok(()) };
        if stat.session == session.id() {
            // Two of ours: the first keeps its place. A release that comes meanwhile looks for both.
            place.stand().unsure = true;
            let (goes, stays) =
                if later { (path.as_str(), None) } else { (node, Some((&path, data))) };
            gone(session.delete(goes).await)?;
            let mut stand = place.stand();
            stand.unsure = false;
            if let Some((path, data)) = stays {
                stand.node = Some(path.clone());
                stand.made_with(data);
            }
            return Ok(());
        }
        // What a session left that is not ours is not ours (CURATOR-604). A script's is: the owner opens it.
        if place.liveness == Liveness::LeaseOnly
            && let Some(note) = Note::read(&data)
            && let Some(key) = note.sealed.and_then(|it| Key::unseal(&it, &place.id))
        {
            let other = self.shared.attach(note.ttl, key);
            let _kept = other.keep();
            match other.ready().await {
                Ok(()) => {
                    gone(session.delete(node).await)?;
                    self.shared.close_later(session);
                    self.shared.move_place(place, other);
                    let mut stand = place.stand();
                    stand.node = Some(path);
                    stand.made_with(data);
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

    /// Gives up our place, and says who is first. `None` if that one is no contender, unless we know that it is: then
    /// another place is due.
    async fn withdraw(
        &self,
        session: &Arc<Session>,
        first: &Contender,
        known: bool,
    ) -> Result<Option<Option<HolderInfo>>, StoreError> {
        let Some(node) = self.place.node() else { return Ok(None) };
        let path = self.place.child(first);
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
            self.lose_place();
            return Ok(None);
        }
        self.shared.places.remove(&self.place);
        if self.place.liveness == Liveness::LeaseOnly {
            self.shared.close_later(session);
        }
        Ok(Some(match seen {
            Ok((data, stat)) => Some(holder(first, &data, &stat)),
            Err(_) => secret.then(HolderInfo::stranger),
        }))
    }
}
