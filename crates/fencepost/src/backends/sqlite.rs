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
//! *Where that ends:* with the host. A file of another machine, or on a network file system, is refused;
//! after a reboot every lease is void. A file restored from a backup, or copied, has its old counter:
//! tokens can repeat. A disk that acknowledges syncs it has not done can lose the counter in a power cut.
//! A process that is frozen inside a transaction keeps everybody out until it goes on or is killed: then
//! nobody is granted, and holders are told that renewal is failing (P5).
//!
//! *Waiting:* FIFO, by the waiter's ticket. Whoever frees the lock tells the oldest waiter (wake.rs), which
//! takes it in a transaction of its own. All look again every 250 ms, and the oldest watches the holder's
//! process, so a crash, an expiry and a lost message are found as well. A waiter that is told and does not
//! come within a second is passed over.

mod desk;
mod file;
mod host;
mod line;
mod presence;
mod records;
mod rows;
mod steps;
mod values;
mod views;
mod wake;

use std::fmt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use fencepost_core::{LockName, Moment, OwnerId, Token, Ttl};

use self::desk::Desk;
use self::presence::Marks;
pub(crate) use self::records::finish_in;
use self::steps::{Answer, Ask};
use self::wake::Post;
use crate::backend::{
    Acquired, Backend, BoxFuture, Broken, Glimpse, Grant, Liveness, LockInfo, Observe, Renewal,
    Renewed, Request, Surroundings, Wait,
};
use crate::backends;
use crate::clock::Clock;
use crate::error::{Error, Result};
use crate::guarantees::{Correctness, Guarantees, Holds, Kept, Records};

/// How long a waiter or an observer trusts what it saw.
const LOOK_AGAIN: Duration = Duration::from_millis(250);

/// A store in a SQLite file.
pub struct Sqlite {
    path: PathBuf,
    /// Which file this is, whatever it is called.
    place: String,
    around: Surroundings,
    desk: Desk,
    marks: Arc<Marks>,
    post: Arc<Post>,
}

impl Sqlite {
    /// Opens the file, and makes it if it is not there. `adopt` takes over one from another machine.
    /// Waits for the disk.
    pub fn open(path: &Path, adopt: bool, around: &Surroundings) -> Result<Arc<Self>> {
        let file::Opened { path, db, file, marks } = file::open(path, adopt, &*around.clock)?;
        let (marks, place) = (Arc::new(marks), file.place());
        let post = Arc::new(Post::new(Arc::clone(&marks), around.runtime.clone()));
        let desk = Desk::new(path.clone(), db, file, around.clone(), Arc::clone(&post));
        Ok(Arc::new(Self { path, place, around: around.clone(), desk, marks, post }))
    }

    fn now(&self) -> Moment {
        self.around.clock.now()
    }

    fn clock(&self) -> &dyn Clock {
        &*self.around.clock
    }

    /// One try, which takes a place in line if `ask` says so.
    async fn ask(&self, ask: &Ask, mark: &presence::Mark) -> Result<Asked> {
        let (ask, marks) = (ask.clone(), Arc::clone(&self.marks));
        let (ttl, tied) = (ask.ttl, ask.tied);
        let sent = self.now();
        let answer = self.desk.write(move |sheet| steps::acquire(sheet, &marks, &ask)).await?;
        Ok(Asked::Ended(match answer {
            Answer::Granted(token) => {
                let presence = tied.then(|| mark.presence.clone());
                Acquired::Granted(Grant { token, ttl, sent, queued: false, presence })
            }
            Answer::Held(holder) => Acquired::Held(holder),
            Answer::Queued => return Ok(Asked::Queued),
            Answer::Exhausted => {
                return Err(Error::refused(format!(
                    "{} has no tokens left: name another file (sqlite:PATH)",
                    self.path.display()
                )));
            }
        }))
    }
}

enum Asked {
    Ended(Acquired),
    Queued,
}

/// A presence file that goes back unless a grant came of it.
struct Lent<'a> {
    marks: &'a Marks,
    owner: OwnerId,
    mark: presence::Mark,
    kept: bool,
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if !self.kept {
            self.marks.give_back(self.owner);
        }
    }
}

impl Backend for Sqlite {
    fn acquire(&self, request: Request, wait: Wait) -> BoxFuture<'_, Result<Acquired>> {
        Box::pin(async move {
            let mark = self.marks.take(request.owner)?;
            let mut lent = Lent { marks: &self.marks, owner: request.owner, mark, kept: false };
            let mut ask = Ask {
                name: request.name,
                owner: request.owner,
                ttl: request.ttl,
                label: request.label,
                value: request.value,
                presence: Arc::clone(&lent.mark.name),
                tied: request.liveness == Liveness::Process,
                queue: None,
            };
            let acquired = match wait {
                Wait::No => match self.ask(&ask, &lent.mark).await? {
                    Asked::Ended(acquired) => acquired,
                    Asked::Queued => Acquired::Held(None),
                },
                Wait::Until(until) => self.wait_in_line(&mut ask, &lent.mark, until).await?,
                Wait::Forever => self.wait_in_line(&mut ask, &lent.mark, Moment::NEVER).await?,
            };
            lent.kept = matches!(acquired, Acquired::Granted(_)) && ask.tied;
            Ok(acquired)
        })
    }

    fn renew(&self, batch: Vec<Renewal>) -> BoxFuture<'_, Vec<Result<Renewed>>> {
        Box::pin(async move {
            let sent = self.now();
            let count = batch.len();
            let names: Vec<_> = batch.iter().map(|renewal| renewal.name.clone()).collect();
            let answers = self.desk.write(move |sheet| {
                let renew = |renewal: &Renewal| {
                    let Renewal { name, owner, ttl, value, .. } = renewal;
                    Ok(match steps::renew(sheet, name, *owner, *ttl, value.as_ref())? {
                        Some(renewed) => Ok(renewed),
                        None => Err(steps::why_not_held(sheet, name, *owner)?),
                    })
                };
                batch.iter().map(renew).collect::<rusqlite::Result<Vec<_>>>()
            });
            match answers.await {
                Ok(answers) => answers
                    .into_iter()
                    .zip(names)
                    .map(|(answer, name)| match answer {
                        Ok((token, ttl)) => Ok(Renewed { token, ttl, sent }),
                        Err(cause) => Err(Error::not_held(&name, cause)),
                    })
                    .collect(),
                Err(error) => {
                    let message = error.to_string();
                    (0..count).map(|_| Err(Error::unreachable(&*message))).collect()
                }
            }
        })
    }

    fn release(&self, name: LockName, owner: OwnerId) -> BoxFuture<'_, Result<()>> {
        Box::pin(async move {
            let marks = Arc::clone(&self.marks);
            let asked = name.clone();
            let (ended, why) = self
                .desk
                .write(move |sheet| {
                    // Here and not on the caller's thread, which may be the client's own.
                    marks.give_back_all(owner);
                    let ended = steps::release(sheet, &marks, &asked, owner)?;
                    let why = if ended { None } else { steps::why_not_held(sheet, &asked, owner)? };
                    Ok((ended, why))
                })
                .await?;
            if ended { Ok(()) } else { Err(Error::not_held(&name, why)) }
        })
    }

    fn break_lock(
        &self,
        name: LockName,
        token: Option<Token>,
        _confirm_until: Moment,
    ) -> BoxFuture<'_, Result<Option<Broken>>> {
        Box::pin(async move {
            let marks = Arc::clone(&self.marks);
            self.desk.write(move |sheet| steps::break_lock(sheet, &marks, &name, token)).await
        })
    }

    fn inspect(&self, name: LockName) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(async move {
            let marks = Arc::clone(&self.marks);
            self.desk.read(move |sheet| views::inspect(sheet, &marks, &name)).await
        })
    }

    fn list(&self) -> BoxFuture<'_, Result<Vec<LockInfo>>> {
        Box::pin(async move {
            let marks = Arc::clone(&self.marks);
            self.desk.read(move |sheet| views::list(sheet, &marks)).await
        })
    }

    fn guarantees(&self) -> Guarantees {
        guarantees()
    }
}

/// What the file keeps, wherever it lies.
fn guarantees() -> Guarantees {
    Guarantees {
        backend: "sqlite",
        scope: "the processes of one host",
        correctness: Correctness::Fit,
        fifo: true,
        wake: "the oldest is told through its Unix socket; all look again every 250 ms",
        clock: "CLOCK_BOOTTIME of this host",
        longest: Ttl::MAX,
        lengthens: true,
        records: Records::like(&Correctness::Fit),
        found: Vec::new(),
        under: [
            Kept::both("the next is granted once the last process of the holder is gone"),
            Kept::both("the lease ends and the guard is told on waking; fence the resource"),
            Kept::both(
                "grants are synced before they are told; after a reboot all leases are void",
            ),
            Kept::none_such("there is one file; one of another machine is refused"),
            Kept::both("leases use no wall clock; records do: set forwards, they end early"),
            Kept::both("there is no network; a file that can not be written grants nothing"),
            Kept {
                exclusion: Holds::No,
                tokens: Holds::No,
                note: "a file restored from a backup repeats tokens and old leases",
            },
        ],
    }
}

impl Observe for Sqlite {
    fn changed(&self, name: LockName, seen: Option<Glimpse>) -> BoxFuture<'_, Result<LockInfo>> {
        Box::pin(backends::look_until_changed(self, &*self.around.clock, LOOK_AGAIN, name, seen))
    }
}

impl fmt::Debug for Sqlite {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Sqlite({})", self.path.display())
    }
}
