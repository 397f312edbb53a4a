//! Acquire, renew, release, break: the transaction (operations.rs), the presence file that is lent for it, and the clients
//! that are notified after it.

use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Token};

use super::Sqlite;
use super::desk::Sheet;
use super::operations::{self, Ask, BrokenGrant};
use super::presence::Mark;
use crate::backend::{
    Acquired, Broken, GrantId, Liveness, NotHeld, Queue, Renewal, Renewals, Renewed, Reply,
    Request, StoreError, StoreResult,
};

/// How long a lock is held before its client can be notified of a break: a shorter one costs nothing.
const HELD_A_MOMENT: Duration = Duration::from_millis(10);
/// How often a break looks whether the holder has confirmed it.
const CONFIRM_POLL: Duration = Duration::from_millis(10);

pub(super) async fn try_acquire(
    store: &Sqlite,
    request: Request,
    queue: Queue,
) -> StoreResult<Acquired> {
    let mut lent = lend(store, &request)?;
    let mut ask = Ask { request, mark: lent.mark.clone(), queue: None };
    // Most locks are free: a position, and the socket that goes with it, only if this one is not.
    let mut reply = acquire(store, &ask).await?;
    if queue == Queue::Join && !matches!(reply.value, Acquired::Granted(_)) {
        let bell = Arc::new(store.post.bell());
        ask.queue = Some(bell.address.clone());
        store.positions.lock().insert(lent.owner, bell);
        reply = acquire(store, &ask).await?;
    }
    lent.ends_with(&reply.value);
    Ok(reply)
}

/// One try, which takes or refreshes a position if `ask` says so.
pub(super) async fn acquire(store: &Sqlite, ask: &Ask) -> StoreResult<Acquired> {
    let ask = ask.clone();
    let reply = store.desk.write(move |sheet| operations::acquire(sheet, &ask)).await?;
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
    let mark = store.post.marks.take(owner)?;
    // Before the grant, so that no break of it is missed.
    store.post.know(owner, request.loss.clone());
    let tied = request.liveness == Liveness::Process;
    Ok(Lent { store, owner, mark, tied, end: End::Refused })
}

/// How a try ended.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    /// Nothing came of it, or it was dropped.
    Refused,
    Queued,
    Granted,
}

/// A presence file that goes back unless a grant or a position came of it, and a signal likewise.
pub(super) struct Lent<'a> {
    store: &'a Sqlite,
    owner: OwnerId,
    pub(super) mark: Mark,
    tied: bool,
    end: End,
}

impl Lent<'_> {
    pub(super) fn ends_with(&mut self, acquired: &Acquired) {
        self.end = match acquired {
            Acquired::Granted(_) => End::Granted,
            Acquired::Queued { .. } => End::Queued,
            Acquired::Held(_) | Acquired::PlaceLost => End::Refused,
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
            End::Refused => store.post.forget(owner),
        }
        if end == End::Refused || end == End::Granted && !tied {
            store.post.marks.give_back(owner);
        }
    }
}

/// Sees to it that this client hears of breaks, once a lock has been held for a moment.
fn subscribe(store: &Sqlite) {
    if !store.post.is_to_subscribe() {
        return;
    }
    let (post, desk) = (Arc::downgrade(&store.post), Arc::downgrade(&store.desk));
    let (clock, runtime) = (Arc::clone(&store.around.clock), store.around.runtime.clone());
    store.around.runtime.spawn(async move {
        clock.alarm(clock.now() + HELD_A_MOMENT).await;
        let Some(post) = post.upgrade() else { return };
        let ours = Arc::clone(&post);
        let bound = runtime.spawn_blocking(move || ours.subscribe()).await;
        let (Ok(owners), Some(desk)) = (bound, desk.upgrade()) else { return };
        // What was broken before the socket was there was sent to nobody.
        let broken = desk.read(move |sheet| operations::broken_among(sheet, &owners)).await;
        for owner in broken.into_iter().flat_map(|reply| reply.value) {
            post.renew_now(owner);
        }
    });
}

/// In one transaction.
pub(super) async fn renew(store: &Sqlite, batch: Vec<Renewal>) -> Renewals {
    let count = batch.len();
    let answers = store.desk.write(move |sheet| {
        let renew = |renewal: &Renewal| {
            let Renewal { grant: GrantId { name, owner }, ttl, value, .. } = renewal;
            Ok(match operations::renew(sheet, name, *owner, *ttl, value.as_ref())? {
                Some((token, ttl)) => Ok(Renewed { token, ttl }),
                None => Err(NotHeld(operations::why_not_held(sheet, name, *owner)?)),
            })
        };
        batch.iter().map(renew).collect::<rusqlite::Result<Vec<_>>>()
    });
    match answers.await {
        Ok(Reply { value, sent, .. }) => {
            value.into_iter().map(|renewed| Ok(Reply::new(renewed, sent))).collect()
        }
        Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
    }
}

pub(super) async fn release(store: &Sqlite, grant: GrantId) -> StoreResult<Result<(), NotHeld>> {
    let GrantId { name, owner } = grant;
    store.post.forget(owner);
    store.positions.lock().remove(&owner);
    let release = store.desk.write(move |sheet| {
        // Here and not on the caller's thread, which may be the client's own.
        sheet.marks.give_back_all(owner);
        if operations::release(sheet, &name, owner)? {
            return Ok(Ok(()));
        }
        Ok(Err(NotHeld(operations::why_not_held(sheet, &name, owner)?)))
    });
    release.await
}

pub(super) async fn break_lock(
    store: &Sqlite,
    name: LockName,
    token: Option<Token>,
    confirm_until: Moment,
) -> StoreResult<Option<Broken>> {
    let act = move |sheet: &mut Sheet<'_>| operations::break_lock(sheet, &name, token);
    let reply = store.desk.write(act).await?;
    let sent = reply.sent;
    let Some(grant) = reply.value else { return Ok(Reply::new(None, sent)) };
    let BrokenGrant { mut broken, owner, tied } = grant;
    let reached = store.post.notify_broken(owner);
    // What `fencepost acquire` took is in no process's hands: nobody will answer.
    if tied || reached > 0 {
        broken.confirmed = is_confirmed(store, owner, confirm_until).await;
    }
    Ok(Reply::new(Some(broken), sent))
}

/// Waits for the holder of a broken grant to release it, which says that it knows.
async fn is_confirmed(store: &Sqlite, owner: OwnerId, until: Moment) -> bool {
    loop {
        let now = store.now();
        if now >= until {
            return false;
        }
        store.clock().alarm((now + CONFIRM_POLL).min(until)).await;
        match store.desk.read(move |sheet| operations::is_break_confirmed(sheet, owner)).await {
            Ok(reply) if reply.value => return true,
            Ok(_) => {}
            // The break stands; only the answer is not to be had.
            Err(_) => return false,
        }
    }
}
