//! Waiting: a waiter is woken when the machine grants it the lock, and ends the holder's lease itself if no call does.

use fencepost_core::{Command, Lease, Moment};

use super::{Memory, Wakeup};
use crate::backend::{Acquired, Grant, GrantId, Reply, Request, StoreResult};
use crate::race::{First, race};

pub(super) async fn wait(store: &Memory, request: Request, limit: Moment) -> StoreResult<Acquired> {
    let sent = store.clock.now();
    Ok(Reply::new(wait_for_grant(store, &request, limit).await, sent))
}

async fn wait_for_grant(store: &Memory, request: &Request, limit: Moment) -> Acquired {
    let GrantId { name, owner } = &request.grant;
    let mut renew_position_at = store.clock.now() + request.ttl.as_duration() / 3;
    // A retry listens beside the first call.
    let wakeup = store
        .state()
        .0
        .owners
        .get(owner)
        .and_then(|known| known.wakeup.as_ref()?.subscribe().into());
    let Some(mut wakeup) = wakeup else { return without_position(store, &request.grant) };
    loop {
        let expiry = {
            let (state, _) = store.state();
            let holder = state.machine.holder(name).map(|grant| grant.token);
            holder.and_then(|token| state.expiry_queue.deadline(Lease::Held(token)))
        };
        let alarm = expiry.unwrap_or(Moment::NEVER).min(limit).min(renew_position_at);
        if let First::Left(changed) = race(wakeup.changed(), store.clock.alarm(alarm)).await {
            return match changed.ok().and_then(|()| *wakeup.borrow()) {
                Some(Wakeup::Granted(token, ttl)) => {
                    Acquired::Granted(Grant::new(token, ttl).with_needs_confirmation(true))
                }
                Some(Wakeup::PositionLost) | None => Acquired::PositionLost,
            };
        }
        let now = store.clock.now();
        if now >= limit {
            // The grant may have come at this moment; then it is returned.
            let (state, _) = store.state();
            if wakeup.borrow().is_some() {
                continue;
            }
            return Acquired::Queued { ahead: state.ahead_of(&request.grant) };
        }
        if now >= renew_position_at {
            let (mut state, now) = store.state();
            state.apply(Command::Renew { name: name.clone(), owner: *owner }, now);
            renew_position_at = now + request.ttl.as_duration() / 3;
        }
    }
}

/// The answer to a wait of an owner without a position: it may have been granted meanwhile.
fn without_position(store: &Memory, id: &GrantId) -> Acquired {
    let (state, _) = store.state();
    match state.machine.holder(&id.name).filter(|grant| grant.owner == id.owner) {
        Some(grant) => {
            let (token, ttl) = (grant.token, grant.ttl);
            Acquired::Granted(Grant::new(token, ttl).with_needs_confirmation(true))
        }
        None => Acquired::PositionLost,
    }
}
