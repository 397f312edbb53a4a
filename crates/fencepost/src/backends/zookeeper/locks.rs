//! Renews and releases, for guards of this client and for owners of any other.

mod broken;
mod own_node;

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, Ttl};
use futures_util::future::Either;
use tokio::sync::watch;

pub(super) use self::own_node::watch_own_node;
use super::client::{Key, Session, Stat};
use super::config::Style;
use super::error::{Code, code, if_exists};
use super::layout::{NodeData, NodeTag, check_value, in_order, path_of, token_of};
use super::positions::{Position, ReleaseState};
use super::shared::{Shared, ttl_of};
use crate::backend::{
    GrantId, Liveness, LossCause, LossSignal, NotHeld, Outcome, Renewal, Renewed, Reply, Request,
    StoreError, StoreResult, short,
};
use crate::race::race;
use crate::retry::{CALL_TIMEOUT, retry};

/// The pause of a background release after a refusal.
const LATER: Duration = Duration::from_secs(5);

/// Renews one grant.
pub(super) async fn renew(
    shared: &Arc<Shared>,
    renewal: &Renewal,
    limit: Moment,
) -> StoreResult<Result<Renewed, NotHeld>> {
    let Renewal { grant: id, value, .. } = renewal;
    check_value(value.as_ref())?;
    let position = match shared.positions.get(id) {
        Some(position) if position.granted() => Ok(position),
        Some(_) => Err(NotHeld(None)),
        None => match shared.positions.why_ended(id) {
            Some(cause) => Err(NotHeld(Some(cause))),
            None => find(shared, id, limit).await?,
        },
    };
    let position = match position {
        Ok(position) => position,
        Err(not_held) => return Ok(Reply::new(Err(not_held), shared.now())),
    };
    if value.is_some() && position.liveness == Liveness::LeaseOnly {
        return Err(lease_only_refused(&id.name));
    }
    if value.is_some() && shared.style == Style::Latch {
        return Err(latch_refused(&id.name));
    }
    let clock = &*shared.context.clock;
    let reply =
        retry(clock, limit, |number| renew_once(shared, &position, renewal, number == 0)).await?;
    if let Ok(Renewed { ttl, .. }) = reply.value {
        let (ttl, now) = (ttl.as_duration(), clock.now());
        if reply.sent + ttl / 3 <= now {
            // Little of the lease counts yet, and the heartbeat renews it again at once.
            clock.alarm((now + ttl / 50).min(limit)).await;
        }
    }
    Ok(reply)
}

/// Writes to the node of a grant, once.
async fn renew_once(
    shared: &Shared,
    position: &Arc<Position>,
    renewal: &Renewal,
    first: bool,
) -> Result<(Result<Renewed, NotHeld>, Moment), StoreError> {
    let not_held = |cause| Ok((Err(NotHeld(cause)), shared.now()));
    let (session, token, asked, written) = {
        let mut state = position.state();
        let (Some(session), Some(node), Some((token, kept))) =
            (state.session.clone(), state.node.clone(), state.grant)
        else {
            return not_held(None);
        };
        if renewal.token.is_some_and(|meant| meant != token) {
            return not_held(Some(LossCause::TakenOver));
        }
        if let Some(longer) = renewal.ttl.filter(|ttl| *ttl > kept) {
            return Err(longer_refused(&position.id.name, kept, longer));
        }
        // The last value wins: it is noted in one step with its sending, so that no heartbeat with an older
        // value follows it. If the outcome of this attempt is unknown, the next heartbeat repeats the value.
        if let Some(value) = renewal.value.as_ref().filter(|_| first) {
            state.written = value.as_bytes().into();
        }
        let asked = if shared.style == Style::Latch {
            let alive = session.alive(&node);
            Either::Left(async move { alive.await.map(|sent| (None, sent)) })
        } else {
            let set = session.set(&node, &state.written);
            Either::Right(async move { set.await.map(|(stat, sent)| (Some(stat), sent)) })
        };
        (session, token, asked, Arc::clone(&state.written))
    };
    let ours = |stat: &Option<Stat>| {
        let same = |stat: &Stat| stat.session == session.id() && token_of(stat) == Some(token);
        stat.as_ref().is_none_or(same)
    };
    match if_exists(asked.await) {
        Ok(Some((stat, sent))) if ours(&stat) => {
            if let Some(stat) = stat {
                position.state().is_there(stat.version, written);
            }
            let ttl = ttl_of(&session)?;
            // A server with other limits may have changed it: the caller requests this one from now on.
            if let Some((_, kept)) = &mut position.state().grant {
                *kept = ttl;
            }
            position.leased(sent + ttl.as_duration());
            Ok((Ok(Renewed { token, ttl }), sent))
        }
        Ok(_) => not_held(Some(shared.ended(position, &session).await)),
        Err(error) if code(&error) == Some(Code::SessionGone) => {
            shared.lost(position, LossCause::SessionGone);
            not_held(Some(LossCause::SessionGone))
        }
        Err(error) => {
            if !error.is_transient() {
                position.state().take_back(&written);
            }
            Err(error)
        }
    }
}

/// The error for a grant that outlives its process: the node has no room for a value.
pub(super) fn lease_only_refused(name: &LockName) -> StoreError {
    StoreError::refused(format!(
        "\"{name}\" cannot be an election and lease-only on ZooKeeper: a candidate's node has its value \
         and nothing else; campaign from a process that keeps running"
    ))
}

/// A `LeaderLatch` watches the node before its own once, and reads again only when that node is deleted. If the node is
/// set, the watch is used up, and the latch would never lead. So with this style no node is set, not even by heartbeats.
fn latch_refused(name: &LockName) -> StoreError {
    StoreError::refused(format!(
        "the leader of \"{name}\" cannot proclaim another value with style=latch, because a LeaderLatch behind it \
        would wait for ever: resign and campaign with the new value, or use another style"
    ))
}

fn longer_refused(name: &LockName, kept: Ttl, asked: Ttl) -> StoreError {
    StoreError::refused(format!(
        "the grant of \"{name}\" has a TTL of {}, and ZooKeeper cannot change it to {}, because a \
        session keeps its timeout: acquire the lock with the longer TTL",
        short(kept.as_duration()),
        short(asked.as_duration())
    ))
}

/// A grant of another process, by its owner: attaches to its session.
async fn find(
    shared: &Arc<Shared>,
    id: &GrantId,
    limit: Moment,
) -> Result<Result<Arc<Position>, NotHeld>, StoreError> {
    let (dir, tag) = (&*path_of(&shared.chroot, &id.name), NodeTag::of(id));
    let look = |control: Arc<Session>| async move {
        match look_for(shared, &control, dir, tag).await? {
            Some(node) => Ok(Ok(node)),
            None => Ok(Err(NotHeld(shared.why_gone(&control, dir, tag, false).await?))),
        }
    };
    let (node, data, stat) = match shared.call(limit, look).await?.value {
        Ok(node) => node,
        Err(not_held) => return Ok(Err(not_held)),
    };
    let not_ours = || {
        StoreError::refused(format!(
            "only the process that acquired \"{}\" can renew it: acquire the lock as lease-only to renew it \
            from another process",
            id.name
        ))
    };
    let stated = NodeData::read(&data).ok_or_else(not_ours)?;
    let key = stated.sealed.as_deref().and_then(|it| Key::unseal(it, id)).ok_or_else(not_ours)?;
    let token = token_of(&stat).ok_or_else(|| StoreError::refused("its token is too high"))?;
    let request = Request {
        grant: id.clone(),
        ttl: stated.ttl,
        label: stated.label,
        value: None,
        liveness: Liveness::LeaseOnly,
        loss: LossSignal::disconnected(),
    };
    let position = Position::new(&request, dir.to_owned());
    {
        let mut state = position.state();
        (state.session, state.node) = (Some(shared.attach(stated.ttl, key)), Some(node));
        state.made_with(data);
        state.grant = Some((token, stated.ttl));
    }
    Ok(Ok(shared.positions.enter(position)))
}

/// The owner's node, if it is the first in the queue.
async fn look_for(
    shared: &Shared,
    control: &Session,
    dir: &str,
    tag: NodeTag,
) -> Result<Option<(String, Vec<u8>, Stat)>, StoreError> {
    let children = shared.children_now(control, dir).await?;
    let (contenders, ours) = (in_order(&children), tag.finder());
    let Some(ahead) = contenders.iter().position(|one| ours(&one.node)) else { return Ok(None) };
    if shared.first_of(control, dir, &contenders[..ahead]).await?.is_some() {
        return Ok(None);
    }
    let node = format!("{dir}/{}", contenders[ahead].node);
    let read = if_exists(control.data(&node).await)?;
    Ok(read.map(|(data, stat)| (node, data, stat)))
}

/// Releases whatever this owner has: a grant, a position, or what an acquire may have left.
pub(super) async fn release(
    shared: &Arc<Shared>,
    id: &GrantId,
    limit: Moment,
) -> StoreResult<Result<(), NotHeld>> {
    let Some(position) = shared.positions.get(id) else {
        return match shared.positions.why_ended(id) {
            Some(LossCause::Broken) => {
                let (dir, tag) = (&*path_of(&shared.chroot, &id.name), NodeTag::of(id));
                let take = |control: Arc<Session>| async move {
                    shared.why_gone(&control, dir, tag, true).await
                };
                let taken = shared.call(limit, take).await?;
                Ok(taken.map(|_| Err(NotHeld(Some(LossCause::Broken)))))
            }
            Some(cause) => Ok(Reply::new(Err(NotHeld(Some(cause))), shared.now())),
            None => release_elsewhere(shared, id, limit).await,
        };
    };
    let mut release_state = start_release(shared, &position);
    let gone =
        release_state.wait_for(|release_state| matches!(release_state, ReleaseState::Gone(_)));
    race(gone, shared.context.clock.alarm(limit)).await;
    let release_state = release_state.borrow().clone();
    match release_state {
        ReleaseState::Gone(released) => Ok(released),
        ReleaseState::Failing(error) => Err(error),
        ReleaseState::Requested => Err(StoreError::no_reply(format!(
            "no ZooKeeper server of {} answered the release of \"{}\"",
            shared.servers.shown(),
            id.name
        ))),
    }
}

/// Releases a position in the background, for as long as it takes: its session may be shared and stay, so a node
/// that is left would not end by itself. It is over when the node or the session is gone.
pub(super) fn start_release(
    shared: &Arc<Shared>,
    position: &Arc<Position>,
) -> watch::Receiver<ReleaseState> {
    // From here on the acquire sends nothing more: our requests come after all of its own.
    position.stop();
    let (sender, first) = position.release_state();
    let receiver = sender.subscribe();
    if !first {
        return receiver;
    }
    // A client that closes waits for the first attempts.
    let mut tracked = Some(shared.context.tasks.token());
    let (shared, position) = (Arc::clone(shared), Arc::clone(position));
    let runtime = shared.context.runtime.clone();
    runtime.spawn(async move {
        let (clock, mut unknown) = (&*shared.context.clock, false);
        let mut released = loop {
            let attempt = |_| release_nodes(&shared, &position);
            match retry(clock, clock.now() + CALL_TIMEOUT, attempt).await {
                Ok(released) => break released,
                Err(error) => {
                    unknown |= error.outcome() == Outcome::Unknown;
                    drop(tracked.take());
                    let refused = !error.is_transient();
                    sender.send_replace(ReleaseState::Failing(error));
                    // A missing permission may be permanent, but the release must be retried.
                    if refused {
                        clock.alarm(clock.now() + LATER).await;
                    }
                    shared.pause().await;
                }
            }
        };
        released.retried |= unknown;
        shared.positions.remove(&position);
        if position.liveness == Liveness::LeaseOnly
            && let Some(session) = position.session()
        {
            shared.close_later(&session);
        }
        sender.send_replace(ReleaseState::Gone(released));
        drop(tracked);
    });
    receiver
}

/// Deletes the nodes of this position, once. `NotHeld` says why there were none.
async fn release_nodes(
    shared: &Shared,
    position: &Position,
) -> Result<(Result<(), NotHeld>, Moment), StoreError> {
    let sent = shared.now();
    let Some(session) = position.session() else { return Ok((Err(NotHeld(None)), sent)) };
    match delete_nodes(shared, position, &session).await {
        Ok(true) => Ok((Ok(()), sent)),
        Ok(false) if !position.granted() => Ok((Err(NotHeld(None)), sent)),
        Ok(false) => {
            let cause = shared.why_gone(&session, &position.dir, position.tag, true).await?;
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
    position: &Position,
    session: &Session,
) -> Result<bool, StoreError> {
    let (node, unsure) = {
        let state = position.state();
        (state.node.clone(), state.unsure)
    };
    if let Some(node) = node.as_ref().filter(|_| !unsure)
        && if_exists(session.delete(node).await)?.is_some()
    {
        return Ok(true);
    }
    if node.is_none() && !unsure {
        return Ok(false);
    }
    // The node does not exist, or may not be the only one: delete all nodes of this owner.
    let mut any = false;
    for node in shared.nodes_of(session, &position.dir, position.tag).await?.into_iter().rev() {
        any |= if_exists(session.delete(&node).await)?.is_some();
    }
    Ok(any)
}

/// Releases a grant of another process.
async fn release_elsewhere(
    shared: &Arc<Shared>,
    id: &GrantId,
    limit: Moment,
) -> StoreResult<Result<(), NotHeld>> {
    let (dir, tag) = (&*path_of(&shared.chroot, &id.name), NodeTag::of(id));
    let release = |control: Arc<Session>| async move {
        if take_away(shared, &control, id, dir).await? {
            return Ok(Ok(()));
        }
        Ok(Err(NotHeld(shared.why_gone(&control, dir, tag, true).await?)))
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
    let nodes = shared.nodes_of(control, dir, NodeTag::of(id)).await?;
    let any = !nodes.is_empty();
    for node in nodes {
        let (asked, deleted) = (control.data(&node), control.delete(&node));
        let data = asked.await;
        if_exists(deleted.await)?;
        // Its session has no node left.
        if let Ok((data, _)) = data
            && let Some(node_data) = NodeData::read(&data)
            && let Some(key) = node_data.sealed.and_then(|it| Key::unseal(&it, id))
        {
            shared.close_later(&shared.attach(node_data.ttl, key));
        }
    }
    Ok(any)
}
