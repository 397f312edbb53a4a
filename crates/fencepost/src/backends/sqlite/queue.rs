//! How a waiter waits: it sleeps until it is notified, and polls in case a notification is lost.

use std::time::Duration;

use fencepost_core::{Moment, Token};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::inspect::{self, View};
use super::operations::{Ask, POSITION_TTL};
use super::wake_socket::RegisteredWaiter;
use super::{Sqlite, locks};
use crate::backend::{Acquired, BoxFuture, GrantId, Reply, Request, StoreError, StoreResult};
use crate::race::{First, race};

/// How soon to poll again after the holder's process has ended: its children may end soon after.
const LOOK_SOON: Duration = Duration::from_millis(1);

/// How often a waiter or an observer polls.
pub(super) const POLL_INTERVAL: Duration = Duration::from_millis(250);

/// Waits at the position that this client took.
pub(super) async fn wait(store: &Sqlite, request: Request, limit: Moment) -> StoreResult<Acquired> {
    let owner = request.grant.owner;
    let mut lent = locks::lend(store, &request)?;
    let waiter = store.positions.lock().get(&owner).cloned();
    let Some(waiter) = waiter else {
        return Ok(Reply::new(Acquired::PositionLost, store.now()));
    };
    // We now own the presence file of the position.
    store.wake_socket.presence_dir.give_back(owner);
    let ask = Ask {
        request,
        presence_file: lent.presence_file.clone(),
        queue: Some(waiter.address.clone()),
    };
    let reply = wait_for_grant(store, &ask, &waiter, limit).await?;
    lent.ends_with(&reply.value);
    Ok(reply)
}

async fn wait_for_grant(
    store: &Sqlite,
    ask: &Ask,
    waiter: &RegisteredWaiter,
    limit: Moment,
) -> StoreResult<Acquired> {
    let mut watched = Watched::none();
    loop {
        let renew_position_at = store.now() + POSITION_TTL / 3;
        let mut left_to_others = false;
        loop {
            let lease_ends = match look(store, ask).await? {
                View::Try => break,
                // The first waiter polls as we do. Only if it has not taken the lock by our next poll do we
                // notify it: otherwise all waiters would write at the end of a lease.
                View::OthersFirst if left_to_others => break,
                View::OthersFirst => {
                    left_to_others = true;
                    Moment::NEVER
                }
                View::Wait { until, holder } => {
                    left_to_others = false;
                    watched.switch_to(holder, store);
                    until
                }
            };
            let again = store.now() + watched.next_poll_delay();
            let alarm = again.min(lease_ends).min(renew_position_at).min(limit);
            let event = race(waiter.notified(), watched.gone());
            let woken = matches!(
                race(event, store.clock().alarm(alarm)).await,
                First::Left(First::Left(()))
            );
            let now = store.now();
            if woken || now >= renew_position_at || now >= limit {
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
    let look =
        store.writer_thread.read(move |write_batch| inspect::look(write_batch, &name, owner));
    Ok(look.await?.value)
}

/// The holder's process, watched so that its end is noticed at once.
struct Watched {
    holder: Option<Token>,
    gone: Option<BoxFuture<'static, ()>>,
    delay: Duration,
}

impl Watched {
    const fn none() -> Self {
        Self { holder: None, gone: None, delay: POLL_INTERVAL }
    }

    /// Watches this holder from now on, unless it is watched already.
    fn switch_to(&mut self, holder: Option<(Token, i32)>, store: &Sqlite) {
        let token = holder.map(|(token, _)| token);
        if token == self.holder {
            return;
        }
        *self = Self { holder: token, ..Self::none() };
        if let Some((_, pid)) = holder {
            match end_of(pid, store) {
                Some(end) => self.gone = Some(end),
                None => self.delay = LOOK_SOON,
            }
        }
    }

    /// The pause before the next poll: short at first and then longer once the process is known to be gone, since its
    /// children may have inherited the grant.
    fn next_poll_delay(&mut self) -> Duration {
        let delay = self.delay;
        self.delay = (delay * 2).min(POLL_INTERVAL);
        delay
    }

    /// Resolves once, when the process ends.
    async fn gone(&mut self) {
        match &mut self.gone {
            Some(gone) => gone.await,
            None => std::future::pending().await,
        }
        self.gone = None;
        self.delay = LOOK_SOON;
    }
}

/// Resolves when the process ends; `None` if it does not exist, or is not visible from here. Only a hint: the number
/// may belong to another process by now.
fn end_of(pid: i32, store: &Sqlite) -> Option<BoxFuture<'static, ()>> {
    let process = pidfd_open(Pid::from_raw(pid)?, PidfdFlags::empty()).ok()?;
    let _inside = store.context.runtime.enter();
    #[expect(unsafe_code, reason = "tokio leaves this promise to its caller")]
    // SAFETY: an `OwnedFd` is open, and stays the same file until the `AsyncFd` that owns it is dropped.
    let process = unsafe { AsyncFd::register_with_interest(process, Interest::READABLE) }.ok()?;
    Some(Box::pin(async move {
        let _ = process.readable().await;
    }))
}
