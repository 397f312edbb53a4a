//! Acquire, renew, release, break: one command of the machine each.

use fencepost_core::{Command, Effect, LockName, Moment, Token};
use tokio::sync::watch;

use super::State;
use crate::backend::{
    Acquired, Broken, Grant, GrantId, NotHeld, Queue, Renewal, Renewed, Request, StoreError,
};

pub(super) fn try_acquire(
    state: &mut State,
    request: &Request,
    queue: Queue,
    now: Moment,
) -> Result<Acquired, StoreError> {
    let GrantId { name, owner } = request.grant.clone();
    let (ttl, label, queue) = (request.ttl, request.label.clone(), queue == Queue::Join);
    let command = Command::Acquire { name, owner, ttl, label, queue };
    Ok(match state.apply(command, now) {
        Some(Effect::Granted { token, ttl, .. }) => {
            state.register_owner(request, now);
            Acquired::Granted(Grant::new(token, ttl))
        }
        Some(Effect::Queued { .. }) => {
            let wakeup = &mut state.register_owner(request, now).wakeup;
            wakeup.get_or_insert_with(|| watch::Sender::new(None));
            Acquired::Queued { ahead: state.ahead_of(&request.grant) }
        }
        Some(Effect::Exhausted { .. }) => {
            return Err(StoreError::refused(
                "this memory: store has no tokens left: start a new one",
            ));
        }
        _ => Acquired::Held(state.holder_info(&request.grant.name, now)),
    })
}

pub(super) fn renew(state: &mut State, renewal: Renewal, now: Moment) -> Result<Renewed, NotHeld> {
    let Renewal { grant: GrantId { name, owner }, ttl, value, .. } = renewal;
    // A renewal keeps the TTL; a longer one is a retry of the acquire by its holder. A shorter one is
    // ignored: the guard relies on the lease that it was granted.
    let held = state.machine.holder(&name).filter(|grant| grant.owner == owner);
    let command = match (held, ttl) {
        (Some(grant), Some(ttl)) if ttl > grant.ttl => {
            let (name, label) = (name.clone(), grant.label.clone());
            Command::Acquire { name, owner, ttl, label, queue: false }
        }
        _ => Command::Renew { name: name.clone(), owner },
    };
    match state.apply(command, now) {
        Some(Effect::Renewed { token, ttl, .. } | Effect::Granted { token, ttl, .. }) => {
            if let (Some(value), Some(known)) = (value, state.owners.get_mut(&owner)) {
                known.value = Some(value);
                state.changed.send_replace(());
            }
            Ok(Renewed { token, ttl })
        }
        _ => Err(state.not_held(&name)),
    }
}

pub(super) fn release(state: &mut State, grant: GrantId, now: Moment) -> Result<(), NotHeld> {
    let GrantId { name, owner } = grant;
    match state.apply(Command::Cancel { name: name.clone(), owner }, now) {
        Some(Effect::Released { .. } | Effect::Withdrawn { .. }) => Ok(()),
        _ => Err(state.not_held(&name)),
    }
}

pub(super) fn break_lock(
    state: &mut State,
    name: LockName,
    token: Option<Token>,
    now: Moment,
) -> Option<Broken> {
    let grant = state.machine.holder(&name)?;
    if token.is_some_and(|token| token != grant.token) {
        return None;
    }
    let (label, owner) = (grant.label.clone(), grant.owner);
    // The guard is in this process: if it still exists, it is lost at once.
    let confirmed = state.owners.get(&owner).is_some_and(|known| known.loss.is_connected());
    match state.apply(Command::Break { name }, now) {
        Some(Effect::Broken { token, floor, .. }) => {
            Some(Broken { label, token: Some(token), floor, confirmed })
        }
        _ => None,
    }
}
