//! Renews and releases, for guards of this client and for owners of any other.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, OwnerId, Ttl};
use futures_util::future::Either;
use tokio::sync::watch;

use super::address::Style;
use super::broken::Ended;
use super::faults::{Code, Fault};
use super::names::path_of;
use super::nodes::{Mark, in_order, token_of};
use super::notes::{Key, Note, check_value};
use super::places::{Going, Place};
use super::session::Session;
use super::shared::{BREATH, PATIENCE, Shared};
use super::wire::Stat;
use crate::backend::{Liveness, LossCause, LossSignal, short};
use crate::backends::bridge::{Renewal, Renewed, Request};
use crate::counted::Counted;
use crate::error::{Error, Result};
use crate::race::race;

/// How long a release in the background leaves the servers alone after a refusal.
const LATER: Duration = Duration::from_secs(5);

/// Renews one grant.
pub(super) async fn renew(shared: &Arc<Shared>, renewal: &Renewal) -> Result<Renewed> {
    let Renewal { name, owner, ttl, token: meant, value } = renewal;
    check_value(value.as_ref())?;
    let place = match shared.places.get(name, *owner) {
        Some(place) if place.granted() => place,
        Some(_) => return Err(Error::not_held(name, None)),
        None => match shared.places.why_ended(name, *owner) {
            Some(cause) => return Err(Error::not_held(name, Some(cause))),
            None => find(shared, name, *owner).await?,
        },
    };
    if value.is_some() && place.liveness == Liveness::LeaseOnly {
        return Err(lease_only_refused(name));
    }
    if value.is_some() && shared.style == Style::Latch {
        return Err(latch_refused(name));
    }
    let give_up = shared.now() + PATIENCE;
    let mut said = value.as_ref();
    loop {
        let (session, token, asked, written) = {
            let mut stand = place.stand();
            let (Some(session), Some(node), Some((token, kept))) =
                (stand.session.clone(), stand.node.clone(), stand.grant)
            else {
                return Err(Error::not_held(name, None));
            };
            if meant.is_some_and(|meant| meant != token) {
                return Err(Error::not_held(name, Some(LossCause::TakenOver)));
            }
            if let Some(longer) = ttl.filter(|ttl| *ttl > kept) {
                return Err(longer_refused(name, kept, longer));
            }
            // What is said last stays: it is noted in one step with its sending, so that no heartbeat with an
            // older value comes behind it. If nobody knows what became of this attempt, the next heartbeat says it.
            if let Some(value) = said.take() {
                stand.written = value.as_bytes().into();
            }
            let asked = if shared.style == Style::Latch {
                let alive = session.alive(&node);
                Either::Left(async move { alive.await.map(|sent| (None, sent)) })
            } else {
                let set = session.set(&node, &stand.written);
                Either::Right(async move { set.await.map(|(stat, sent)| (Some(stat), sent)) })
            };
            (session, token, asked, Arc::clone(&stand.written))
        };
        let ours = |stat: &Option<Stat>| {
            let same = |stat: &Stat| stat.session == session.id() && token_of(stat) == Some(token);
            stat.as_ref().is_none_or(same)
        };
        match asked.await {
            Ok((stat, sent)) if ours(&stat) => {
                if let Some(stat) = stat {
                    place.stand().is_there(stat.version, written);
                }
                let ttl = session.ttl().map_err(Fault::into_error)?;
                // A server with other limits may have changed it: the caller asks for this one from now on.
                if let Some((_, kept)) = &mut place.stand().grant {
                    *kept = ttl;
                }
                place.leased(sent + ttl.as_duration());
                let due = sent + ttl.as_duration() / 3;
                if due <= shared.now() {
                    // Not much of it counts yet, and whoever keeps the lease will ask again at once.
                    shared.around.clock.alarm(shared.now() + ttl.as_duration() / 50).await;
                }
                return Ok(Renewed { token, ttl, sent });
            }
            Ok(_) | Err(Fault::Said(Code::NoNode)) => {
                let cause = shared.ended(&place, &session).await;
                return Err(Error::not_held(name, Some(cause)));
            }
            Err(Fault::Gone) => {
                shared.lost(&place, LossCause::SessionGone);
                return Err(Error::not_held(name, Some(LossCause::SessionGone)));
            }
            Err(Fault::Cut(_)) if shared.now() < give_up => shared.breathe().await,
            Err(fault) => {
                if !fault.passes() {
                    place.stand().take_back(&written);
                }
                return Err(fault.into_error());
            }
        }
    }
}

/// Of a grant that outlives its process: the node has no room for a value.
pub(super) fn lease_only_refused(name: &LockName) -> Error {
    Error::refused(format!(
        "\"{name}\" can not be an election and lease-only on ZooKeeper: a candidate's node has its value \
         and nothing else. Campaign from a process that stays"
    ))
}

/// A `LeaderLatch` watches the node before its own, once, and looks again only when that goes. If the node is set, its
/// watch is used up, and it would never lead. So with this style no node is set, by heartbeats neither.
fn latch_refused(name: &LockName) -> Error {
    Error::refused(format!(
        "the leader of \"{name}\" can not say anything new with style=latch: a LeaderLatch behind it would \
         wait for ever. Resign and campaign with the new value, or use another style"
    ))
}

fn longer_refused(name: &LockName, kept: Ttl, asked: Ttl) -> Error {
    Error::refused(format!(
        "the grant of \"{name}\" has a TTL of {} and ZooKeeper can not make it {}: a session keeps \
         its timeout. Acquire it with the longer TTL",
        short(kept.as_duration()),
        short(asked.as_duration())
    ))
}

/// A grant that another process took, by its owner: attaches to its session.
async fn find(shared: &Arc<Shared>, name: &LockName, owner: OwnerId) -> Result<Arc<Place>> {
    let (dir, mark) = (path_of(&shared.chroot, name), Mark::of(name, owner));
    let give_up = shared.now() + PATIENCE;
    loop {
        let control = shared.control();
        match look_for(shared, &control, &dir, mark).await {
            Ok(Some((node, data, stat))) => {
                let not_ours = || {
                    Error::refused(format!(
                        "the grant of \"{name}\" is kept alive by the process that took it, and by no \
                         other: acquire it as lease-only to renew it from elsewhere"
                    ))
                };
                let stated = Note::read(&data).ok_or_else(not_ours)?;
                let key = stated.sealed.as_deref().and_then(|it| Key::unseal(it, name, owner));
                let session = shared.attach(stated.ttl, key.ok_or_else(not_ours)?);
                let token =
                    token_of(&stat).ok_or_else(|| Error::refused("its token is too high"))?;
                let request = Request {
                    name: name.clone(),
                    owner,
                    ttl: stated.ttl,
                    label: stated.label,
                    value: None,
                    liveness: Liveness::LeaseOnly,
                    loss: LossSignal::unheard(),
                };
                let place = Place::new(&request, dir);
                {
                    let mut stand = place.stand();
                    (stand.session, stand.node) = (Some(session), Some(node));
                    stand.made_with(data);
                    stand.grant = Some((token, stated.ttl));
                }
                return Ok(shared.places.enter(place));
            }
            Ok(None) => {
                let ended = shared.find_marker(&control, &dir, mark).await;
                let cause = matches!(ended, Ok(Ended::Broken)).then_some(LossCause::Broken);
                return Err(Error::not_held(name, cause));
            }
            Err(Fault::Cut(_) | Fault::Gone) if shared.now() < give_up => shared.breathe().await,
            Err(fault) => return Err(fault.into_error()),
        }
    }
}

/// The owner's node, if it is at the head of the line.
async fn look_for(
    shared: &Shared,
    control: &Session,
    dir: &str,
    mark: Mark,
) -> Result<Option<(String, Vec<u8>, Stat)>, Fault> {
    let children = shared.children_now(control, dir).await?;
    let (line, ours) = (in_order(&children), mark.finder());
    let Some(ahead) = line.iter().position(|one| ours(&one.node)) else { return Ok(None) };
    if shared.first_of(control, dir, &line[..ahead]).await?.is_some() {
        return Ok(None);
    }
    let node = format!("{dir}/{}", line[ahead].node);
    match control.data(&node).await {
        Ok((data, stat)) => Ok(Some((node, data, stat))),
        Err(Fault::Said(Code::NoNode)) => Ok(None),
        Err(fault) => Err(fault),
    }
}

/// Releases whatever this owner has: a grant, a place in line, or what an acquire may have left.
pub(super) async fn release(shared: &Arc<Shared>, name: &LockName, owner: OwnerId) -> Result<()> {
    let Some(place) = shared.places.get(name, owner) else {
        return match shared.places.why_ended(name, owner) {
            Some(LossCause::Broken) => {
                let (dir, mark) = (path_of(&shared.chroot, name), Mark::of(name, owner));
                let dir = dir.as_str();
                let taken = shared.persist(|control| {
                    Box::pin(async move { shared.take_marker(&control, dir, mark).await })
                });
                taken.await?;
                Err(Error::not_held(name, Some(LossCause::Broken)))
            }
            Some(cause) => Err(Error::not_held(name, Some(cause))),
            None => release_elsewhere(shared, name, owner).await,
        };
    };
    let mut going = go(shared, &place);
    let gone = going.wait_for(|going| matches!(going, Going::Gone(_)));
    let limit = shared.around.clock.alarm(shared.now() + PATIENCE);
    race(gone, limit).await;
    let going = going.borrow().clone();
    match going {
        Going::Gone(released) => released.map_err(|cause| Error::not_held(name, cause)),
        Going::Failing(fault) => Err(fault.into_error()),
        Going::Asked => Err(Error::unreachable(format!(
            "no ZooKeeper server of {} answered the release of \"{name}\" within {}",
            shared.servers.shown(),
            short(PATIENCE)
        ))),
    }
}

/// Lets go of a place in the background, for as long as it takes: its session may be shared and go on, so what
/// is left here would not end by itself. It is over when its node is gone, or the session is.
pub(super) fn go(shared: &Arc<Shared>, place: &Arc<Place>) -> watch::Receiver<Going> {
    // From here on the acquire asks for nothing more: what we ask comes behind all that it did.
    place.stop();
    let (told, first) = place.going();
    if !first {
        return told.subscribe();
    }
    let (heard, counted) = (told.subscribe(), Counted::new(&shared.closing));
    let (shared, place) = (Arc::clone(shared), Arc::clone(place));
    let runtime = shared.around.runtime.clone();
    runtime.spawn(async move {
        let _counted = counted;
        let session = place.session();
        let released = loop {
            let Some(session) = &session else { break Err(None) };
            match let_go(&shared, &place, session).await {
                Ok(released) => break released,
                Err(Fault::Gone) => break Err(Some(LossCause::SessionGone)),
                Err(fault) => {
                    if !matches!(fault, Fault::Cut(_)) {
                        told.send_replace(Going::Failing(fault.clone()));
                    }
                    // One who may not do it now may never; but it has to be asked again.
                    let nap = if fault.passes() { BREATH } else { LATER };
                    shared.around.clock.alarm(shared.now() + nap).await;
                }
            }
        };
        shared.places.remove(&place);
        if let Some(session) = session.filter(|_| place.liveness == Liveness::LeaseOnly) {
            shared.close_later(&session);
        }
        told.send_replace(Going::Gone(released));
    });
    heard
}

/// Takes the nodes of this place away. The inner error says why there were none.
async fn let_go(
    shared: &Arc<Shared>,
    place: &Arc<Place>,
    session: &Session,
) -> Result<Result<(), Option<LossCause>>, Fault> {
    let (node, unsure, again) = {
        let stand = place.stand();
        (stand.node.clone(), stand.unsure, stand.deleting)
    };
    let mut released = false;
    // First the node that we know of; if it is not there, or may not be the only one, what has this owner's
    // mark.
    let mut nodes: Vec<String> = node.filter(|_| !unsure).into_iter().collect();
    let mut looked = if nodes.is_empty() { !unsure } else { again };
    loop {
        if nodes.is_empty() {
            if released || looked {
                break;
            }
            looked = true;
            nodes = match shared.nodes_of(session, &place.dir, place.mark).await {
                Err(Fault::Gone) if again => return Ok(Ok(())),
                Err(Fault::Gone) => return Ok(Err(Some(LossCause::SessionGone))),
                nodes => nodes?,
            };
        }
        let Some(node) = nodes.pop() else { continue };
        match session.delete(&node).await {
            Ok(()) => released = true,
            Err(Fault::Said(Code::NoNode)) => {}
            Err(Fault::Gone) if again => return Ok(Ok(())),
            Err(Fault::Gone) => return Ok(Err(Some(LossCause::SessionGone))),
            Err(fault) => {
                let mut stand = place.stand();
                stand.deleting |= matches!(fault, Fault::Cut(_));
                return Err(fault);
            }
        }
    }
    // Its answer may have been lost; who has the lock by now has it from us.
    if released || again {
        return Ok(Ok(()));
    }
    if !place.granted() {
        return Ok(Err(None));
    }
    Ok(Err(match shared.take_marker(session, &place.dir, place.mark).await? {
        Ended::Broken => Some(LossCause::Broken),
        Ended::Otherwise => None,
    }))
}

/// Releases what another process took.
async fn release_elsewhere(shared: &Arc<Shared>, name: &LockName, owner: OwnerId) -> Result<()> {
    let (dir, mark) = (path_of(&shared.chroot, name), Mark::of(name, owner));
    let give_up = shared.now() + PATIENCE;
    let mut cut = false;
    loop {
        let control = shared.control();
        match take_away(shared, &control, name, owner, &dir).await {
            Ok(true) => return Ok(()),
            Ok(false) if cut => return Ok(()),
            Ok(false) => {
                let ended = shared.take_marker(&control, &dir, mark).await;
                let cause = matches!(ended, Ok(Ended::Broken)).then_some(LossCause::Broken);
                return Err(Error::not_held(name, cause));
            }
            Err((deleting, Fault::Cut(_) | Fault::Gone)) if shared.now() < give_up => {
                cut |= deleting;
                shared.breathe().await;
            }
            Err((_, fault)) => return Err(fault.into_error()),
        }
    }
}

/// Whether there was anything; or whether it was asked to go, and the fault.
async fn take_away(
    shared: &Arc<Shared>,
    control: &Arc<Session>,
    name: &LockName,
    owner: OwnerId,
    dir: &str,
) -> Result<bool, (bool, Fault)> {
    let mark = Mark::of(name, owner);
    let nodes = shared.nodes_of(control, dir, mark).await.map_err(|fault| (false, fault))?;
    let any = !nodes.is_empty();
    for node in nodes {
        let (asked, deleted) = (control.data(&node), control.delete(&node));
        let data = asked.await;
        // It is another session's: that ours has ended says nothing of it.
        match deleted.await {
            Ok(()) | Err(Fault::Said(Code::NoNode)) => {}
            Err(fault) => return Err((true, fault)),
        }
        // Its session has nothing left to carry.
        if let Ok((data, _)) = data
            && let Some(note) = Note::read(&data)
            && let Some(key) = note.sealed.and_then(|it| Key::unseal(&it, name, owner))
        {
            shared.close_later(&shared.attach(note.ttl, key));
        }
    }
    Ok(any)
}
