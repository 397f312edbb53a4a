//! One object, changed by compare-and-set.
//!
//! What must hold: a change is computed from what was read, and is put only if the object is still the same (If-Match
//! on the `ETag`, or If-None-Match if there was no object). So check and act are one step. That depends on the store:
//! one that accepts a put whose condition does not hold breaks every fence on it. [`probe`](super::probe) tests it, but
//! cannot test its behaviour under load.
//!
//! A reply may be lost, and the store's client may retry and conflict with its own first attempt. So "changed" is never
//! treated as "not applied": the object is read again, and the decision about the next step looks for its own write in
//! it. See [`WriteAttempt`]. For the same reason a refusal is checked with a read: it may be the reply to a second
//! attempt.

use std::sync::Arc;
use std::time::Duration;

use fencepost_base::clock::{BootClock, Clock as _};
use fencepost_base::{Error, Result, random};
use fencepost_core::{FencingToken, Label, LockName, Token};
use object_store::path::Path;
use object_store::{
    Error as ObjectStoreError, ObjectStore, ObjectStoreExt as _, PutMode, UpdateVersion,
};

use super::error::{Outcome, explain, outcome, unfit};
use super::format::{Data, ObjectState, Shape, WriteId};
use super::rules::{Holder, Resetting, Step, WriteAttempt};
use crate::contract::{Mark, Reset};

/// How often an object that other clients change is read and put again.
const TRIES: u32 = 60;
/// How often a put is retried after a lost reply. The store's client has its own retries before that.
const LOST: u32 = 3;
const FIRST_PAUSE: Duration = Duration::from_millis(2);
const LONGEST_PAUSE: Duration = Duration::from_millis(250);

/// An object that is changed by compare-and-set.
#[derive(Clone, Debug)]
pub(super) struct CasObject {
    pub(super) store: Arc<dyn ObjectStore>,
    pub(super) path: Path,
    pub(super) shape: Shape,
    /// The label of who enters, for people.
    pub(super) who: Label,
}

/// An object as it was read or put.
#[derive(Clone, Debug)]
pub(super) struct LoadedObject {
    pub(super) state: ObjectState,
    version: UpdateVersion,
}

/// The functions of the contract, which both shapes share.
impl CasObject {
    pub(super) fn holder<'a>(&'a self, fencing: &'a FencingToken) -> Holder<'a> {
        Holder { fencing, who: &self.who }
    }

    /// Enters, and returns the object as it is then.
    pub(super) async fn enter(&self, holder: Holder<'_>) -> Result<Option<LoadedObject>> {
        Ok(self.change(None, |state| holder.enter(self.shape, state)).await?.1)
    }

    pub(super) async fn write(&self, holder: Holder<'_>, data: &Data) -> Result<()> {
        let mut attempt = WriteAttempt::new(holder, WriteId::draw()?);
        self.change(None, |state| attempt.step(self.shape, state, data)).await?;
        Ok(())
    }

    pub(super) async fn mark(&self, name: &LockName) -> Result<Option<Mark>> {
        let mark = self.load().await?.and_then(|found| found.state.mark);
        Ok(mark.filter(|mark| mark.name == *name))
    }

    pub(super) async fn reset(
        &self,
        name: &LockName,
        to: Option<Token>,
        (by, why): (&str, &str),
    ) -> Result<Option<Mark>> {
        let mut reset = Resetting::new(name, to, (by, why), WriteId::draw()?)?;
        Ok(self.change(None, |state| reset.step(self.shape, state)).await?.0)
    }

    pub(super) async fn audit(&self, name: Option<&LockName>) -> Result<Vec<Reset>> {
        let mut resets = self.load().await?.map(|found| found.state.resets).unwrap_or_default();
        resets.retain(|reset| name.is_none_or(|name| reset.name == *name));
        Ok(resets)
    }
}

impl CasObject {
    pub(super) async fn load(&self) -> Result<Option<LoadedObject>> {
        let got = match self.store.get(&self.path).await {
            Err(ObjectStoreError::NotFound { .. }) => return Ok(None),
            got => got.map_err(|error| explain(&error))?,
        };
        // A foreign object may be huge: do not read it into memory to find out.
        let (size, most) = (got.meta.size, self.shape.most_bytes());
        if size > most {
            let (path, shape) = (&self.path, self.shape.name());
            return Err(Error::refused(format!(
                "the object \"{path}\" has {size} bytes, and a {shape} has at most {most}, so it was left unchanged; choose another path, or open it as what it is"
            )));
        }
        let version =
            UpdateVersion { e_tag: got.meta.e_tag.clone(), version: got.meta.version.clone() };
        let bytes = got.bytes().await.map_err(|error| explain(&error))?;
        let state = ObjectState::decode(self.shape, &bytes);
        let state = state.map_err(|found| unfit(self.path.as_ref(), &found))?;
        Ok(Some(LoadedObject { state, version }))
    }

    /// Reads, decides and puts, until a put is applied or nothing is left to do. `start` saves the first read. Returns
    /// the result, and the object.
    pub(super) async fn change<T>(
        &self,
        start: Option<LoadedObject>,
        mut decide: impl FnMut(Option<&ObjectState>) -> Result<Step<T>>,
    ) -> Result<(T, Option<LoadedObject>)> {
        let mut found = match start {
            Some(found) => Some(found),
            None => self.load().await?,
        };
        let (mut pause, mut lost) = (FIRST_PAUSE, 0);
        for tries in 0.. {
            let (next, value) = match decide(found.as_ref().map(|found| &found.state))? {
                Step::Done(value) => return Ok((value, found)),
                Step::Put(next, value) => (next, value),
            };
            if tries == TRIES {
                break;
            }
            match self.put(found.as_ref(), &next).await? {
                Ok(version) => return Ok((value, Some(LoadedObject { state: next, version }))),
                Err(Outcome::Changed) => {}
                Err(Outcome::Never { error, tried_before }) => {
                    // An earlier put may have been applied before this one was refused.
                    let Ok(found) = self.load().await else { return Err(self.unknown(error)) };
                    return match decide(found.as_ref().map(|found| &found.state))? {
                        Step::Done(value) => Ok((value, found)),
                        Step::Put(..) if tried_before || lost > 0 => Err(self.unknown(error)),
                        Step::Put(..) => Err(error),
                    };
                }
                Err(Outcome::Unknown(error)) if lost == LOST => return Err(self.unknown(error)),
                Err(Outcome::Unknown(_)) => lost += 1,
            }
            rest(&mut pause).await;
            // "Changed" may mean our own put.
            found = self.load().await.map_err(|error| self.unknown(error))?;
        }
        let path = &self.path;
        let busy = Error::unreachable(format!(
            "other clients keep changing the object \"{path}\": gave up after {TRIES} attempts; retry when fewer write it"
        ));
        Err(if lost > 0 { self.unknown(busy) } else { busy })
    }

    async fn put(
        &self,
        found: Option<&LoadedObject>,
        next: &ObjectState,
    ) -> Result<Result<UpdateVersion, Outcome>> {
        let mode = match found {
            Some(found) => PutMode::Update(found.version.clone()),
            None => PutMode::Create,
        };
        let payload = next.encode(u128::from_ne_bytes(random::bytes()?));
        let put = self.store.put_opts(&self.path, payload, mode.into()).await;
        Ok(put.map(UpdateVersion::from).map_err(|error| outcome(&error, found.is_none())))
    }

    fn unknown(&self, error: Error) -> Error {
        let path = &self.path;
        Error::unreachable(format!(
            "outcome unknown: the object \"{path}\" may have been changed, or the request may still arrive, \
             and a read does not stop it; write again, or enter with a new token"
        ))
        .with_source(error)
    }
}

/// Waits for a random part of `pause`, so that clients that collided do not collide again, and doubles it.
async fn rest(pause: &mut Duration) {
    BootClock.alarm(BootClock.now() + random::part_of(*pause)).await;
    *pause = (*pause * 2).min(LONGEST_PAUSE);
}
