//! The rule of all fences (P8): which token may enter, what a reset leaves, and what a refusal says. No I/O. Where the
//! resource itself decides (SQL, Lua), the same rule is written there.

use std::fmt::Display;

use fencepost_base::clock::stamp;
use fencepost_base::{Error, ErrorKind, Result};
use fencepost_core::{FencingToken, Invalid, Label, LockName, Token};

/// The highest token that a resource has accepted for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The lock's name.
    pub name: LockName,
    /// The highest token that has entered.
    pub token: Token,
    /// Who entered with it: `host:pid`, or the caller's label.
    pub set_by: String,
    /// When, by the resource's clock, or by the client's where the resource has none (`object`): RFC 3339, UTC. For
    /// people only; no decision depends on it.
    pub set_at: String,
}

impl Mark {
    /// The error of a token that this mark refuses: [`Stale`](ErrorKind::Stale), or [`Invalid`](ErrorKind::Invalid) if
    /// the mark belongs to another lock. PostgreSQL raises the first in the same words.
    #[must_use]
    pub fn refuses(&self, fencing: &FencingToken) -> Error {
        let Self { name, token: mark, set_by, set_at } = self;
        if name != fencing.name() {
            return Error::invalid(format!(
                "the mark belongs to the lock \"{name}\", not to \"{}\", and their tokens do not \
                 compare: hold that lock, or reset the mark",
                fencing.name()
            ));
        }
        let by = format_args!(" ({set_by}, {set_at})");
        stale(fencing.token(), format_args!("\"{name}\""), mark, by)
    }

    /// The mark after this token has entered; none if the mark stays. An error if the token is refused.
    pub(crate) fn raised(
        mark: Option<&Self>,
        fencing: &FencingToken,
        who: &Label,
    ) -> Result<Option<Self>> {
        match admit(mark, fencing) {
            Admission::Stale(mark) | Admission::OtherLock(mark) => Err(mark.refuses(fencing)),
            Admission::Equal => Ok(None),
            Admission::Raise => {
                let (name, token) = (fencing.name().clone(), fencing.token());
                Ok(Some(Self { name, token, set_by: who.to_string(), set_at: stamp::now() }))
            }
        }
    }
}

/// The decision about a token, given the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission<'m> {
    /// There is no mark, or a lower one: accept, and set the mark to this token.
    Raise,
    /// The mark is this token, so this is the same holder: accept, and leave the mark.
    Equal,
    /// A later holder has entered and left this mark: refuse.
    Stale(&'m Mark),
    /// The mark belongs to another lock, and tokens of two locks do not compare: refuse.
    OtherLock(&'m Mark),
}

/// The rule: decides whether a token may enter, given the mark that the resource has for its name. A fence of your own
/// reads the mark, asks this, and writes mark and data, all in one atomic step. [`Mark::refuses`] is the error of a
/// refusal.
#[must_use]
pub fn admit<'m>(mark: Option<&'m Mark>, fencing: &FencingToken) -> Admission<'m> {
    match mark {
        Some(mark) if mark.name != *fencing.name() => Admission::OtherLock(mark),
        Some(mark) if fencing.token() < mark.token => Admission::Stale(mark),
        Some(mark) if fencing.token() == mark.token => Admission::Equal,
        None | Some(_) => Admission::Raise,
    }
}

/// The error of a stale token. `what` is the resource, `by` what is known of the later holder.
pub(crate) fn stale(
    token: Token,
    what: impl Display,
    mark: impl Display,
    by: impl Display,
) -> Error {
    let message = format!("token {token} for {what} is stale: {mark} has entered{by}");
    Error::new(ErrorKind::Stale, message)
}

/// The record of one `reset`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reset {
    /// The lock's name.
    pub name: LockName,
    /// The token that had entered, if any had.
    pub from: Option<Token>,
    /// What the mark was set to; none if it was deleted.
    pub to: Option<Token>,
    /// Who reset it.
    pub by: String,
    /// Why.
    pub why: String,
    /// When, by the same clock as marks: RFC 3339, UTC.
    pub at: String,
}

impl Reset {
    /// The logged reset of `old` to `to`. None if there is no mark to delete: nothing changes then.
    pub(crate) fn of(
        old: Option<&Mark>,
        name: &LockName,
        to: Option<Token>,
        (by, why): (&str, &str),
    ) -> Option<Self> {
        let from = old.map(|mark| mark.token);
        (from.is_some() || to.is_some()).then(|| {
            let (by, why, at) = (by.to_owned(), why.to_owned(), stamp::now());
            Self { name: name.clone(), from, to, by, why, at }
        })
    }

    /// The mark after this reset, if any.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let Self { name, to, by, at, .. } = self;
        to.map(|token| Mark { name: name.clone(), token, set_by: by.clone(), set_at: at.clone() })
    }
}

/// A token in a text record: "-" for none.
pub(crate) fn token_text(token: Option<Token>) -> String {
    token.map_or_else(|| "-".to_owned(), |token| token.to_string())
}

/// Parses what `token_text` wrote.
pub(crate) fn token_in(text: &str) -> Result<Option<Token>, Invalid> {
    if text == "-" { Ok(None) } else { text.parse().map(Some) }
}

/// The longest reason, in bytes.
const WHY_MAX_BYTES: usize = 1024;

/// Checks who resets, and why.
pub(crate) fn checked_reset(by: &str, why: &str) -> Result<()> {
    Label::new(by)?;
    if why.trim().is_empty() {
        return Err(Error::invalid("the reason is empty: say why the mark is reset"));
    }
    if why.len() > WHY_MAX_BYTES {
        let length = why.len();
        return Err(Error::invalid(format!(
            "the reason has {length} bytes: use at most {WHY_MAX_BYTES}"
        )));
    }
    without_control_characters("reason", why)
}

/// Refuses a text that does not fit on one line.
pub(crate) fn without_control_characters(what: &str, text: &str) -> Result<()> {
    let Some(bad) = text.chars().find(|c| c.is_control()) else { return Ok(()) };
    Err(Error::invalid(format!(
        "the {what} \"{}\" contains the control character U+{:04X}: remove it",
        text.escape_debug(),
        u32::from(bad)
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fencing(name: &str, token: u64) -> FencingToken {
        FencingToken::new(LockName::new(name).unwrap(), Token::new(token).unwrap())
    }

    fn mark(token: u64) -> Mark {
        Mark {
            name: LockName::new("invoice/42").unwrap(),
            token: Token::new(token).unwrap(),
            set_by: "web-2:4711".into(),
            set_at: "2026-03-01T09:30:12.345Z".into(),
        }
    }

    #[test]
    fn lower_token_is_stale_equal_enters_and_higher_raises() {
        let entered = mark(34);
        assert_eq!(admit(None, &fencing("invoice/42", 1)), Admission::Raise);
        assert_eq!(admit(Some(&entered), &fencing("invoice/42", 35)), Admission::Raise);
        assert_eq!(admit(Some(&entered), &fencing("invoice/42", 34)), Admission::Equal);
        assert_eq!(admit(Some(&entered), &fencing("invoice/42", 33)), Admission::Stale(&entered));
    }

    #[test]
    fn token_of_another_lock_is_refused_whatever_its_number() {
        let entered = mark(34);
        for number in [33, 34, 35] {
            let other = fencing("invoice/43", number);
            assert_eq!(admit(Some(&entered), &other), Admission::OtherLock(&entered));
            let refused = entered.refuses(&other);
            assert_eq!(refused.kind(), ErrorKind::Invalid);
            assert!(refused.to_string().contains("\"invoice/42\", not to \"invoice/43\""));
        }
    }

    #[test]
    fn refusal_names_both_tokens_the_lock_and_the_later_holder() {
        let refused = mark(34).refuses(&fencing("invoice/42", 33));
        assert_eq!(refused.kind(), ErrorKind::Stale);
        assert_eq!(
            refused.one_line(),
            "token 33 for \"invoice/42\" is stale: 34 has entered (web-2:4711, \
             2026-03-01T09:30:12.345Z)"
        );
    }

    #[test]
    fn reset_without_a_mark_to_forget_leaves_no_record() {
        let old = mark(34);
        let of = |old, to: Option<u64>| {
            Reset::of(old, &mark(1).name, to.map(|to| Token::new(to).unwrap()), ("ada", "restored"))
        };
        assert_eq!(of(None, None), None);
        let set = of(None, Some(3)).unwrap();
        let left = set.mark().unwrap();
        assert_eq!((set.from, left.token.get(), &*left.set_by), (None, 3, "ada"));
        let forgotten = of(Some(&old), None).unwrap();
        assert_eq!((forgotten.from, forgotten.mark()), (Some(old.token), None));
    }
}
