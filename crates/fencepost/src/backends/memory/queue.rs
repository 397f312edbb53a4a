//! Waiting: a waiter is woken when the machine grants its turn, and ends the holder's lease itself if nobody else does.

use fencepost_core::{Command, Lease, Moment};

use super::{Memory, Turn};
use crate::backend::{Acquired, Grant, GrantId, Reply, Request, StoreResult};
use crate::race::{First, race};

pub(super) async fn wait(store: &Memory, request: Request, limit: Moment) -> StoreResult<Acquired> {
    let sent = store.clock.now();
    Ok(Reply::new(wait_for_turn(store, &request, limit).await, sent))
}

async fn wait_for_turn(store: &Memory, request: &Request, limit: Moment) -> Acquired {
    let GrantId { name, owner } = &request.grant;
    let mut keep_position = store.clock.now() + request.ttl.as_duration() / 3;
    // A retry listens beside the first call.
    let turn =
        store.state().0.owners.get(owner).and_then(|known| known.turn.as_ref()?.subscribe().into());
    let Some(mut turn) = turn else { return without_turn(store, &request.grant) };
    loop {
        let expiry = {
            let (state, _) = store.state();
            let holder = state.machine.holder(name).map(|grant| grant.token);
            holder.and_then(|token| state.wheel.deadline(Lease::Held(token)))
        };
        let alarm = expiry.unwrap_or(Moment::NEVER).min(limit).min(keep_position);
        if let First::Left(told) = race(turn.changed(), store.clock.alarm(alarm)).await {
            return match told.ok().and_then(|()| *turn.borrow()) {
                Some(Turn::Granted(token, ttl)) => {
                    Acquired::Granted(Grant { token, ttl, queued: true, presence: None })
                }
                Some(Turn::PlaceGone) | None => Acquired::PlaceLost,
            };
        }
        let now = store.clock.now();
        if now >= limit {
            // The grant may have come in this very moment; then it is taken.
            let (state, _) = store.state();
            if turn.borrow().is_some() {
                continue;
            }
            return Acquired::Queued { ahead: state.ahead_of(&request.grant) };
        }
        if now >= keep_position {
            let (mut state, now) = store.state();
            state.apply(Command::Renew { name: name.clone(), owner: *owner }, now);
            keep_position = now + request.ttl.as_duration() / 3;
        }
    }
}

/// The answer to a wait of an owner that has no position: it may have been granted since.
fn without_turn(store: &Memory, id: &GrantId) -> Acquired {
    let (state, _) = store.state();
    match state.machine.holder(&id.name).filter(|grant| grant.owner == id.owner) {
        Some(grant) => {
            let (token, ttl) = (grant.token, grant.ttl);
            Acquired::Granted(Grant { token, ttl, queued: true, presence: None })
        }
        None => Acquired::PlaceLost,
    }
}
