//! What the scripts keep, read back. The map is in the module above.

use fencepost_base::clock::stamp::rfc3339;
use fencepost_base::{Error, Result};
use fencepost_core::{LockName, Token};
use redis::ParsingError;

use crate::{Mark, Reset};

/// A mark: `TOKEN MILLIS WHO`.
pub(super) fn mark(name: &LockName, record: &[u8]) -> Result<Mark> {
    let read = || {
        // Another language may have brought a name that is no UTF-8: its mark counts all the same.
        let text = String::from_utf8_lossy(record);
        let mut words = text.splitn(3, ' ');
        let (token, millis, who) = (words.next()?, words.next()?, words.next()?);
        Some(Mark {
            name: name.clone(),
            token: token.parse().ok()?,
            set_by: who.to_owned(),
            set_at: rfc3339(millis.parse().ok()?),
        })
    };
    read().ok_or_else(|| damaged(name))
}

/// A reset: `FROM TO MILLIS`, by whom, why.
pub(super) fn reset(name: &LockName, record: &[u8]) -> Result<Reset> {
    let read = || {
        let mut lines = str::from_utf8(record).ok()?.splitn(3, '\n');
        let (numbers, by, why) = (lines.next()?, lines.next()?, lines.next()?);
        let mut numbers = numbers.split(' ').map(str::parse::<u64>);
        let mut number = || numbers.next()?.ok();
        let (from, to, millis) = (number()?, number()?, number()?);
        Some(Reset {
            name: name.clone(),
            from: Token::new(from).ok(),
            to: Token::new(to).ok(),
            by: by.to_owned(),
            why: why.to_owned(),
            at: rfc3339(millis),
        })
    };
    read().ok_or_else(|| {
        Error::refused(format!(
            "a record of resets of \"{name}\" is none of fencepost's: see the list {}...",
            super::place::RESETS
        ))
    })
}

/// A mark that nobody can compare with keeps everybody out.
pub(super) fn damaged(name: &LockName) -> Error {
    Error::refused(format!(
        "the mark of \"{name}\" is damaged, so nobody may enter: see who writes the keys {}..., and \
         set it anew with `fencepost fence reset`",
        super::place::MARK
    ))
}

/// An answer that our scripts do not give, or not in the type that the caller asked for.
#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` takes")]
pub(super) fn strange(error: ParsingError) -> Error {
    Error::invalid(
        "the commands ran, and their replies have other types than those that were asked for: ask \
         for as many as there are commands, each in its own type",
    )
    .because(error.to_string())
}
