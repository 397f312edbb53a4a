//! Parses the records of the scripts. Their format is in the docs of the module above.

use fencepost_base::clock::stamp::rfc3339;
use fencepost_base::{Error, Result};
use fencepost_core::{LockName, Token};
use redis::ParsingError;

use crate::{Mark, Reset};

/// A mark: `TOKEN MILLIS WHO`.
pub(super) fn mark(name: &LockName, record: &[u8]) -> Result<Mark> {
    let read = || {
        // A client in another language may have set a label that is not UTF-8: its mark counts.
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
            "a logged reset of \"{name}\" is damaged: inspect the list {}...",
            super::mark_keys::RESETS
        ))
    })
}

/// A mark that cannot be parsed refuses every token.
pub(super) fn damaged(name: &LockName) -> Error {
    Error::refused(format!(
        "the mark of \"{name}\" is damaged, so every token is refused: find out which program writes the keys {}..., \
         and set the mark with `fencepost fence reset`",
        super::mark_keys::MARK
    ))
}

/// A reply that does not have the type that the caller requested.
pub(super) fn wrong_type(error: ParsingError) -> Error {
    Error::invalid(
        "the commands ran, but their replies do not have the requested types: request one type per \
         command",
    )
    .with_source(error)
}
