//! Where a lock lies on a server. The map:
//!
//! | key | type | what | until |
//! |---|---|---|---|
//! | `PREFIX NAME` | string | the holder's owner id, 32 hex digits, as any Redis lock client keeps it | the lease's end |
//! | `fencepost:record:PREFIX NAME` | string | the last token and what is known of the holder (scripts/slow.lua) | its token's time + retention |
//! | `fencepost:queue:PREFIX NAME` | sorted set | who waits, by arrival | 1.5 s after the last word of a waiter |
//! | `fencepost:places:PREFIX NAME` | hash | until when each place is kept, and whom to wake | the same |
//! | `fencepost:value:PREFIX NAME` | string | what a candidate says of itself: its owner id, a number, the value | the lease's end |
//! | `fencepost:once:PREFIX NAME` | hash | a record of what was done (records.rs) | its own time |
//! | `fencepost:gone:OWNER` | string | a released owner whose acquire may still arrive, or who was broken and knows | a minute at most |
//!
//! and two kinds of channel: `fencepost:wake:CLIENT` per client, and `fencepost:wake:broken:DB:PREFIX`, where a break
//! publishes "TOKEN KEY" for all who hold. (There is no space between prefix and name.) The
//! scripts are given the first two and make the others, which they seldom need, from the first.

use fencepost_core::LockName;
use redis::{RedisWrite, ToRedisArgs};

use crate::error::{Error, Result};

const OURS: &str = "fencepost:";
const RECORD: &str = "fencepost:record:";
const QUEUE: &str = "fencepost:queue:";
const ONCE: &str = "fencepost:once:";

/// On which channel a break is published, one per database and prefix: channels belong to the whole server. It begins
/// like those of waiters, so that an ACL that allows them allows this one.
pub(in crate::backends) fn break_channel(db: i64, prefix: &Prefix) -> String {
    format!("fencepost:wake:broken:{db}:{}", prefix.0)
}

/// The note that an owner was released: an acquire of it that arrives later is refused.
pub(in crate::backends) fn note_of(owner: &str) -> String {
    format!("fencepost:gone:{owner}")
}

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
    name: &'a str,
    /// What the second key begins with.
    kind: &'static str,
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
        if self.0.is_empty() && name.as_str().starts_with(OURS) {
            return Err(Error::invalid(format!(
                "the name \"{name}\" can not be used on this store: keys that begin with \
                 \"{OURS}\" are where it keeps its own records"
            )));
        }
        Ok(self.found(name.as_str()))
    }

    /// The keys of a lock that was found on the server, whatever its name.
    pub(in crate::backends) fn found<'a>(&'a self, name: &'a str) -> Keys<'a> {
        Keys { prefix: &self.0, name, kind: RECORD }
    }

    /// Patterns that find every lock of ours: by its record, and by those who wait for it.
    pub(in crate::backends) fn patterns(&self) -> [String; 2] {
        let escaped = escaped(&self.0);
        [RECORD, QUEUE].map(|kind| format!("{kind}{escaped}*"))
    }

    /// A pattern that finds every record of what was done under names that start so.
    pub(in crate::backends) fn once_pattern(&self, start: &str) -> String {
        format!("{ONCE}{}{}*", escaped(&self.0), escaped(start))
    }

    /// The name under which a found record of what was done lies.
    pub(in crate::backends) fn once_in(&self, key: &str) -> Option<LockName> {
        LockName::new(key.strip_prefix(ONCE)?.strip_prefix(&self.0)?).ok()
    }

    /// The name of the lock that a found key belongs to. Another client may have given it one that is none of ours.
    pub(in crate::backends) fn name_in(&self, key: &str) -> Option<String> {
        let lock = key.strip_prefix(RECORD).or_else(|| key.strip_prefix(QUEUE))?;
        Some(lock.strip_prefix(&self.0)?.to_owned())
    }

    pub(in crate::backends) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Keys<'_> {
    pub(in crate::backends) const COUNT: usize = 2;

    /// With the record of what was done instead of that of the lock.
    pub(in crate::backends) fn once(self) -> Self {
        Self { kind: ONCE, ..self }
    }
}

/// As it stands in a pattern that finds just that.
fn escaped(text: &str) -> String {
    let mut escaped = String::new();
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped
}

impl ToRedisArgs for Keys<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let Self { prefix, name, kind } = self;
        out.write_arg_fmt(format_args!("{prefix}{name}"));
        out.write_arg_fmt(format_args!("{kind}{prefix}{name}"));
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
        assert_eq!(prefix.name_in(record).as_deref(), Some(name.as_str()));
        let queue = prefix.name_in("fencepost:queue:app[1]:invoice/42");
        assert_eq!(queue.as_deref(), Some(name.as_str()));
        assert_eq!(prefix.name_in("fencepost:record:other"), None);
        assert_eq!(prefix.patterns()[0], "fencepost:record:app\\[1\\]:*");
        let name = LockName::new("once/a*").unwrap();
        let once = prefix.keys(&name).unwrap().once().to_redis_args();
        assert_eq!(prefix.once_in(std::str::from_utf8(&once[1]).unwrap()), Some(name));
        assert_eq!(prefix.once_pattern("once/a*"), "fencepost:once:app\\[1\\]:once/a\\**");
    }

    #[test]
    fn a_lock_can_not_be_one_of_our_own_records() {
        let prefix = Prefix::new(String::new()).unwrap();
        let name = LockName::new("fencepost:record:x").unwrap();
        assert!(prefix.keys(&name).is_err());
        assert!(Prefix::new("fencepost:".into()).is_err());
    }

    #[test]
    fn bad_prefix_is_told_without_the_password() {
        let url = fencepost_base::redis::RedisUrl::parse("redis", "//:hunter2@h?prefix=fencepost:");
        let error = Prefix::new(url.unwrap().options.prefix).unwrap_err();
        assert_eq!(*error.kind(), crate::ErrorKind::Invalid);
        assert!(!error.to_string().contains("hunter2"), "{error}");
    }
}
