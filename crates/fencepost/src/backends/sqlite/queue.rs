//! How a waiter waits: asleep until it is told, and never trusting that it will be.

use std::time::Duration;

use fencepost_core::{Moment, Token};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::inspect::{self, View};
use super::operations::{Ask, PLACE};
use super::wake::Bell;
use super::{Sqlite, locks};
use crate::backend::{Acquired, BoxFuture, GrantId, Reply, Request, StoreError, StoreResult};
use crate::race::{First, race};

/// How soon to look again after the holder's process has gone: its children may follow in a moment.
const LOOK_SOON: Duration = Duration::from_millis(1);

/// How long a waiter or an observer trusts what it saw.
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// Waits at the position that this client took.
pub(super) async fn wait(store: &Sqlite, request: Request, limit: Moment) -> StoreResult<Acquired> {
    let owner = request.grant.owner;
    let mut lent = locks::lend(store, &request)?;
    let bell = store.positions.lock().get(&owner).cloned();
    let Some(bell) = bell else {
        return Ok(Reply::new(Acquired::PlaceLost, store.now()));
    };
    // The file that the position has is ours now.
    store.post.marks.give_back(owner);
    let ask = Ask { request, mark: lent.mark.clone(), queue: Some(bell.address.clone()) };
    let reply = wait_for_turn(store, &ask, &bell, limit).await?;
    lent.ends_with(&reply.value);
    Ok(reply)
}

async fn wait_for_turn(
    store: &Sqlite,
    ask: &Ask,
    bell: &Bell,
    limit: Moment,
) -> StoreResult<Acquired> {
    let mut watched = Watched::nobody();
    loop {
        let renew_place = store.now() + PLACE / 3;
        let mut left_to_others = false;
        loop {
            let lease_ends = match look(store, ask).await? {
                View::Try => break,
                // They see it as we do. Only if they have not taken it by our next look do we tell
                // them: else all who wait would write at the end of a lease.
                View::OthersTurn if left_to_others => break,
                View::OthersTurn => {
                    left_to_others = true;
                    Moment::NEVER
                }
                View::Wait { until, holder } => {
                    left_to_others = false;
                    watched.switch_to(holder, store);
                    until
                }
            };
            let again = store.now() + watched.patience();
            let alarm = again.min(lease_ends).min(renew_place).min(limit);
            let told = race(bell.rung(), watched.gone());
            let told = matches!(
                race(told, store.clock().alarm(alarm)).await,
                First::Left(First::Left(()))
            );
            let now = store.now();
            if told || now >= renew_place || now >= limit {
                break;
            }
        }
        let reply = locks::acquire(store, ask).await?;
        if !matches!(reply.value, Acquired::Queued { .. }) || store.now() >= limit {
            return Ok(reply);
        }
    }
}

async fn look(store: &Sqlite, ask: &Ask) -> Result<View, StoreError> {
    let GrantId { name, owner } = ask.request.grant.clone();
    let look = store.desk.read(move |sheet| inspect::look(sheet, &name, owner));
    Ok(look.await?.value)
}

/// The holder's process, watched so that its end is noticed at once.
struct Watched {
    holder: Option<Token>,
    gone: Option<BoxFuture<'static, ()>>,
    next_look: Duration,
}

impl Watched {
    const fn nobody() -> Self {
        Self { holder: None, gone: None, next_look: LOOK_AGAIN }
    }

    /// Watches that holder from now on, if it is not the one watched already.
    fn switch_to(&mut self, holder: Option<(Token, i32)>, store: &Sqlite) {
        let token = holder.map(|(token, _)| token);
        if token == self.holder {
            return;
        }
        *self = Self { holder: token, ..Self::nobody() };
        if let Some((_, pid)) = holder {
            match end_of(pid, store) {
                Some(end) => self.gone = Some(end),
                None => self.next_look = LOOK_SOON,
            }
        }
    }

    /// How long to trust what was seen: shorter and then longer once the process is known to be gone, as
    /// children of its may have inherited the grant.
    fn patience(&mut self) -> Duration {
        let patience = self.next_look;
        self.next_look = (patience * 2).min(LOOK_AGAIN);
        patience
    }

    /// Resolves once, when the process ends.
    async fn gone(&mut self) {
        match &mut self.gone {
            Some(gone) => gone.await,
            None => std::future::pending().await,
        }
        self.gone = None;
        self.next_look = LOOK_SOON;
    }
}

/// Resolves when the process ends; `None` if it is not there, or not to be seen from here. A hint only:
/// the number may have been given to another process since.
fn end_of(pid: i32, store: &Sqlite) -> Option<BoxFuture<'static, ()>> {
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let _inside = store.around.runtime.enter();
    #[expect(unsafe_code, reason = "tokio leaves this promise to its caller")]
    // SAFETY: an `OwnedFd` is open, and stays the same file until the `AsyncFd` that owns it is dropped.
    let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }.ok()?;
    Some(Box::pin(async move {
        let _ = process.readable().await;
    }))
}
