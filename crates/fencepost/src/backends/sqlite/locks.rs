//! Acquire, renew, release, break: the transaction (operations.rs), the presence file that it borrows, and the clients
//! that are notified after it.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Token};

use super::Sqlite;
use super::operations::{self, Ask, BrokenGrant};
use super::presence::PresenceFile;
use super::writer_thread::WriteBatch;
use crate::backend::{
    Acquired, Broken, GrantId, Liveness, NotHeld, Queue, Renewal, Renewals, Renewed, Reply,
    Request, StoreError, StoreResult,
};

/// How long a lock is held before its client can be notified of a break: a shorter one costs nothing.
const HELD_A_MOMENT: Duration = Duration::from_millis(10);
/// How often a break checks whether the holder has confirmed it.
const CONFIRM_POLL: Duration = Duration::from_millis(10);

pub(super) async fn try_acquire(
    store: &Sqlite,
    request: Request,
    queue: Queue,
) -> StoreResult<Acquired> {
    let mut lent = lend(store, &request)?;
    let mut ask = Ask { request, presence_file: lent.presence_file.clone(), queue: None };
    // Most locks are free: take a position, and the socket for it, only if this one is not.
    let mut reply = acquire(store, &ask).await?;
    if queue == Queue::Join && !matches!(reply.value, Acquired::Granted(_)) {
        let waiter = Arc::new(store.wake_socket.register());
        ask.queue = Some(waiter.address.clone());
        store.positions.lock().insert(lent.owner, waiter);
        reply = acquire(store, &ask).await?;
    }
    lent.ends_with(&reply.value);
    Ok(reply)
}

/// One try, which takes or refreshes a position if `ask` requests it.
pub(super) async fn acquire(store: &Sqlite, ask: &Ask) -> StoreResult<Acquired> {
    let ask = ask.clone();
    let reply = store
        .writer_thread
        .write(move |write_batch| operations::acquire(write_batch, &ask))
        .await?;
    reply.try_map(|acquired| {
        let path = store.path.display();
        acquired.ok_or_else(|| {
            StoreError::refused(format!(
                "{path} has no tokens left: name another file (sqlite:PATH)"
            ))
        })
    })
}

/// Borrows a presence file for a try.
pub(super) fn lend<'a>(store: &'a Sqlite, request: &Request) -> Result<Lent<'a>, StoreError> {
    store.refuse_other_user()?;
    let owner = request.grant.owner;
    let presence_file = store.wake_socket.presence_dir.take(owner)?;
    // Before the grant, so that no break of it is missed.
    store.wake_socket.grants.insert(owner, (), request.loss.clone());
    let tied = request.liveness == Liveness::Process;
    Ok(Lent { store, owner, presence_file, tied, end: End::Refused })
}

/// The result of a try.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// It failed, or was dropped.
    Refused,
    Queued,
    Granted,
}

/// A presence file that is returned unless the try gave a grant or a position, and a signal likewise.
pub(super) struct Lent<'a> {
    store: &'a Sqlite,
    owner: OwnerId,
    pub(super) presence_file: PresenceFile,
    tied: bool,
    end: End,
}

impl Lent<'_> {
    pub(super) fn ends_with(&mut self, acquired: &Acquired) {
        self.end = match acquired {
            Acquired::Granted(_) => End::Granted,
            Acquired::Queued { .. } => End::Queued,
            Acquired::Held(_) | Acquired::PositionLost => End::Refused,
        };
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        let Self { store, owner, tied, end, .. } = *self;
        if end != End::Queued {
            store.positions.lock().remove(&owner);
        }
        match end {
            End::Granted => subscribe(store),
            End::Queued => {}
            End::Refused => {
                store.wake_socket.grants.remove(owner);
            }
        }
        if end == End::Refused || end == End::Granted && !tied {
            store.wake_socket.presence_dir.give_back(owner);
        }
    }
}

/// Makes sure that this client is notified of breaks, once a lock has been held for a moment.
fn subscribe(store: &Sqlite) {
    if !store.wake_socket.is_to_subscribe() {
        return;
    }
    let (wake_socket, writer_thread) =
        (Arc::downgrade(&store.wake_socket), Arc::downgrade(&store.writer_thread));
    let (clock, runtime) = (Arc::clone(&store.context.clock), store.context.runtime.clone());
    store.context.runtime.spawn(async move {
        clock.alarm(clock.now() + HELD_A_MOMENT).await;
        let Some(wake_socket) = wake_socket.upgrade() else { return };
        let ours = Arc::clone(&wake_socket);
        let bound = runtime.spawn_blocking(move || ours.subscribe()).await;
        let (Ok(owners), Some(writer_thread)) = (bound, writer_thread.upgrade()) else { return };
        // No notification was sent for a break before the socket existed.
        let broken = writer_thread
            .read(move |write_batch| operations::broken_among(write_batch, &owners))
            .await;
        for owner in broken.into_iter().flat_map(|reply| reply.value) {
            wake_socket.grants.renew_now(|known, ()| *known == owner);
        }
    });
}

/// In one transaction.
pub(super) async fn renew(store: &Sqlite, batch: Vec<Renewal>) -> Renewals {
    let grants: Vec<_> = batch.iter().map(|renewal| renewal.grant.clone()).collect();
    let answers = store.writer_thread.write(move |write_batch| {
        let renew = |renewal: &Renewal| {
            let Renewal { grant: GrantId { name, owner }, ttl, value, .. } = renewal;
            Ok(match operations::renew(write_batch, name, *owner, *ttl, value.as_ref())? {
                Some((token, ttl)) => Ok(Renewed { token, ttl }),
                None => Err(NotHeld(operations::why_not_held(write_batch, name, *owner)?)),
            })
        };
        batch.iter().map(renew).collect::<rusqlite::Result<Vec<_>>>()
    });
    match answers.await {
        Ok(Reply { value, sent, .. }) => {
            let replies = value.into_iter().map(|renewed| Ok(Reply::new(renewed, sent)));
            grants.into_iter().zip(replies).collect()
        }
        Err(error) => grants.into_iter().map(|grant| (grant, Err(error.clone()))).collect(),
    }
}

pub(super) async fn release(store: &Sqlite, grant: GrantId) -> StoreResult<Result<(), NotHeld>> {
    let GrantId { name, owner } = grant;
    store.wake_socket.grants.remove(owner);
    store.positions.lock().remove(&owner);
    let release = store.writer_thread.write(move |write_batch| {
        // Here and not on the caller's thread, which may be the client's own.
        write_batch.presence_dir.give_back_all(owner);
        if operations::release(write_batch, &name, owner)? {
            return Ok(Ok(()));
        }
        Ok(Err(NotHeld(operations::why_not_held(write_batch, &name, owner)?)))
    });
    release.await
}

pub(super) async fn break_lock(
    store: &Sqlite,
    name: LockName,
    token: Option<Token>,
    confirm_until: Moment,
) -> StoreResult<Option<Broken>> {
    let act =
        move |write_batch: &mut WriteBatch<'_>| operations::break_lock(write_batch, &name, token);
    let reply = store.writer_thread.write(act).await?;
    let sent = reply.sent;
    let Some(grant) = reply.value else { return Ok(Reply::new(None, sent)) };
    let BrokenGrant { mut broken, owner, tied } = grant;
    let reached = store.wake_socket.notify_broken(owner);
    // No process keeps a grant of `fencepost acquire`: nobody will confirm.
    if tied || reached > 0 {
        broken.confirmed = is_confirmed(store, owner, confirm_until).await;
    }
    Ok(Reply::new(Some(broken), sent))
}

/// Waits for the holder of a broken grant to confirm it with a release.
async fn is_confirmed(store: &Sqlite, owner: OwnerId, until: Moment) -> bool {
    loop {
        let now = store.now();
        if now >= until {
            return false;
        }
        store.clock().alarm((now + CONFIRM_POLL).min(until)).await;
        match store
            .writer_thread
            .read(move |write_batch| operations::is_break_confirmed(write_batch, owner))
            .await
        {
            Ok(reply) if reply.value => return true,
            Ok(_) => {}
            // The grant is broken; only the confirmation cannot be read.
            Err(_) => return false,
        }
    }
}
