//! One object, changed by compare-and-set.
//!
//! What must hold: a change is made of what was read, and is put only if the object is still that (If-Match on the
//! `ETag`, or If-None-Match where there was none). So check and act are one step. That rests on the store: one that
//! answers "done" to a put whose condition failed breaks every fence on it. [`probe`](super::probe) asks, but can not
//! see what it does under load.
//!
//! An answer may be lost, and the client of the store may try again and meet its own first try. So nobody here takes
//! "changed" for "not done": what is there is read again, and whoever decides what to do next looks for its own work
//! in it. See [`Writing`]. For the same reason a refusal is believed only after a look: it may be the answer to a
//! second try.

use std::sync::Arc;
use std::time::Duration;

use fencepost_base::clock::{BootClock, Clock as _};
use fencepost_base::{Error, Result};
use fencepost_core::{Label, LockName, Token};
use object_store::path::Path;
use object_store::{Error as Fault, ObjectStore, ObjectStoreExt as _, PutMode, UpdateVersion};

use super::cell::{Cell, Data, Shape, WriteId};
use super::faults::{Outcome, explain, outcome, unfit};
use super::writing::{Holder, Resetting, Step, Writing};
use crate::contract::{Mark, Reset};

/// How often an object that others change is read and put again.
const TRIES: u32 = 60;
/// How often a put whose answer was lost is followed by another. The store's client has its own tries before that.
const LOST: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// The place of an object.
#[derive(Clone, Debug)]
pub(super) struct Slot {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) path: Path,
    pub(super) shape: Shape,
    /// Who enters, for people.
    pub(super) who: Label,
}

/// An object as it was read or put.
#[derive(Clone, Debug)]
pub(super) struct Found {
    pub(super) cell: Cell,
    version: UpdateVersion,
}

/// The verbs of the contract, which both shapes share.
impl Slot {
    pub(super) fn holder<'a>(&'a self, name: &'a LockName, token: Token) -> Holder<'a> {
        Holder { name, token, who: &self.who }
    }

    /// Gives what is there once the holder is inside.
    pub(super) async fn enter(&self, holder: Holder<'_>) -> Result<Option<Found>> {
        Ok(self.change(None, |cell| holder.enter(self.shape, cell)).await?.1)
    }

    pub(super) async fn write(&self, holder: Holder<'_>, data: &Data) -> Result<()> {
        let mut writing = Writing::new(holder, WriteId::draw()?);
        self.change(None, |cell| writing.step(self.shape, cell, data)).await?;
        Ok(())
    }

    pub(super) async fn mark(&self, name: &LockName) -> Result<Option<Mark>> {
        let mark = self.load().await?.and_then(|found| found.cell.mark);
        Ok(mark.filter(|mark| mark.name == *name))
    }

    pub(super) async fn reset(
        &self,
        name: &LockName,
        to: Option<Token>,
        (by, why): (&str, &str),
    ) -> Result<Option<Mark>> {
        let mut reset = Resetting::new(name, to, (by, why), WriteId::draw()?)?;
        Ok(self.change(None, |cell| reset.step(self.shape, cell)).await?.0)
    }

    pub(super) async fn audit(&self, name: Option<&LockName>) -> Result<Vec<Reset>> {
        let mut resets = self.load().await?.map(|found| found.cell.resets).unwrap_or_default();
        resets.retain(|reset| name.is_none_or(|name| reset.name == *name));
        Ok(resets)
    }
}

impl Slot {
    pub(super) async fn load(&self) -> Result<Option<Found>> {
        let got = match self.store.get(&self.path).await {
            Err(Fault::NotFound { .. }) => return Ok(None),
            got => got.map_err(|fault| explain(&fault))?,
        };
        // Whatever it is, it is not taken into memory to find that out.
        let (size, most) = (got.meta.size, self.shape.most_bytes());
        if size > most {
            let (path, shape) = (&self.path, self.shape.word());
            return Err(Error::refused(format!(
                "the object \"{path}\" is no {shape}, which has at most {most} bytes: it has {size}, \
                 and stays as it is; choose another path, or open it as what it is"
            )));
        }
        let version =
            UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
        let bytes = got.bytes().await.map_err(|fault| explain(&fault))?;
        let cell = Cell::decode(self.shape, &bytes);
        let cell = cell.map_err(|found| unfit(self.path.as_ref(), &found))?;
        Ok(Some(Found { cell, version }))
    }

    /// Reads, decides and puts, until a put is done or nothing is left to do. `start` spares the first read. Gives the
    /// result, and what is there.
    pub(super) async fn change<T>(
        &self,
        start: Option<Found>,
        mut decide: impl FnMut(Option<&Cell>) -> Result<Step<T>>,
    ) -> Result<(T, Option<Found>)> {
        let mut found = match start {
            Some(found) => Some(found),
            None => self.load().await?,
        };
        let (mut pause, mut lost) = (FIRST_PAUSE, 0);
        for tries in 0.. {
            let (next, value) = match decide(found.as_ref().map(|found| &found.cell))? {
                Step::Done(value) => return Ok((value, found)),
                Step::Put(next, value) => (next, value),
            };
            if tries == TRIES {
                break;
            }
            match self.put(found.as_ref(), &next).await? {
                Ok(version) => return Ok((value, Some(Found { cell: next, version }))),
                Err(Outcome::Changed) => {}
                Err(Outcome::Never { error, tried_before }) => {
                    // Of all that was put, one may have been done before this was refused.
                    let Ok(found) = self.load().await else { return Err(self.unknown(error)) };
                    return match decide(found.as_ref().map(|found| &found.cell))? {
                        Step::Done(value) => Ok((value, found)),
                        Step::Put(..) if tried_before || lost > 0 => Err(self.unknown(error)),
                        Step::Put(..) => Err(error),
                    };
                }
                Err(Outcome::Unknown(error)) if lost == LOST => return Err(self.unknown(error)),
                Err(Outcome::Unknown(_)) => lost += 1,
            }
            rest(&mut pause).await?;
            // "Changed" may have been our own doing.
            found = self.load().await.map_err(|error| self.unknown(error))?;
        }
        let path = &self.path;
        let busy = Error::unreachable(format!(
            "the object \"{path}\" is changed by others all the time: gave up after {TRIES} tries"
        ));
        Err(if lost > 0 { self.unknown(busy) } else { busy })
    }

    async fn put(
        &self,
        found: Option<&Found>,
        next: &Cell,
    ) -> Result<Result<UpdateVersion, Outcome>> {
        let mode = match found {
            Some(found) => PutMode::Update(found.version.clone()),
            None => PutMode::Create,
        };
        let payload = next.encode(u128::from_ne_bytes(random()?));
        let put = self.store.put_opts(&self.path, payload, mode.into()).await;
        Ok(put.map(UpdateVersion::from).map_err(|fault| outcome(&fault, found.is_none())))
    }

    fn unknown(&self, error: Error) -> Error {
        let path = &self.path;
        Error::unreachable(format!(
            "nobody knows whether the object \"{path}\" was changed: the request may still be on its \
             way, and a read does not stop it; write again, or enter with a new token"
        ))
        .because(error)
    }
}

pub(super) fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bits = [0; N];
    getrandom::fill(&mut bits).map_err(|error| {
        Error::unreachable("the system has no random numbers for a nonce").because(error)
    })?;
    Ok(bits)
}

/// Waits for a random part of `pause`, so that those who met do not meet again, and doubles it.
async fn rest(pause: &mut Duration) -> Result<()> {
    let part = f64::from(u16::from_ne_bytes(random()?)) / f64::from(u16::MAX);
    BootClock.alarm(BootClock.now() + pause.mul_f64(part)).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
    Ok(())
}
