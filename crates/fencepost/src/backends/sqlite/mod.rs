//! `sqlite:PATH` a file that many processes on one host share. The default, under the user's state
//! directory.
//!
//! *Why grants exclude:* every step is one transaction, and SQLite lets one write at a time. A grant is
//! made only where no row of that name is left whose lease runs, judged at a time that is read inside
//! the transaction on `CLOCK_BOOTTIME`, which all processes of a host share and which no one can set. A
//! guard counts its deadline from before its request, so it is lost before the row is.
//! *Why tokens rise:* the counter is a row of the same file, raised in the same transaction, and synced
//! (`synchronous=FULL`) before the answer. Nothing but losing the file takes it back.
//! *Taking over at once:* a grant's row names a file that the holder's processes have locked. Once nobody
//! has, they are all gone, and the next need not wait for the lease (presence.rs).
//! *Values* of elections and *records* are tables of their own (values.rs, records.rs), which other steps do not touch.
//! *Who can undo that:* whoever can write the file, or put another in its place. So it is refused unless that is the user
//! alone, or the members of one group (access.rs).
//! *Where that ends:* with the host. A file of another machine, or on a network file system, is refused;
//! after a reboot every lease is void. A file restored from a backup, or copied, has its old counter:
//! tokens can repeat. A disk that acknowledges syncs it has not done can lose the counter in a power cut.
//! A process that is frozen inside a transaction keeps everybody out until it goes on or is killed: then
//! nobody is granted, and guards say that renewal is failing (P5). On tmpfs or a container's layer the counter ends with
//! the file system, so the table says that it is not for correctness (guarantees.rs).
//!
//! *Waiting:* FIFO, by the waiter's ticket. Whoever frees the lock tells the oldest waiter (wake.rs), which
//! takes it in a transaction of its own. All look again every 250 ms, and the oldest watches the holder's
//! process, so a crash, an expiry and a lost message are found as well. A waiter that is told and does not
//! come within a second is passed over.
//!
//! *Breaks:* the holder's client gets a datagram, renews, learns that the grant was broken, and releases it: that is its
//! confirmation, for which the break looks in the table `broken`.

mod absent;
mod access;
mod desk;
mod file;
mod guarantees;
mod host;
mod inspect;
mod layout;
mod operations;
mod presence;
mod queue;
mod records;
mod values;
mod wake;

use std::collections::HashMap;
use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Token};
use parking_lot::Mutex;

pub(crate) use self::absent::open;
use self::access::User;
use self::desk::Desk;
pub use self::guarantees::guarantees_of;
use self::operations::{Answer, Ask};
use self::presence::Marks;
pub(crate) use self::records::finish_in;
use self::wake::{Bell, Post};
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, Grant, GrantId, Liveness, LockInfo, NotHeld,
    Observe, Queue, Renewal, Renewed, Reply, Request, StoreCall, StoreError, StoreResult,
    Surroundings,
};
use crate::backends;
use crate::clock::Clock;
use crate::error::Result;
use crate::guarantees::Guarantees;
pub use crate::url::SqliteOptions as Options;

/// How long a waiter or an observer trusts what it saw.
const LOOK_AGAIN: Duration = Duration::from_millis(250);
/// How long a lock is held before its client can be notified of a break: a shorter one costs nothing.
const HELD_A_MOMENT: Duration = Duration::from_millis(10);
/// How often a break looks whether the holder has confirmed it.
const CONFIRM_POLL: Duration = Duration::from_millis(10);

/// A store in a SQLite file.
pub struct Sqlite {
    path: PathBuf,
    /// Which file this is, whatever it is called.
    place: String,
    around: Surroundings,
    desk: Arc<Desk>,
    marks: Arc<Marks>,
    post: Arc<Post>,
    guarantees: Guarantees,
    /// Whose store it is, if it is another user's, opened by root.
    other_user: Option<u32>,
    /// The positions of this client in the queues, and by what each is woken.
    positions: Mutex<HashMap<OwnerId, Arc<Bell>>>,
}

impl Sqlite {
    /// Opens the file, and makes it if it is not there. Waits for the disk.
    pub fn open(path: &Path, options: Options, around: &Surroundings) -> Result<Arc<Self>> {
        let file::Opened { path, db, file, marks, access, other_user } =
            file::open(path, options, around.create, &*around.clock)?;
        let guarantees = guarantees::of(&path, access.group_name());
        let (marks, place) = (Arc::new(marks), file.place());
        let post = Arc::new(Post::new(Arc::clone(&marks), around.runtime.clone()));
        let desk = Desk::new(path.clone(), db, file, around.clone(), Arc::clone(&post));
        let (around, desk) = (around.clone(), Arc::new(desk));
        let positions = Mutex::default();
        Ok(Arc::new(Self {
            path,
            place,
            around,
            desk,
            marks,
            post,
            guarantees,
            other_user,
            positions,
        }))
    }

    /// Refuses to lock in another user's store: root trusts what it looks at there, but its locks must not depend on it.
    fn refuse_other_user(&self) -> Result<(), StoreError> {
        match self.other_user {
            None => Ok(()),
            Some(owner) => Err(StoreError::refused(format!(
                "{} belongs to {}: root can look and break there, but not lock; name a file of root's \
                 own, or share one with a group (sqlite:PATH?shared=group)",
                self.path.display(),
                User(owner)
            ))),
        }
    }

    /// Sees to it that this client hears of breaks, once a lock has been held for a moment.
    fn subscribe(&self) {
        if !self.post.is_to_subscribe() {
            return;
        }
        let (post, desk) = (Arc::downgrade(&self.post), Arc::downgrade(&self.desk));
        let (clock, runtime) = (Arc::clone(&self.around.clock), self.around.runtime.clone());
        self.around.runtime.spawn(async move {
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

    /// Waits for the holder of a broken grant to release it, which says that it knows.
    async fn is_confirmed(&self, owner: OwnerId, until: Moment) -> bool {
        loop {
            let now = self.now();
            if now >= until {
                return false;
            }
            self.clock().alarm((now + CONFIRM_POLL).min(until)).await;
            match self.desk.read(move |sheet| operations::is_break_confirmed(sheet, owner)).await {
                Ok(reply) if reply.value => return true,
                Ok(_) => {}
                // The break stands; only the answer is not to be had.
                Err(_) => return false,
            }
        }
    }

    fn now(&self) -> Moment {
        self.around.clock.now()
    }

    fn clock(&self) -> &dyn Clock {
        &*self.around.clock
    }

    /// One try, which takes a place in line if `ask` says so.
    async fn ask(&self, ask: &Ask, mark: &presence::Mark) -> StoreResult<Acquired> {
        let (ask, marks) = (ask.clone(), Arc::clone(&self.marks));
        let (ttl, tied) = (ask.ttl, ask.tied);
        let answer = self.desk.write(move |sheet| operations::acquire(sheet, &marks, &ask)).await?;
        answer.try_map(|answer| match answer {
            Answer::Granted(token) => {
                let presence = tied.then(|| mark.presence.clone());
                Ok(Acquired::Granted(Grant { token, ttl, queued: false, presence }))
            }
            Answer::Held(holder) => Ok(Acquired::Held(holder)),
            Answer::Queued { ahead } => Ok(Acquired::Queued { ahead }),
            Answer::Exhausted => Err(StoreError::refused(format!(
                "{} has no tokens left: name another file (sqlite:PATH)",
                self.path.display()
            ))),
        })
    }

    /// Borrows a presence file for a try.
    fn lend(&self, request: &Request) -> Result<Lent<'_>, StoreError> {
        self.refuse_other_user()?;
        let owner = request.grant.owner;
        let mark = self.marks.take(owner)?;
        // Before the grant, so that no break of it is missed.
        self.post.know(owner, request.loss.clone());
        let tied = request.liveness == Liveness::Process;
        Ok(Lent { store: self, owner, mark, tied, end: End::Refused })
    }

    async fn try_once(&self, request: Request, queue: Queue) -> StoreResult<Acquired> {
        let mut lent = self.lend(&request)?;
        let mut ask = Ask::of(request, Arc::clone(&lent.mark.name));
        // Most locks are free: a place, and the socket that goes with it, only if this one is not.
        let mut reply = self.ask(&ask, &lent.mark).await?;
        if queue == Queue::Join && !matches!(reply.value, Acquired::Granted(_)) {
            let bell = Arc::new(self.post.bell());
            ask.queue = Some(bell.address.clone());
            self.positions.lock().insert(ask.owner, bell);
            reply = self.ask(&ask, &lent.mark).await?;
        }
        lent.ends_with(&reply.value);
        Ok(reply)
    }

    async fn wait_at_position(&self, request: Request, limit: Moment) -> StoreResult<Acquired> {
        let owner = request.grant.owner;
        let mut lent = self.lend(&request)?;
        let bell = self.positions.lock().get(&owner).cloned();
        let Some(bell) = bell else {
            return Ok(Reply::new(Acquired::PlaceLost, self.now()));
        };
        // The file that the position has is ours now.
        self.marks.give_back(owner);
        let queue = Some(bell.address.clone());
        let ask = Ask { queue, ..Ask::of(request, Arc::clone(&lent.mark.name)) };
        let reply = self.wait_in_line(&ask, &lent.mark, &bell, limit).await?;
        lent.ends_with(&reply.value);
        Ok(reply)
    }
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
struct Lent<'a> {
    store: &'a Sqlite,
    owner: OwnerId,
    mark: presence::Mark,
    tied: bool,
    end: End,
}

impl Lent<'_> {
    fn ends_with(&mut self, acquired: &Acquired) {
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
            End::Granted => store.subscribe(),
            End::Queued => {}
            End::Refused => store.post.forget(owner),
        }
        if end == End::Refused || end == End::Granted && !tied {
            store.marks.give_back(owner);
        }
    }
}

impl Backend for Sqlite {
    fn try_acquire(
        &self,
        request: Request,
        queue: Queue,
        _limit: Moment,
    ) -> StoreCall<'_, Acquired> {
        Box::pin(self.try_once(request, queue))
    }

    fn wait(&self, request: Request, limit: Moment) -> StoreCall<'_, Acquired> {
        Box::pin(self.wait_at_position(request, limit))
    }

    fn renew(
        &self,
        batch: Vec<Renewal>,
        _limit: Moment,
    ) -> BoxFuture<'_, Vec<StoreResult<Result<Renewed, NotHeld>>>> {
        Box::pin(async move {
            let count = batch.len();
            let answers = self.desk.write(move |sheet| {
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
                Ok(reply) => {
                    let sent = reply.sent;
                    reply.value.into_iter().map(|renewed| Ok(Reply::new(renewed, sent))).collect()
                }
                Err(error) => (0..count).map(|_| Err(error.clone())).collect(),
            }
        })
    }

    fn release(&self, grant: GrantId, _limit: Moment) -> StoreCall<'_, Result<(), NotHeld>> {
        Box::pin(async move {
            let GrantId { name, owner } = grant;
            self.post.forget(owner);
            self.positions.lock().remove(&owner);
            let marks = Arc::clone(&self.marks);
            let release = self.desk.write(move |sheet| {
                // Here and not on the caller's thread, which may be the client's own.
                marks.give_back_all(owner);
                if operations::release(sheet, &marks, &name, owner)? {
                    return Ok(Ok(()));
                }
                Ok(Err(NotHeld(operations::why_not_held(sheet, &name, owner)?)))
            });
            release.await
        })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        confirm_until: Moment,
        _limit: Moment,
    ) -> StoreCall<'_, Option<Broken>> {
        Box::pin(async move {
            let marks = Arc::clone(&self.marks);
            let act = move |sheet: &mut desk::Sheet<'_>| {
                operations::break_lock(sheet, &marks, &name, token)
            };
            let reply = self.desk.write(act).await?;
            let sent = reply.sent;
            let Some(grant) = reply.value else { return Ok(Reply::new(None, sent)) };
            let operations::BrokenGrant { mut broken, owner, tied } = grant;
            let reached = self.post.notify_broken(owner);
            // What `fencepost acquire` took is in no process's hands: nobody will answer.
            if tied || reached > 0 {
                broken.confirmed = self.is_confirmed(owner, confirm_until).await;
            }
            Ok(Reply::new(Some(broken), sent))
        })
    }

    fn guarantees(&self) -> Guarantees {
        self.guarantees.clone()
    }
}

impl Observe for Sqlite {
    fn inspect(&self, name: LockName, _limit: Moment) -> StoreCall<'_, LockInfo> {
        let marks = Arc::clone(&self.marks);
        Box::pin(self.desk.read(move |sheet| inspect::inspect(sheet, &marks, &name)))
    }

    fn list(&self, _limit: Moment) -> StoreCall<'_, Vec<LockInfo>> {
        let marks = Arc::clone(&self.marks);
        Box::pin(self.desk.read(move |sheet| inspect::list(sheet, &marks)))
    }

    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> StoreCall<'_, LockInfo> {
        Box::pin(backends::inspect_until_changed(self, &*self.around.clock, LOOK_AGAIN, name, seen))
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({})", self.path.display())
    }
}
