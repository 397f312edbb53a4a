//! Where a lock lies on a server. The map:
//!
//! | key | type | what | until |
//! |---|---|---|---|
//! | `PREFIX NAME` | string | the holder's owner id, 32 hex digits, as any Redis lock client keeps it | the lease's end |
//! | `fencepost:record:PREFIX NAME` | string | the last token and what is known of the holder (scripts/slow.lua) | its token's time + retention |
//! | `fencepost:queue:PREFIX NAME` | sorted set | who waits, by arrival | 1.5 s after the last word of a waiter |
//! | `fencepost:places:PREFIX NAME` | hash | until when each place is kept, and whom to wake | the same |
//! | `fencepost:gone:OWNER` | string | an owner that was released before its acquire came | a minute at most |
//!
//! and one channel per client, `fencepost:wake:CLIENT`. (There is no space between prefix and name.) The
//! scripts are given the first two and make the others, which they seldom need, from the first.

use fencepost_core::LockName;
use redis::{RedisWrite, ToRedisArgs};

use crate::error::{Error, Result};

const OURS: &str = "fencepost:";
const RECORD: &str = "fencepost:record:";
const QUEUE: &str = "fencepost:queue:";

/// On which channel a client is told that its turn has come.
pub(in crate::backends) fn channel(client: &str) -> String {
    format!("fencepost:wake:{client}")
}

/// What stands before every name on this store.
#[derive(Clone, Debug)]
pub(in crate::backends) struct Prefix(String);

/// The keys that a script is given, in the order of its `KEYS`.
#[derive(Clone, Copy, Debug)]
pub(in crate::backends) struct Keys<'a> {
    prefix: &'a str,
    name: &'a LockName,
}

impl Prefix {
    pub(in crate::backends) fn new(prefix: String) -> Result<Self> {
        if OURS.starts_with(&prefix) && !prefix.is_empty()
            || prefix.starts_with(OURS)
            || prefix.chars().any(char::is_control)
            || prefix.len() > 256
        {
            return Err(Error::invalid(format!(
                "the prefix \"{}\" can not be used: give up to 256 bytes without control \
                 characters that does not begin like \"{OURS}\"",
                prefix.escape_debug()
            )));
        }
        Ok(Self(prefix))
    }

    pub(in crate::backends) fn keys<'a>(&'a self, name: &'a LockName) -> Result<Keys<'a>> {
        let prefix = self.0.as_str();
        if prefix.is_empty() && name.as_str().starts_with(OURS) {
            return Err(Error::invalid(format!(
                "the name \"{name}\" can not be used on this store: keys that begin with \
                 \"{OURS}\" are where it keeps its own records"
            )));
        }
        Ok(Keys { prefix, name })
    }

    /// Patterns that find every lock of ours: by its record, and by those who wait for it.
    pub(in crate::backends) fn patterns(&self) -> [String; 2] {
        let mut escaped = String::new();
        for character in self.0.chars() {
            if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
                escaped.push('\\');
            }
            escaped.push(character);
        }
        [RECORD, QUEUE].map(|kind| format!("{kind}{escaped}*"))
    }

    /// The lock that a found key belongs to.
    pub(in crate::backends) fn name_in(&self, key: &str) -> Option<LockName> {
        let lock = key.strip_prefix(RECORD).or_else(|| key.strip_prefix(QUEUE))?;
        LockName::new(lock.strip_prefix(&self.0)?).ok()
    }
}

impl Keys<'_> {
    pub(in crate::backends) const COUNT: usize = 2;
}

impl ToRedisArgs for Keys<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let Self { prefix, name } = self;
        out.write_arg_fmt(format_args!("{prefix}{name}"));
        out.write_arg_fmt(format_args!("{RECORD}{prefix}{name}"));
    }

    fn num_of_args(&self) -> usize {
        Self::COUNT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_and_its_keys_belong_together() {
        let prefix = Prefix::new("app[1]:".into()).unwrap();
        let name = LockName::new("invoice/42").unwrap();
        let keys = prefix.keys(&name).unwrap().to_redis_args();
        assert_eq!(keys[0], b"app[1]:invoice/42");
        let record = std::str::from_utf8(&keys[1]).unwrap();
        assert_eq!(prefix.name_in(record), Some(name.clone()));
        assert_eq!(prefix.name_in("fencepost:queue:app[1]:invoice/42"), Some(name));
        assert_eq!(prefix.name_in("fencepost:record:other"), None);
        assert_eq!(prefix.patterns()[0], "fencepost:record:app\\[1\\]:*");
    }

    #[test]
    fn a_lock_can_not_be_one_of_our_own_records() {
        let prefix = Prefix::new(String::new()).unwrap();
        let name = LockName::new("fencepost:record:x").unwrap();
        assert!(prefix.keys(&name).is_err());
        assert!(Prefix::new("fencepost:".into()).is_err());
    }
}
