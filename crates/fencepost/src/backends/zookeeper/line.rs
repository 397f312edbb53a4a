//! Stands in line for a lock until it is our turn, then looks after the grant.
//!
//! Each acquire has a task on the client's own thread. It makes the node, waits for the node before it to
//! go, and looks again before it believes: at the list, and at its own node, which must be there and of this
//! session (etcd#11456, CURATOR-604). A node before it that stays is no contender, whatever it is called: it is
//! passed over. If the node or the session died while it waited, it takes a fresh place. When it is granted the task goes on, and tells the guard if the node or the session goes.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::Moment;
use tokio::sync::oneshot;

use super::faults::{Code, Fault};
use super::keep::look_after;
use super::nodes::{Contender, in_order, token_of};
use super::notes::{Key, Note, holder};
use super::ops::Make;
use super::places::Place;
use super::session::{Kept, Session};
use super::shared::{BREATH, PATIENCE, Shared};
use super::wire::Stat;
use crate::backend::{HolderInfo, Liveness};
use crate::backends::bridge::{Acquired, Grant, Wait};
use crate::error::Result;
use crate::race::race;

/// How long a waiter puts up with servers that can not be reached.
const OUTAGE: Duration = Duration::from_secs(5);
/// How often a directory may vanish before our eyes.
const VANISHED: usize = 8;

/// What became of an acquire.
enum Stood {
    /// With the word that our node is gone, or the connection.
    Granted(Grant, oneshot::Receiver<()>),
    Held(Option<HolderInfo>),
}

/// The task of one acquire, and of the grant that it gets.
pub(super) async fn stand(
    shared: Arc<Shared>,
    place: Arc<Place>,
    wait: Wait,
    tell: oneshot::Sender<Result<Acquired>>,
) {
    let mut line = Line {
        shared: &shared,
        place: &place,
        wait,
        kept: None,
        queued: false,
        wary: false,
        sent: None,
    };
    let stood = line.wait().await;
    let kept = line.kept.take();
    match stood {
        Ok(Stood::Granted(grant, own)) => {
            place.leased(shared.now() + grant.ttl.as_duration());
            let _ = tell.send(Ok(Acquired::Granted(grant)));
            // What keeps a script's grant from here on is its renewals alone.
            drop(kept);
            look_after(&shared, &place, own).await;
        }
        Ok(Stood::Held(holder)) => {
            shared.places.remove(&place);
            let _ = tell.send(Ok(Acquired::Held(holder)));
        }
        // What may be left is for the release that follows.
        Err(fault) => {
            let _ = tell.send(Err(fault.into_error()));
        }
    }
}

struct Line<'a> {
    shared: &'a Arc<Shared>,
    place: &'a Arc<Place>,
    wait: Wait,
    kept: Option<Kept>,
    /// The grant may be as old as our place: it has to be confirmed.
    queued: bool,
    /// There is one in the directory that looks like a contender and is none.
    wary: bool,
    /// From when the making of our node counts.
    sent: Option<Moment>,
}

impl Line<'_> {
    fn until(&self) -> Moment {
        match self.wait {
            Wait::No => Moment::default(),
            Wait::Until(until) => until,
            Wait::Forever => Moment::NEVER,
        }
    }

    async fn wait(&mut self) -> Result<Stood, Fault> {
        let (clock, begun) = (&self.shared.around.clock, self.shared.now());
        let mut out_since: Option<Moment> = None;
        loop {
            match self.step().await {
                Ok(Some(stood)) => return Ok(stood),
                Ok(None) => out_since = None,
                Err(fault) if fault.may_be_tried_again() => {
                    if fault == Fault::Gone {
                        // It, and what we had in it, is gone: a fresh place in a fresh session.
                        self.queued = true;
                        self.kept = None;
                        self.place.move_to(None);
                    }
                    let now = self.shared.now();
                    let since = *out_since.get_or_insert(now);
                    let give_up = match self.wait {
                        Wait::No => begun + PATIENCE,
                        _ => self.until().min(since + OUTAGE),
                    };
                    if now >= give_up {
                        return Err(fault);
                    }
                    clock.alarm((now + BREATH).min(give_up)).await;
                }
                Err(fault) => return Err(fault),
            }
        }
    }

    /// The session that carries this place.
    fn session(&mut self) -> Arc<Session> {
        let known = self.place.session().filter(|session| !session.is_over());
        let session = known.unwrap_or_else(|| {
            let session = self.shared.session_for(self.place.asked, self.place.liveness);
            self.kept = None;
            self.place.move_to(Some(Arc::clone(&session)));
            session
        });
        if self.place.liveness == Liveness::LeaseOnly && self.kept.is_none() {
            self.kept = Some(session.keep());
        }
        session
    }

    /// One look at where we stand, and the wait until that changes; `None` to look again.
    async fn step(&mut self) -> Result<Option<Stood>, Fault> {
        let session = self.session();
        session.ready().await?;
        let node = match self.place.node() {
            Some(node) => node,
            None => self.take_place(&session).await?,
        };
        let children = session.children(&self.place.dir);
        // The children of a node that can have none: told when it goes, not when a heartbeat sets its data.
        let own = session.children_watched(&node);
        let (children, own) = (children.await, own.await);
        let (children, (_, stat, own)) = match (children, own) {
            (Err(Fault::Said(Code::NoNode)), _) | (_, Err(Fault::Said(Code::NoNode))) => {
                self.lose_place();
                return Ok(None);
            }
            (children, own) => (children?, own?),
        };
        if stat.session != session.id() {
            self.lose_place();
            return Ok(None);
        }
        let line = in_order(&children);
        let own_name = node.rsplit('/').next().unwrap_or_default();
        let (marked, ours) = (self.place.mark.finder(), |other: &Contender| other.node == own_name);
        let double = line.iter().find(|other| marked(&other.node) && !ours(other));
        let Some(ahead) = line.iter().position(ours) else {
            return Err(Fault::NotNow("the server does not list our node yet".into()));
        };
        if let Some(double) = double {
            self.queued = true;
            let later = line[..ahead].iter().all(|other| other != double);
            self.settle_double(&session, &node, double, later).await?;
            return Ok(None);
        }
        if ahead == 0 {
            return self.granted(&session, &stat, own).map(Some);
        }
        if !self.wary && self.shared.now() >= self.until() {
            return self.withdraw(&session, &node, &line[0]).await;
        }
        self.queued = true;
        let gone = match self.before(&session, &line[..ahead]).await? {
            Before::Nobody => return self.granted(&session, &stat, own).map(Some),
            Before::Moved => return Ok(None),
            Before::One(gone) => gone,
        };
        if self.shared.now() >= self.until() {
            return match self.shared.first_of(&session, &self.place.dir, &line[..ahead]).await? {
                Some(first) => self.withdraw(&session, &node, &first).await,
                None => Ok(None),
            };
        }
        // A connection that breaks ends both: what it would have told has to be looked at.
        race(race(gone, own), self.shared.around.clock.alarm(self.until())).await;
        Ok(None)
    }

    fn granted(
        &self,
        session: &Session,
        stat: &Stat,
        own: oneshot::Receiver<()>,
    ) -> Result<Stood, Fault> {
        let ttl = session.ttl()?;
        let token = token_of(stat).ok_or_else(|| {
            Fault::Refused(format!(
                "ZooKeeper's transaction number {} is beyond 2^53, which no token may be: the \
                 ensemble has had too many elections to be used for locks",
                stat.czxid
            ))
        })?;
        self.place.stand().grant = Some((token, ttl));
        let (sent, queued) = (self.sent.unwrap_or_default(), self.queued || self.sent.is_none());
        Ok(Stood::Granted(Grant { token, ttl, sent, queued, presence: None }, own))
    }

    /// The last of these that is a contender, and the word that it goes.
    async fn before(&mut self, session: &Session, ahead: &[Contender]) -> Result<Before, Fault> {
        for one in ahead.iter().rev() {
            let path = self.place.child(one);
            let (stat, gone) = match session.children_watched(&path).await {
                Ok((_, stat, gone)) => (Some(stat), gone),
                Err(Fault::Said(Code::NoNode)) => return Ok(Before::Moved),
                Err(Fault::Said(Code::NoAuth)) => session.exists_watched(&path).await?,
                Err(fault) => return Err(fault),
            };
            match stat {
                None => return Ok(Before::Moved),
                Some(stat) if stat.ends() => return Ok(Before::One(gone)),
                Some(_) => self.wary = true,
            }
        }
        Ok(Before::Nobody)
    }

    /// Our node is not there, or not ours: a fresh one is due.
    fn lose_place(&mut self) {
        self.queued = true;
        let mut stand = self.place.stand();
        (stand.node, stand.grant) = (None, None);
    }

    /// Makes our node, unless an earlier attempt has.
    async fn take_place(&mut self, session: &Arc<Session>) -> Result<String, Fault> {
        let place = self.place;
        if place.stand().unsure {
            self.queued = true;
            let found = self.find(session).await?;
            let mut stand = place.stand();
            (stand.unsure, stand.node) = (false, found.clone());
            if let Some(node) = found {
                return Ok(node);
            }
        }
        let written = self.written(session)?;
        place.stand().made_with(written.clone());
        let path = format!("{}/{}", place.dir, place.mark.prefix(self.shared.style));
        for _ in 0..VANISHED {
            let ask = || session.create(&path, &written, Make::Contender, self.shared.access);
            let Some(asked) = place.ask_for_node(ask) else {
                return Err(Fault::Refused("this acquire was withdrawn".into()));
            };
            let made = asked.await;
            {
                let mut stand = place.stand();
                stand.unsure = matches!(made, Err(Fault::Cut(_)));
                stand.node = made.as_ref().ok().map(|(node, _)| node.clone());
            }
            match made {
                Ok((node, sent)) => {
                    self.sent = Some(sent);
                    return Ok(node);
                }
                Err(Fault::Said(Code::NoNode)) => {
                    self.shared.make_directory(session, &place.dir).await?;
                }
                Err(fault) => return Err(fault),
            }
        }
        Err(Fault::NotNow(format!("the directory of \"{}\" keeps vanishing", place.name)))
    }

    /// What is to stand in our node.
    fn written(&self, session: &Session) -> Result<Vec<u8>, Fault> {
        let place = self.place;
        if let Some(value) = &place.value {
            return Ok(value.as_bytes().to_vec());
        }
        let sealed = match place.liveness {
            Liveness::Process => None,
            Liveness::LeaseOnly => {
                Some(session.key().seal(&place.name, place.owner).ok_or_else(|| {
                    Fault::NotNow("the system has no random numbers to seal a session".into())
                })?)
            }
        };
        Ok(Note { label: place.label.clone(), ttl: session.ttl()?, sealed }.bytes())
    }

    /// Our node of this session, if an attempt whose answer was lost has made one.
    async fn find(&self, session: &Session) -> Result<Option<String>, Fault> {
        for node in self.shared.nodes_of(session, &self.place.dir, self.place.mark).await? {
            match session.data(&node).await {
                Ok((data, stat)) if stat.session == session.id() => {
                    self.place.stand().made_with(data);
                    return Ok(Some(node));
                }
                Ok(_) | Err(Fault::Said(Code::NoNode)) => {}
                Err(fault) => return Err(fault),
            }
        }
        Ok(None)
    }

    /// There is another node of this owner: of an earlier attempt, or of another process.
    async fn settle_double(
        &mut self,
        session: &Arc<Session>,
        node: &str,
        double: &Contender,
        later: bool,
    ) -> Result<(), Fault> {
        let place = self.place;
        let path = place.child(double);
        let (data, stat) = match session.data(&path).await {
            Err(Fault::Said(Code::NoNode)) => return Ok(()),
            found => found?,
        };
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
            && let Some(key) = note.sealed.and_then(|it| Key::unseal(&it, &place.name, place.owner))
        {
            let other = self.shared.attach(note.ttl, key);
            let kept = other.keep();
            match other.ready().await {
                Ok(()) => {
                    gone(session.delete(node).await)?;
                    self.shared.close_later(session);
                    place.move_to(Some(other));
                    let mut stand = place.stand();
                    stand.node = Some(path);
                    stand.made_with(data);
                    self.kept = Some(kept);
                    return Ok(());
                }
                Err(Fault::Gone) => {}
                Err(fault) => {
                    other.leave();
                    return Err(fault);
                }
            }
        }
        gone(session.delete(&path).await)
    }

    /// Gives up our place, and says who is first. If that one is no contender, we take another place, and look more
    /// closely.
    async fn withdraw(
        &mut self,
        session: &Arc<Session>,
        node: &str,
        first: &Contender,
    ) -> Result<Option<Stood>, Fault> {
        let path = self.place.child(first);
        let asked = session.data(&path);
        let deleted = session.delete(node);
        let seen = asked.await;
        gone(deleted.await)?;
        let stat = match &seen {
            Ok((_, stat)) => Some(*stat),
            Err(Fault::Said(Code::NoAuth)) => session.exists(&path).await?,
            Err(_) => None,
        };
        if !self.wary && stat.is_some_and(|stat| !stat.ends()) {
            self.wary = true;
            self.lose_place();
            return Ok(None);
        }
        if self.place.liveness == Liveness::LeaseOnly {
            self.shared.close_later(session);
        }
        Ok(Some(Stood::Held(match seen {
            Ok((data, stat)) => Some(holder(first, &data, &stat)),
            Err(Fault::Said(Code::NoAuth)) => Some(HolderInfo::stranger()),
            Err(_) => None,
        })))
    }
}

/// Who stands before us.
enum Before {
    Nobody,
    /// The word that it goes.
    One(oneshot::Receiver<()>),
    /// One went while we looked.
    Moved,
}

/// A node that was to go is gone, whoever did it.
pub(super) fn gone(deleted: Result<(), Fault>) -> Result<(), Fault> {
    match deleted {
        Err(Fault::Said(Code::NoNode) | Fault::Gone) => Ok(()),
        other => other,
    }
}
