//! What may be done to a cell: who may enter, when a write is done, how a mark is reset. No I/O.
//!
//! What must hold: a write is told as done if and only if it was, whatever became of the answer. Each write has an id,
//! and the cell remembers the last [`TRAIL`] of them. A writer that reads its own id there is done, whoever has entered
//! since. One that reads the id that was last when it put, and not its own, was not: the object has changed since it
//! was read, so what it sent can not be taken any more. Only if more writes than the cell remembers came between, nobody
//! can say, and the error says that. A reset is such a write too, one that leaves the data as they are.

use fencepost_base::{Error, Result};
use fencepost_core::{Label, LockName, Token};

use super::cell::{Cell, Data, RESETS, Shape, TRAIL, WriteId};
use crate::contract::{Mark, Reset, checked_reset};

/// What to do with what was found.
pub(super) enum Step<T> {
    /// Nothing: this is the result.
    Done(T),
    /// Put this; the result, if that is done.
    Put(Cell, T),
}

/// Whoever acts: with which lock, token and label.
#[derive(Clone, Copy, Debug)]
pub(super) struct Holder<'a> {
    pub(super) name: &'a LockName,
    pub(super) token: Token,
    pub(super) who: &'a Label,
}

impl Holder<'_> {
    /// The cell with this holder inside; nothing if it is inside already. The error of one that came too late.
    fn admitted(&self, shape: Shape, cell: Option<&Cell>) -> Result<Option<Cell>> {
        let Self { name, token, who } = *self;
        let mark = cell.and_then(|cell| cell.mark.as_ref());
        if let Some(Mark { name: theirs, .. }) = mark.filter(|mark| mark.name != *name) {
            return Err(Error::invalid(format!(
                "the object belongs to the lock \"{theirs}\", not to \"{name}\", and their \
                 tokens do not compare: hold that lock, or reset the mark"
            )));
        }
        Ok(Mark::raised(mark, name, token, who)?.map(|mark| {
            let mut next = cell.cloned().unwrap_or(Cell::empty(shape));
            next.mark = Some(mark);
            next
        }))
    }

    /// To enter. An answer that was lost needs no care: who finds its own token is inside.
    pub(super) fn enter(&self, shape: Shape, cell: Option<&Cell>) -> Result<Step<()>> {
        Ok(match self.admitted(shape, cell)? {
            Some(next) => Step::Put(next, ()),
            None => Step::Done(()),
        })
    }
}

/// What was put so far.
#[derive(Clone, Copy, Debug)]
enum Sent {
    Nothing,
    /// Something, when nobody had written yet.
    First,
    /// Something, when this was the last write.
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

    /// Whether the cell says that it is done; an error if the cell can not say. `what` is being done, for the error.
    fn is_done(&self, cell: Option<&Cell>, what: impl FnOnce() -> String) -> Result<bool> {
        let trail = cell.map_or(&[][..], |cell| &cell.trail);
        if trail.contains(&self.id) {
            return Ok(true);
        }
        let told = match &self.sent {
            Sent::Nothing => true,
            Sent::First => trail.len() < TRAIL,
            Sent::After(last) => trail.contains(last),
        };
        if told {
            return Ok(false);
        }
        let what = what();
        Err(Error::unreachable(format!(
            "nobody knows whether the {what} was done: more than {TRAIL} others were since it was \
             sent; enter and read before you go on"
        )))
    }

    /// The cell to put, with this write in it.
    fn put(&mut self, next: &Cell, data: Data) -> Cell {
        self.sent = next.trail.last().map_or(Sent::First, |last| Sent::After(*last));
        next.written(self.id, data)
    }
}

/// A write on its way.
#[derive(Debug)]
pub(super) struct Writing<'a> {
    holder: Holder<'a>,
    trace: Trace,
}

impl<'a> Writing<'a> {
    pub(super) const fn new(holder: Holder<'a>, id: WriteId) -> Self {
        Self { holder, trace: Trace::new(id) }
    }

    /// To put these data, or to see that it was done.
    pub(super) fn step(
        &mut self,
        shape: Shape,
        cell: Option<&Cell>,
        data: &Data,
    ) -> Result<Step<()>> {
        let Holder { name, token, .. } = self.holder;
        if self.trace.is_done(cell, || format!("write of token {token} for \"{name}\""))? {
            return Ok(Step::Done(()));
        }
        let next = self.holder.admitted(shape, cell)?;
        let next = next.or_else(|| cell.cloned()).unwrap_or(Cell::empty(shape));
        Ok(Step::Put(self.trace.put(&next, data.clone()), ()))
    }
}

/// A reset on its way. It is a write that leaves the data: done twice it would lower a mark that was raised since.
#[derive(Debug)]
pub(super) struct Resetting<'a> {
    name: &'a LockName,
    to: Option<Token>,
    by: &'a str,
    why: &'a str,
    trace: Trace,
    /// The mark that was there when it was put.
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

    /// To set the mark, or to forget it, or to see that it was done. Tells what it was.
    pub(super) fn step(&mut self, shape: Shape, cell: Option<&Cell>) -> Result<Step<Option<Mark>>> {
        let Self { name, to, by, why, .. } = *self;
        if self.trace.is_done(cell, || format!("reset of \"{name}\""))? {
            // What was put last is what was done: once the object has changed, what was put before can not be.
            return Ok(Step::Done(self.old.clone()));
        }
        let old = cell.and_then(|cell| cell.mark.clone());
        if let Some(mark) = old.as_ref().filter(|mark| mark.name != *name) {
            let theirs = &mark.name;
            return Err(Error::invalid(format!(
                "the object belongs to the lock \"{theirs}\", not to \"{name}\": reset the mark of that one"
            )));
        }
        let Some(reset) = Reset::of(old.as_ref(), name, to, (by, why)) else {
            return Ok(Step::Done(None));
        };
        let mut next = cell.cloned().unwrap_or(Cell::empty(shape));
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

    struct Scene {
        name: LockName,
        who: Label,
    }

    impl Scene {
        fn new() -> Self {
            Self { name: LockName::new("a").unwrap(), who: Label::new("me").unwrap() }
        }

        fn holder(&self, token: u64) -> Holder<'_> {
            Holder { name: &self.name, token: Token::new(token).unwrap(), who: &self.who }
        }

        /// The cell after somebody entered.
        fn entered(&self, token: u64, cell: Option<&Cell>) -> Cell {
            put(self.holder(token).enter(SHAPE, cell)).0
        }

        /// The cell after somebody wrote.
        fn wrote(&self, token: u64, id: u64, cell: Option<&Cell>) -> Cell {
            let mut writing = Writing::new(self.holder(token), WriteId(id));
            put(writing.step(SHAPE, cell, &Data::None)).0
        }
    }

    fn put<T>(step: Result<Step<T>>) -> (Cell, T) {
        match step.unwrap() {
            Step::Put(next, value) => (next, value),
            Step::Done(_) => panic!("it is done already"),
        }
    }

    fn kind_of(step: Result<Step<()>>) -> ErrorKind {
        match step {
            Err(error) => error.kind().clone(),
            Ok(_) => panic!("it was accepted"),
        }
    }

    #[test]
    fn a_write_whose_answer_was_lost_finds_itself() {
        let scene = Scene::new();
        let before = scene.entered(33, None);
        let mut writing = Writing::new(scene.holder(33), WriteId(1));
        let (mine, ()) = put(writing.step(SHAPE, Some(&before), &Data::None));
        // A later holder has entered, and written: it was done all the same.
        let entered = scene.entered(34, Some(&mine));
        let written = scene.wrote(34, 2, Some(&entered));
        for now in [mine, entered, written] {
            let step = writing.step(SHAPE, Some(&now), &Data::None);
            assert!(matches!(step, Ok(Step::Done(()))));
        }
    }

    #[test]
    fn a_write_that_was_not_done_is_stale_however_many_wrote_since_that_are_remembered() {
        let scene = Scene::new();
        let before = scene.wrote(33, 1, None);
        let mut writing = Writing::new(scene.holder(33), WriteId(2));
        let _ = put(writing.step(SHAPE, Some(&before), &Data::None));
        let mut now = scene.entered(34, Some(&before));
        for id in 3.. {
            let step = writing.step(SHAPE, Some(&now), &Data::None);
            if now.trail.contains(&WriteId(1)) {
                assert_eq!(kind_of(step), ErrorKind::Stale);
            } else {
                // Its own id may have been there and gone.
                assert_eq!(kind_of(step), ErrorKind::Unreachable);
                assert_eq!(id, 3 + TRAIL as u64);
                break;
            }
            now = scene.wrote(34, id, Some(&now));
        }
    }

    #[test]
    fn the_first_write_of_all_is_told_apart_too() {
        let scene = Scene::new();
        let mut writing = Writing::new(scene.holder(33), WriteId(1));
        let _ = put(writing.step(SHAPE, None, &Data::None));
        let mut now = None;
        for id in 2..2 + TRAIL as u64 {
            now = Some(scene.wrote(34, id, now.as_ref()));
            let step = writing.step(SHAPE, now.as_ref(), &Data::None);
            let last = id == 1 + TRAIL as u64;
            assert_eq!(kind_of(step), if last { ErrorKind::Unreachable } else { ErrorKind::Stale });
        }
    }

    #[test]
    fn who_has_put_nothing_is_plainly_stale() {
        let scene = Scene::new();
        let now = (1..1000).fold(None, |now, id| Some(scene.wrote(34, id, now.as_ref())));
        let mut writing = Writing::new(scene.holder(33), WriteId(2000));
        assert_eq!(kind_of(writing.step(SHAPE, now.as_ref(), &Data::None)), ErrorKind::Stale);
    }

    #[test]
    fn an_object_belongs_to_one_lock() {
        let (scene, other) = (Scene::new(), LockName::new("b").unwrap());
        let cell = Some(scene.entered(33, None));
        let holder = Holder { name: &other, ..scene.holder(99) };
        assert_eq!(kind_of(holder.enter(SHAPE, cell.as_ref())), ErrorKind::Invalid);
        assert!(resetting(&other, None).step(SHAPE, cell.as_ref()).is_err());
        // Once it is forgotten, it may belong to another.
        let (cell, old) = put(resetting(&scene.name, None).step(SHAPE, cell.as_ref()));
        assert_eq!(old.unwrap().token.get(), 33);
        assert!(matches!(holder.enter(SHAPE, Some(&cell)), Ok(Step::Put(..))));
    }

    fn resetting(name: &LockName, to: Option<u64>) -> Resetting<'_> {
        let to = to.map(|token| Token::new(token).unwrap());
        Resetting::new(name, to, ("ops", "moved"), WriteId(999)).unwrap()
    }

    /// Whatever happens between: it is done once, and tells the mark that it replaced.
    #[test]
    fn a_reset_whose_answer_was_lost_finds_itself() {
        let scene = Scene::new();
        for to in [Some(5), None] {
            let before = scene.wrote(9, 1, None);
            let mut reset = resetting(&scene.name, to);
            let (mine, _) = put(reset.step(SHAPE, Some(&before)));
            let entered = scene.entered(6, Some(&mine));
            let written = scene.wrote(6, 2, Some(&entered));
            for now in [mine, entered, written] {
                let Ok(Step::Done(old)) = reset.step(SHAPE, Some(&now)) else {
                    panic!("it is done twice")
                };
                assert_eq!(old, before.mark);
            }
            // Another was quicker: the mark that it replaces is that one's.
            let raised = scene.entered(10, Some(&before));
            let (mine, old) = put(reset.step(SHAPE, Some(&raised)));
            assert_eq!(old, raised.mark);
            assert_eq!(mine.resets.last().unwrap().from, old.as_ref().map(|mark| mark.token));
            assert!(matches!(reset.step(SHAPE, Some(&mine)), Ok(Step::Done(told)) if told == old));
        }
    }

    #[test]
    fn the_records_of_resets_do_not_grow() {
        let scene = Scene::new();
        let mut cell = Some(scene.entered(1, None));
        for number in 1..=40 {
            let why = format!("number {number}");
            let token = Some(Token::new(number).unwrap());
            let words = ("ops", &*why);
            let mut reset = Resetting::new(&scene.name, token, words, WriteId(number)).unwrap();
            cell = Some(put(reset.step(SHAPE, cell.as_ref())).0);
        }
        let resets = cell.unwrap().resets;
        assert_eq!(resets.len(), RESETS);
        assert_eq!(resets.last().unwrap().why, "number 40");
    }
}
