//! Renews and releases, for guards of this client and for owners of any other.

mod broken;
mod keep;

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Ttl};
use futures_util::future::Either;
use tokio::sync::watch;

pub(super) use self::keep::look_after;
use super::client::{Key, Session, Stat};
use super::config::Style;
use super::error::{Code, code, found};
use super::layout::{Mark, Note, check_value, in_order, path_of, token_of};
use super::places::{Going, Place};
use super::shared::{Shared, ttl_of};
use crate::backend::{
    GrantId, Liveness, LossCause, LossSignal, NotHeld, Outcome, Renewal, Renewed, Reply, Request,
    StoreError, StoreResult, short,
};
use crate::race::race;
use crate::retry::{CALL_TIMEOUT, retry};

/// How long a release in the background leaves the servers alone after a refusal.
const LATER: Duration = Duration::from_secs(5);

/// Renews one grant.
pub(super) async fn renew(
    shared: &Arc<Shared>,
    renewal: &Renewal,
    limit: Moment,
) -> StoreResult<Result<Renewed, NotHeld>> {
    let Renewal { grant: id, value, .. } = renewal;
    check_value(value.as_ref())?;
    let place = match shared.places.get(id) {
        Some(place) if place.granted() => Ok(place),
        Some(_) => Err(NotHeld(None)),
        None => match shared.places.why_ended(id) {
            Some(cause) => Err(NotHeld(Some(cause))),
            None => find(shared, id, limit).await?,
        },
    };
    let place = match place {
        Ok(place) => place,
        Err(not_held) => return Ok(Reply::new(Err(not_held), shared.now())),
    };
    if value.is_some() && place.liveness == Liveness::LeaseOnly {
        return Err(lease_only_refused(&id.name));
    }
    if value.is_some() && shared.style == Style::Latch {
        return Err(latch_refused(&id.name));
    }
    let clock = &*shared.around.clock;
    let reply = retry(clock, limit, |number| beat(shared, &place, renewal, number == 0)).await?;
    if let Ok(Renewed { ttl, .. }) = reply.value {
        let (ttl, now) = (ttl.as_duration(), clock.now());
        if reply.sent + ttl / 3 <= now {
            // Not much of it counts yet, and whoever keeps the lease will ask again at once.
            clock.alarm((now + ttl / 50).min(limit)).await;
        }
    }
    Ok(reply)
}

/// Writes to the node of a grant, once.
async fn beat(
    shared: &Shared,
    place: &Arc<Place>,
    renewal: &Renewal,
    first: bool,
) -> Result<(Result<Renewed, NotHeld>, Moment), StoreError> {
    let not_held = |cause| Ok((Err(NotHeld(cause)), shared.now()));
    let (session, token, asked, written) = {
        let mut stand = place.stand();
        let (Some(session), Some(node), Some((token, kept))) =
            (stand.session.clone(), stand.node.clone(), stand.grant)
        else {
            return not_held(None);
        };
        if renewal.token.is_some_and(|meant| meant != token) {
            return not_held(Some(LossCause::TakenOver));
        }
        if let Some(longer) = renewal.ttl.filter(|ttl| *ttl > kept) {
            return Err(longer_refused(&place.id.name, kept, longer));
        }
        // What is said last stays: it is noted in one step with its sending, so that no heartbeat with an
        // older value comes behind it. If the outcome of this attempt is unknown, the next heartbeat says it.
        if let Some(value) = renewal.value.as_ref().filter(|_| first) {
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
    match found(asked.await) {
        Ok(Some((stat, sent))) if ours(&stat) => {
            if let Some(stat) = stat {
                place.stand().is_there(stat.version, written);
            }
            let ttl = ttl_of(&session)?;
            // A server with other limits may have changed it: the caller asks for this one from now on.
            if let Some((_, kept)) = &mut place.stand().grant {
                *kept = ttl;
            }
            place.leased(sent + ttl.as_duration());
            Ok((Ok(Renewed { token, ttl }), sent))
        }
        Ok(_) => not_held(Some(shared.ended(place, &session).await)),
        Err(error) if code(&error) == Some(Code::SessionGone) => {
            shared.lost(place, LossCause::SessionGone);
            not_held(Some(LossCause::SessionGone))
        }
        Err(error) => {
            if !error.is_transient() {
                place.stand().take_back(&written);
            }
            Err(error)
        }
    }
}

/// Of a grant that outlives its process: the node has no room for a value.
pub(super) fn lease_only_refused(name: &LockName) -> StoreError {
    StoreError::refused(format!(
        "\"{name}\" can not be an election and lease-only on ZooKeeper: a candidate's node has its value \
         and nothing else. Campaign from a process that stays"
    ))
}

/// A `LeaderLatch` watches the node before its own, once, and looks again only when that goes. If the node is set, its
/// watch is used up, and it would never lead. So with this style no node is set, by heartbeats neither.
fn latch_refused(name: &LockName) -> StoreError {
    StoreError::refused(format!(
        "the leader of \"{name}\" can not say anything new with style=latch: a LeaderLatch behind it would \
         wait for ever. Resign and campaign with the new value, or use another style"
    ))
}

fn longer_refused(name: &LockName, kept: Ttl, asked: Ttl) -> StoreError {
    StoreError::refused(format!(
        "the grant of \"{name}\" has a TTL of {} and ZooKeeper can not make it {}: a session keeps \
         its timeout. Acquire it with the longer TTL",
        short(kept.as_duration()),
        short(asked.as_duration())
    ))
}

/// A grant that another process took, by its owner: attaches to its session.
async fn find(
    shared: &Arc<Shared>,
    id: &GrantId,
    limit: Moment,
) -> Result<Result<Arc<Place>, NotHeld>, StoreError> {
    let (dir, mark) = (&*path_of(&shared.chroot, &id.name), Mark::of(id));
    let look = |control: Arc<Session>| async move {
        match look_for(shared, &control, dir, mark).await? {
            Some(node) => Ok(Ok(node)),
            None => Ok(Err(NotHeld(shared.why_gone(&control, dir, mark, false).await?))),
        }
    };
    let (node, data, stat) = match shared.call(limit, look).await?.value {
        Ok(node) => node,
        Err(not_held) => return Ok(Err(not_held)),
    };
    let not_ours = || {
        StoreError::refused(format!(
            "the grant of \"{}\" is kept alive by the process that took it, and by no other: acquire it \
             as lease-only to renew it from elsewhere",
            id.name
        ))
    };
    let stated = Note::read(&data).ok_or_else(not_ours)?;
    let key = stated.sealed.as_deref().and_then(|it| Key::unseal(it, id)).ok_or_else(not_ours)?;
    let token = token_of(&stat).ok_or_else(|| StoreError::refused("its token is too high"))?;
    let request = Request {
        grant: id.clone(),
        ttl: stated.ttl,
        label: stated.label,
        value: None,
        liveness: Liveness::LeaseOnly,
        loss: LossSignal::unheard(),
    };
    let place = Place::new(&request, dir.to_owned());
    {
        let mut stand = place.stand();
        (stand.session, stand.node) = (Some(shared.attach(stated.ttl, key)), Some(node));
        stand.made_with(data);
        stand.grant = Some((token, stated.ttl));
    }
    Ok(Ok(shared.places.enter(place)))
}

/// The owner's node, if it is at the head of the line.
async fn look_for(
    shared: &Shared,
    control: &Session,
    dir: &str,
    mark: Mark,
) -> Result<Option<(String, Vec<u8>, Stat)>, StoreError> {
    let children = shared.children_now(control, dir).await?;
    let (line, ours) = (in_order(&children), mark.finder());
    let Some(ahead) = line.iter().position(|one| ours(&one.node)) else { return Ok(None) };
    if shared.first_of(control, dir, &line[..ahead]).await?.is_some() {
        return Ok(None);
    }
    let node = format!("{dir}/{}", line[ahead].node);
    let read = found(control.data(&node).await)?;
    Ok(read.map(|(data, stat)| (node, data, stat)))
}

/// Releases whatever this owner has: a grant, a place in line, or what an acquire may have left.
pub(super) async fn release(
    shared: &Arc<Shared>,
    id: &GrantId,
    limit: Moment,
) -> StoreResult<Result<(), NotHeld>> {
    let Some(place) = shared.places.get(id) else {
        return match shared.places.why_ended(id) {
            Some(LossCause::Broken) => {
                let (dir, mark) = (&*path_of(&shared.chroot, &id.name), Mark::of(id));
                let take = |control: Arc<Session>| async move {
                    shared.why_gone(&control, dir, mark, true).await
                };
                let taken = shared.call(limit, take).await?;
                Ok(taken.map(|_| Err(NotHeld(Some(LossCause::Broken)))))
            }
            Some(cause) => Ok(Reply::new(Err(NotHeld(Some(cause))), shared.now())),
            None => release_elsewhere(shared, id, limit).await,
        };
    };
    let mut going = go(shared, &place);
    let gone = going.wait_for(|going| matches!(going, Going::Gone(_)));
    race(gone, shared.around.clock.alarm(limit)).await;
    let going = going.borrow().clone();
    match going {
        Going::Gone(released) => Ok(released),
        Going::Failing(error) => Err(error),
        Going::Asked => Err(StoreError::no_reply(format!(
            "no ZooKeeper server of {} answered the release of \"{}\"",
            shared.servers.shown(),
            id.name
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
    let heard = told.subscribe();
    // A client that closes waits for the first attempts.
    let mut tracked = Some(shared.around.tasks.token());
    let (shared, place) = (Arc::clone(shared), Arc::clone(place));
    let runtime = shared.around.runtime.clone();
    runtime.spawn(async move {
        let (clock, mut unknown) = (&*shared.around.clock, false);
        let mut released = loop {
            let attempt = |_| let_go(&shared, &place);
            match retry(clock, clock.now() + CALL_TIMEOUT, attempt).await {
                Ok(released) => break released,
                Err(error) => {
                    unknown |= error.outcome() == Outcome::Unknown;
                    drop(tracked.take());
                    let refused = !error.is_transient();
                    told.send_replace(Going::Failing(error));
                    // One who may not do it now may never; but it has to be asked again.
                    if refused {
                        clock.alarm(clock.now() + LATER).await;
                    }
                    shared.pause().await;
                }
            }
        };
        released.retried |= unknown;
        shared.places.remove(&place);
        if place.liveness == Liveness::LeaseOnly
            && let Some(session) = place.session()
        {
            shared.close_later(&session);
        }
        told.send_replace(Going::Gone(released));
        drop(tracked);
    });
    heard
}

/// Takes the nodes of this place away, once. `NotHeld` says why there were none.
async fn let_go(
    shared: &Shared,
    place: &Place,
) -> Result<(Result<(), NotHeld>, Moment), StoreError> {
    let sent = shared.now();
    let Some(session) = place.session() else { return Ok((Err(NotHeld(None)), sent)) };
    match delete_nodes(shared, place, &session).await {
        Ok(true) => Ok((Ok(()), sent)),
        Ok(false) if !place.granted() => Ok((Err(NotHeld(None)), sent)),
        Ok(false) => {
            let cause = shared.why_gone(&session, &place.dir, place.mark, true).await?;
            Ok((Err(NotHeld(cause)), sent))
        }
        Err(error) if code(&error) == Some(Code::SessionGone) => {
            Ok((Err(NotHeld(Some(LossCause::SessionGone))), sent))
        }
        Err(error) => Err(error),
    }
}

/// Whether there were any.
async fn delete_nodes(
    shared: &Shared,
    place: &Place,
    session: &Session,
) -> Result<bool, StoreError> {
    let (node, unsure) = {
        let stand = place.stand();
        (stand.node.clone(), stand.unsure)
    };
    if let Some(node) = node.as_ref().filter(|_| !unsure)
        && found(session.delete(node).await)?.is_some()
    {
        return Ok(true);
    }
    if node.is_none() && !unsure {
        return Ok(false);
    }
    // It is not there, or may not be the only one: whatever has this owner's mark goes.
    let mut any = false;
    for node in shared.nodes_of(session, &place.dir, place.mark).await?.into_iter().rev() {
        any |= found(session.delete(&node).await)?.is_some();
    }
    Ok(any)
}

/// Releases what another process took.
async fn release_elsewhere(
    shared: &Arc<Shared>,
    id: &GrantId,
    limit: Moment,
) -> StoreResult<Result<(), NotHeld>> {
    let (dir, mark) = (&*path_of(&shared.chroot, &id.name), Mark::of(id));
    let release = |control: Arc<Session>| async move {
        if take_away(shared, &control, id, dir).await? {
            return Ok(Ok(()));
        }
        Ok(Err(NotHeld(shared.why_gone(&control, dir, mark, true).await?)))
    };
    shared.call(limit, release).await
}

/// Whether there was anything.
async fn take_away(
    shared: &Shared,
    control: &Session,
    id: &GrantId,
    dir: &str,
) -> Result<bool, StoreError> {
    let nodes = shared.nodes_of(control, dir, Mark::of(id)).await?;
    let any = !nodes.is_empty();
    for node in nodes {
        let (asked, deleted) = (control.data(&node), control.delete(&node));
        let data = asked.await;
        found(deleted.await)?;
        // Its session has nothing left to carry.
        if let Ok((data, _)) = data
            && let Some(note) = Note::read(&data)
            && let Some(key) = note.sealed.and_then(|it| Key::unseal(&it, id))
        {
            shared.close_later(&shared.attach(note.ttl, key));
        }
    }
    Ok(any)
}
