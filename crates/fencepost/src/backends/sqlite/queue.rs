//! How a waiter waits: asleep until it is told, and never trusting that it will be.

use std::time::Duration;

use fencepost_core::{Moment, Token};
use rustix::process::{Pid, PidfdFlags, pidfd_open};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use super::inspect::{self, View};
use super::operations::{Ask, PLACE};
use super::presence::Mark;
use super::wake::Bell;
use super::{LOOK_AGAIN, Sqlite};
use crate::backend::{Acquired, BoxFuture, StoreError, StoreResult};
use crate::race::{First, race};

/// How soon to look again after the holder's process has gone: its children may follow in a moment.
const LOOK_SOON: Duration = Duration::from_millis(1);

impl Sqlite {
    /// Waits at the position of `ask`, and takes the lock when its turn comes.
    pub(super) async fn wait_in_line(
        &self,
        ask: &Ask,
        mark: &Mark,
        bell: &Bell,
        limit: Moment,
    ) -> StoreResult<Acquired> {
        let mut watched = Watched::nobody();
        loop {
            let renew_place = self.now() + PLACE / 3;
            let mut left_to_others = false;
            loop {
                let lease_ends = match self.look(ask).await? {
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
                        watched.switch_to(holder, self);
                        until
                    }
                };
                let again = self.now() + watched.patience();
                let alarm = again.min(lease_ends).min(renew_place).min(limit);
                let told = race(bell.rung(), watched.gone());
                let told = matches!(
                    race(told, self.clock().alarm(alarm)).await,
                    First::Left(First::Left(()))
                );
                let now = self.now();
                if told || now >= renew_place || now >= limit {
                    break;
                }
            }
            let reply = self.ask(ask, mark).await?;
            if !matches!(reply.value, Acquired::Queued { .. }) || self.now() >= limit {
                return Ok(reply);
            }
        }
    }

    async fn look(&self, ask: &Ask) -> Result<View, StoreError> {
        let (name, owner) = (ask.name.clone(), ask.owner);
        let marks = std::sync::Arc::clone(&self.marks);
        let look = self.desk.read(move |sheet| inspect::look(sheet, &marks, &name, owner));
        Ok(look.await?.value)
    }
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
