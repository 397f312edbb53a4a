//! The rule that all fences keep (P8): which token may enter, what a reset leaves, and what a refusal says. No I/O. Where the
//! resource itself decides (SQL, Lua), the same rule stands there.

use std::fmt::Display;

use fencepost_base::clock::stamp;
use fencepost_base::{Error, ErrorKind, Result};
use fencepost_core::{Invalid, Label, LockName, Token};

/// The highest token that a resource has accepted for a name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mark {
    /// The lock's name.
    pub name: LockName,
    /// The highest token that has entered.
    pub token: Token,
    /// Who brought it: `host:pid`, or what the caller set.
    pub set_by: String,
    /// When, by the resource's clock, or the client's where the resource has none to ask (`object`): RFC 3339, UTC. For
    /// people; nothing is decided by it.
    pub set_at: String,
}

impl Mark {
    /// The error of a token that came too late. On PostgreSQL the database says it, in the same words.
    #[must_use]
    pub fn refuses(&self, token: Token) -> Error {
        let Self { name, token: mark, set_by, set_at } = self;
        stale(token, format_args!("\"{name}\""), mark, format_args!(" ({set_by}, {set_at})"))
    }

    /// The mark that `token` leaves; none if it has entered already. The error of one that came too late.
    pub(crate) fn raised(
        mark: Option<&Self>,
        name: &LockName,
        token: Token,
        who: &Label,
    ) -> Result<Option<Self>> {
        match admit(mark, token) {
            Admission::Stale(mark) => Err(mark.refuses(token)),
            Admission::Equal => Ok(None),
            Admission::Raise => {
                let (set_by, set_at) = (who.to_string(), stamp::now());
                Ok(Some(Self { name: name.clone(), token, set_by, set_at }))
            }
        }
    }
}

/// What a token may do, given the mark.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Admission<'m> {
    /// There is no mark, or a lower one: enter, and the mark becomes this token.
    Raise,
    /// The mark is this token, so it is the same holder: enter, and the mark stays.
    Equal,
    /// A later holder has entered, with this mark: refuse.
    Stale(&'m Mark),
}

/// The rule: decides what `token` may do. In a fence of your own, read the mark, ask this, and write mark and data in one step
/// that nobody can come between.
#[must_use]
pub fn admit(mark: Option<&Mark>, token: Token) -> Admission<'_> {
    match mark {
        Some(mark) if token < mark.token => Admission::Stale(mark),
        Some(mark) if token == mark.token => Admission::Equal,
        _ => Admission::Raise,
    }
}

/// The one refusal. `what` was to be written, `by` is what is known of the later holder.
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
    /// What the mark was set to; none if it was forgotten.
    pub to: Option<Token>,
    /// Who did it.
    pub by: String,
    /// Why.
    pub why: String,
    /// When, by the same clock: RFC 3339, UTC.
    pub at: String,
}

impl Reset {
    /// The record of a reset of `old` to `to`. None if there is nothing to forget: that changes nothing.
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

    /// The mark that it leaves, if any.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let Self { name, to, by, at, .. } = self;
        to.map(|token| Mark { name: name.clone(), token, set_by: by.clone(), set_at: at.clone() })
    }
}

/// A token in a record that is kept as text: "-" for none.
pub(crate) fn token_text(token: Option<Token>) -> String {
    token.map_or_else(|| "-".to_owned(), |token| token.to_string())
}

/// The same, read back.
pub(crate) fn token_in(text: &str) -> Result<Option<Token>, Invalid> {
    if text == "-" { Ok(None) } else { text.parse().map(Some) }
}

/// The longest reason, in bytes.
const WHY_MAX_BYTES: usize = 1024;

/// Who resets and why, checked.
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

/// Refuses a text that would not stand on one line.
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
        let (entered, token) = (mark(34), |number| Token::new(number).unwrap());
        assert_eq!(admit(None, token(1)), Admission::Raise);
        assert_eq!(admit(Some(&entered), token(35)), Admission::Raise);
        assert_eq!(admit(Some(&entered), token(34)), Admission::Equal);
        assert_eq!(admit(Some(&entered), token(33)), Admission::Stale(&entered));
    }

    #[test]
    fn refusal_names_both_tokens_the_lock_and_the_later_holder() {
        let refused = mark(34).refuses(Token::new(33).unwrap());
        assert_eq!(*refused.kind(), ErrorKind::Stale);
        assert_eq!(
            refused.to_string(),
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
