//! The rules of an object: which token may enter, when a write was applied, how a mark is reset. No I/O.
//!
//! What must hold: a write is reported as done if and only if it was applied, even if its reply was lost. Each write
//! has an id, and the object keeps the last [`TRAIL`] ids. A writer that finds its own id there is done, even if a
//! later holder has entered since. A writer that finds the id that was last when it put, but not its own, is not done:
//! the object has changed since it was read, so the put cannot be applied any more. Only if more writes than [`TRAIL`]
//! came in between, the outcome is unknown, and the error says so. A reset is a write too, one that keeps the data.

use fencepost_base::{Error, Result};
use fencepost_core::{FencingToken, Label, LockName, Token};

use super::format::{Data, ObjectState, RESETS, Shape, TRAIL, WriteId};
use crate::contract::{Admission, Mark, Reset, admit, checked_reset};

/// The next step, given the object.
pub(super) enum Step<T> {
    /// Nothing is left to do: this is the result.
    Done(T),
    /// Put this state; the result if it is applied.
    Put(ObjectState, T),
}

/// A holder that enters or writes: its lock and token, and its label.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder<'a> {
    pub(super) fencing: &'a FencingToken,
    pub(super) who: &'a Label,
}

impl Holder<'_> {
    /// The state after this holder has entered; none if it has entered already. An error if the token is refused.
    fn admitted(&self, shape: Shape, state: Option<&ObjectState>) -> Result<Option<ObjectState>> {
        let Self { fencing, who } = *self;
        let mark = state.and_then(|state| state.mark.as_ref());
        if let Admission::OtherLock(Mark { name: theirs, .. }) = admit(mark, fencing) {
            return Err(Error::invalid(format!(
                "the object belongs to the lock \"{theirs}\", not to \"{}\", and their \
                 tokens do not compare: hold that lock, or reset the mark",
                fencing.name()
            )));
        }
        Ok(Mark::raised(mark, fencing, who)?.map(|mark| {
            let mut next = state.cloned().unwrap_or(ObjectState::empty(shape));
            next.mark = Some(mark);
            next
        }))
    }

    /// Enters. A lost reply does no harm: a holder that finds its own token has entered.
    pub(super) fn enter(&self, shape: Shape, state: Option<&ObjectState>) -> Result<Step<()>> {
        Ok(match self.admitted(shape, state)? {
            Some(next) => Step::Put(next, ()),
            None => Step::Done(()),
        })
    }
}

/// What this write has put so far.
#[derive(Clone, Copy, Debug)]
enum Sent {
    Nothing,
    /// A put on an object without a write.
    First,
    /// A put on an object whose last write was this.
    After(WriteId),
}

/// The id of one write, and what was put of it.
#[derive(Debug)]
struct Trace {
    id: WriteId,
    sent: Sent,
}

impl Trace {
    const fn new(id: WriteId) -> Self {
        Self { id, sent: Sent::Nothing }
    }

    /// Whether the write was applied; an error if that is unknown. `what` names it in the error.
    fn is_done(&self, state: Option<&ObjectState>, what: impl FnOnce() -> String) -> Result<bool> {
        let trail = state.map_or(&[][..], |state| &state.trail);
        if trail.contains(&self.id) {
            return Ok(true);
        }
        let known = match &self.sent {
            Sent::Nothing => true,
            Sent::First => trail.len() < TRAIL,
            Sent::After(last) => trail.contains(last),
        };
        if known {
            return Ok(false);
        }
        let what = what();
        Err(Error::unreachable(format!(
            "outcome of the {what} unknown: more than {TRAIL} other writes came since it was \
             sent; enter and read before you continue"
        )))
    }

    /// The state to put, with this write in it.
    fn put(&mut self, next: &ObjectState, data: Data) -> ObjectState {
        self.sent = next.trail.last().map_or(Sent::First, |last| Sent::After(*last));
        next.written(self.id, data)
    }
}

/// A write, with its retries.
#[derive(Debug)]
pub(super) struct WriteAttempt<'a> {
    holder: Holder<'a>,
    trace: Trace,
}

impl<'a> WriteAttempt<'a> {
    pub(super) const fn new(holder: Holder<'a>, id: WriteId) -> Self {
        Self { holder, trace: Trace::new(id) }
    }

    /// Puts these data, unless it finds that they were written already.
    pub(super) fn step(
        &mut self,
        shape: Shape,
        state: Option<&ObjectState>,
        data: &Data,
    ) -> Result<Step<()>> {
        let Holder { fencing, .. } = self.holder;
        if self.trace.is_done(state, || {
            format!("write of token {} for \"{}\"", fencing.token(), fencing.name())
        })? {
            return Ok(Step::Done(()));
        }
        let next = self.holder.admitted(shape, state)?;
        let next = next.or_else(|| state.cloned()).unwrap_or(ObjectState::empty(shape));
        Ok(Step::Put(self.trace.put(&next, data.clone()), ()))
    }
}

/// A reset, with its retries. It is a write that keeps the data: applied twice, it could lower a mark that was raised
/// since.
#[derive(Debug)]
pub(super) struct Resetting<'a> {
    name: &'a LockName,
    to: Option<Token>,
    by: &'a str,
    why: &'a str,
    trace: Trace,
    /// The mark that the last put replaces.
    old: Option<Mark>,
}

impl<'a> Resetting<'a> {
    pub(super) fn new(
        name: &'a LockName,
        to: Option<Token>,
        (by, why): (&'a str, &'a str),
        id: WriteId,
    ) -> Result<Self> {
        checked_reset(by, why)?;
        Ok(Self { name, to, by, why, trace: Trace::new(id), old: None })
    }

    /// Sets or deletes the mark, unless it finds that this was done already. The result is the previous mark.
    pub(super) fn step(
        &mut self,
        shape: Shape,
        state: Option<&ObjectState>,
    ) -> Result<Step<Option<Mark>>> {
        let Self { name, to, by, why, .. } = *self;
        if self.trace.is_done(state, || format!("reset of \"{name}\""))? {
            // The last put is the one that was applied: earlier ones could not be once the object had changed.
            return Ok(Step::Done(self.old.clone()));
        }
        let old = state.and_then(|state| state.mark.clone());
        if let Some(mark) = old.as_ref().filter(|mark| mark.name != *name) {
            let theirs = &mark.name;
            return Err(Error::invalid(format!(
                "the object belongs to the lock \"{theirs}\", not to \"{name}\": reset the mark of that one"
            )));
        }
        let Some(reset) = Reset::of(old.as_ref(), name, to, (by, why)) else {
            return Ok(Step::Done(None));
        };
        let mut next = state.cloned().unwrap_or(ObjectState::empty(shape));
        next.mark = reset.mark();
        next.resets.push(reset);
        next.resets.drain(..next.resets.len().saturating_sub(RESETS));
        self.old.clone_from(&old);
        let data = next.data.clone();
        Ok(Step::Put(self.trace.put(&next, data), old))
    }
}

#[cfg(test)]
mod tests {
    use fencepost_base::ErrorKind;

    use super::*;

    const SHAPE: Shape = Shape::Envelope;

    struct Fixture {
        name: LockName,
        who: Label,
    }

    impl Fixture {
        fn new() -> Self {
            Self { name: LockName::new("a").unwrap(), who: Label::new("me").unwrap() }
        }

        fn fencing(&self, token: u64) -> FencingToken {
            FencingToken::new(self.name.clone(), Token::new(token).unwrap())
        }

        fn holder<'a>(&'a self, fencing: &'a FencingToken) -> Holder<'a> {
            Holder { fencing, who: &self.who }
        }

        /// The state after an `enter`.
        fn entered(&self, token: u64, state: Option<&ObjectState>) -> ObjectState {
            put(self.holder(&self.fencing(token)).enter(SHAPE, state)).0
        }

        /// The state after a write.
        fn wrote(&self, token: u64, id: u64, state: Option<&ObjectState>) -> ObjectState {
            let fencing = self.fencing(token);
            let mut attempt = WriteAttempt::new(self.holder(&fencing), WriteId(id));
            put(attempt.step(SHAPE, state, &Data::None)).0
        }
    }

    fn put<T>(step: Result<Step<T>>) -> (ObjectState, T) {
        match step.unwrap() {
            Step::Put(next, value) => (next, value),
            Step::Done(_) => panic!("it was done already"),
        }
    }

    fn kind_of(step: Result<Step<()>>) -> ErrorKind {
        match step {
            Err(error) => error.kind(),
            Ok(_) => panic!("it was accepted"),
        }
    }

    #[test]
    fn write_with_a_lost_reply_finds_its_own_id() {
        let fixture = Fixture::new();
        let before = fixture.entered(33, None);
        let fencing = fixture.fencing(33);
        let mut attempt = WriteAttempt::new(fixture.holder(&fencing), WriteId(1));
        let (mine, ()) = put(attempt.step(SHAPE, Some(&before), &Data::None));
        // It counts as done even if a later holder has entered and written.
        let entered = fixture.entered(34, Some(&mine));
        let written = fixture.wrote(34, 2, Some(&entered));
        for now in [mine, entered, written] {
            let step = attempt.step(SHAPE, Some(&now), &Data::None);
            assert!(matches!(step, Ok(Step::Done(()))));
        }
    }

    #[test]
    fn lost_write_is_stale_until_its_predecessor_is_dropped_from_the_trail() {
        let fixture = Fixture::new();
        let before = fixture.wrote(33, 1, None);
        let fencing = fixture.fencing(33);
        let mut attempt = WriteAttempt::new(fixture.holder(&fencing), WriteId(2));
        let _ = put(attempt.step(SHAPE, Some(&before), &Data::None));
        let mut now = fixture.entered(34, Some(&before));
        for id in 3.. {
            let step = attempt.step(SHAPE, Some(&now), &Data::None);
            if now.trail.contains(&WriteId(1)) {
                assert_eq!(kind_of(step), ErrorKind::Stale);
            } else {
                // Its own id may have been dropped, too.
                assert_eq!(kind_of(step), ErrorKind::Unreachable);
                assert_eq!(id, 3 + TRAIL as u64);
                break;
            }
            now = fixture.wrote(34, id, Some(&now));
        }
    }

    #[test]
    fn lost_first_write_is_stale_until_the_trail_is_full() {
        let fixture = Fixture::new();
        let fencing = fixture.fencing(33);
        let mut attempt = WriteAttempt::new(fixture.holder(&fencing), WriteId(1));
        let _ = put(attempt.step(SHAPE, None, &Data::None));
        let mut now = None;
        for id in 2..2 + TRAIL as u64 {
            now = Some(fixture.wrote(34, id, now.as_ref()));
            let step = attempt.step(SHAPE, now.as_ref(), &Data::None);
            let last = id == 1 + TRAIL as u64;
            assert_eq!(kind_of(step), if last { ErrorKind::Unreachable } else { ErrorKind::Stale });
        }
    }

    #[test]
    fn writer_that_has_put_nothing_is_stale() {
        let fixture = Fixture::new();
        let now = (1..1000).fold(None, |now, id| Some(fixture.wrote(34, id, now.as_ref())));
        let fencing = fixture.fencing(33);
        let mut attempt = WriteAttempt::new(fixture.holder(&fencing), WriteId(2000));
        assert_eq!(kind_of(attempt.step(SHAPE, now.as_ref(), &Data::None)), ErrorKind::Stale);
    }

    #[test]
    fn object_refuses_a_second_lock() {
        let (fixture, other) = (Fixture::new(), LockName::new("b").unwrap());
        let state = Some(fixture.entered(33, None));
        let fencing = FencingToken::new(other.clone(), Token::new(99).unwrap());
        let holder = fixture.holder(&fencing);
        assert_eq!(kind_of(holder.enter(SHAPE, state.as_ref())), ErrorKind::Invalid);
        assert!(resetting(&other, None).step(SHAPE, state.as_ref()).is_err());
        // After the mark is deleted, another lock may enter.
        let (state, old) = put(resetting(&fixture.name, None).step(SHAPE, state.as_ref()));
        assert_eq!(old.unwrap().token.get(), 33);
        assert!(matches!(holder.enter(SHAPE, Some(&state)), Ok(Step::Put(..))));
    }

    fn resetting(name: &LockName, to: Option<u64>) -> Resetting<'_> {
        let to = to.map(|token| Token::new(token).unwrap());
        Resetting::new(name, to, ("ops", "moved"), WriteId(999)).unwrap()
    }

    /// Whatever happens in between, it is applied once, and returns the mark that it replaced.
    #[test]
    fn reset_with_a_lost_reply_is_applied_once() {
        let fixture = Fixture::new();
        for to in [Some(5), None] {
            let before = fixture.wrote(9, 1, None);
            let mut reset = resetting(&fixture.name, to);
            let (mine, _) = put(reset.step(SHAPE, Some(&before)));
            let entered = fixture.entered(6, Some(&mine));
            let written = fixture.wrote(6, 2, Some(&entered));
            for now in [mine, entered, written] {
                let Ok(Step::Done(old)) = reset.step(SHAPE, Some(&now)) else {
                    panic!("it is applied twice")
                };
                assert_eq!(old, before.mark);
            }
            // Another holder entered first: the reset replaces that mark.
            let raised = fixture.entered(10, Some(&before));
            let (mine, old) = put(reset.step(SHAPE, Some(&raised)));
            assert_eq!(old, raised.mark);
            assert_eq!(mine.resets.last().unwrap().from, old.as_ref().map(|mark| mark.token));
            assert!(
                matches!(reset.step(SHAPE, Some(&mine)), Ok(Step::Done(replaced)) if replaced == old)
            );
        }
    }

    #[test]
    fn only_the_last_resets_are_kept() {
        let fixture = Fixture::new();
        let mut state = Some(fixture.entered(1, None));
        for number in 1..=40 {
            let why = format!("number {number}");
            let token = Some(Token::new(number).unwrap());
            let words = ("ops", &*why);
            let mut reset = Resetting::new(&fixture.name, token, words, WriteId(number)).unwrap();
            state = Some(put(reset.step(SHAPE, state.as_ref())).0);
        }
        let resets = state.unwrap().resets;
        assert_eq!(resets.len(), RESETS);
        assert_eq!(resets.last().unwrap().why, "number 40");
    }
}
