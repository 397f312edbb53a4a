//! The keys on a server, layout 2. NAME is the lock's name with the prefix of the URL before it:
//!
//! | key | type | what | expires |
//! |---|---|---|---|
//! | `NAME` | string | the holder's owner id, 32 hex digits, as any Redis lock client keeps it | with the lease |
//! | `fencepost:lock:{NAME}` | string | the last token and its holder (scripts/common.lua) | its token's time + retention |
//! | `fencepost:queue:{NAME}` | sorted set | the owners that wait, by arrival | 1.5 s after the last request of a waiter |
//! | `fencepost:positions:{NAME}` | hash | until when each position is kept, and which client to wake | the same |
//! | `fencepost:value:{NAME}` | string | what a candidate publishes: its owner id, a number, the value | with the lease |
//! | `fencepost:withdrawn:{NAME}:OWNER` | string | a released owner whose acquire may still arrive, or that confirmed a break | within a minute |
//! | `fencepost:record:{NAME}` | hash | a record of `once` (records.rs) | its retention |
//!
//! and two kinds of channel: `fencepost:wake:CLIENT` per client, and `fencepost:wake:broken:DB:PREFIX`, where a break
//! publishes "TOKEN KEY" for all holders. The braces keep all keys of a lock in the slot of its own key; for a name that
//! has braces itself see [`tagged`]. Scripts get the first two keys, or the first and the record, and derive the others
//! from these. Layout 1 had no braces: its `fencepost:record:NAME` and `fencepost:once:NAME` are refused, by the scripts
//! and by lists. `docs/layouts/redis.md` is the same for users.

use fencepost_base::redis::hash_tag::{escaped, tagged, tagged_pattern, untagged};
use fencepost_core::LockName;
use redis::{RedisWrite, ToRedisArgs};

use crate::error::{Error, Result};

const OURS: &str = "fencepost:";
const LOCK: &str = "fencepost:lock:";
const QUEUE: &str = "fencepost:queue:";
const RECORD: &str = "fencepost:record:";

/// The channel on which a break is published, one per database and prefix, since channels belong to the whole server. It
/// has the prefix of the waiters' channels, so that an ACL that allows those allows this one.
pub(in crate::backends) fn break_channel(db: i64, prefix: &Prefix) -> String {
    format!("fencepost:wake:broken:{db}:{}", prefix.0)
}

/// The channel on which the waiters of a client are woken.
pub(in crate::backends) fn channel(client: &str) -> String {
    format!("fencepost:wake:{client}")
}

/// The prefix of every name on this store.
#[derive(Clone, Debug)]
pub(in crate::backends) struct Prefix(String);

/// The keys that a script gets, in the order of its `KEYS`.
#[derive(Clone, Copy, Debug)]
pub(in crate::backends) struct Keys<'a> {
    prefix: &'a str,
    name: &'a str,
    /// The prefix of the second key.
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
                "the prefix \"{}\" cannot be used: give up to 256 bytes without control \
                 characters that does not begin like \"{OURS}\"",
                prefix.escape_debug()
            )));
        }
        Ok(Self(prefix))
    }

    pub(in crate::backends) fn keys<'a>(&'a self, name: &'a LockName) -> Result<Keys<'a>> {
        if self.0.is_empty() && name.as_str().starts_with(OURS) {
            return Err(Error::invalid(format!(
                "the name \"{name}\" cannot be used on this store: keys that begin with \
                \"{OURS}\" are reserved for its own records"
            )));
        }
        Ok(self.keys_unchecked(name.as_str()))
    }

    /// The keys of a lock that was found on the server, even if its name is invalid.
    pub(in crate::backends) fn keys_unchecked<'a>(&'a self, name: &'a str) -> Keys<'a> {
        Keys { prefix: &self.0, name, kind: LOCK }
    }

    /// Patterns that match every lock of ours: by its state, and by its waiters.
    pub(in crate::backends) fn patterns(&self) -> [String; 2] {
        [LOCK, QUEUE].map(|kind| tagged_pattern(kind, &self.0))
    }

    /// A pattern that matches every record of `once` whose name has this prefix.
    pub(in crate::backends) fn record_pattern(&self, start: &str) -> String {
        tagged_pattern(RECORD, &format!("{}{start}", self.0))
    }

    /// The name of the record of `once` in a found key.
    pub(in crate::backends) fn record_in(&self, key: &str) -> Option<LockName> {
        LockName::new(untagged(key.strip_prefix(RECORD)?)?.strip_prefix(&self.0)?).ok()
    }

    /// The name of the lock in a found key. A third-party client may have created one that is not a valid name.
    pub(in crate::backends) fn name_in(&self, key: &str) -> Option<String> {
        let lock = key.strip_prefix(LOCK).or_else(|| key.strip_prefix(QUEUE))?;
        Some(untagged(lock)?.strip_prefix(&self.0)?.to_owned())
    }

    /// Patterns that match the locks and the records of layout 1. A string that matches the first is a lock; a hash is a
    /// record of this layout.
    pub(in crate::backends) fn layout_1_locks(&self) -> String {
        format!("{RECORD}{}*", escaped(&self.0))
    }

    pub(in crate::backends) fn layout_1_records(&self, start: &str) -> String {
        format!("fencepost:once:{}{}*", escaped(&self.0), escaped(start))
    }

    pub(in crate::backends) fn as_str(&self) -> &str {
        &self.0
    }
}

impl Keys<'_> {
    pub(in crate::backends) const COUNT: usize = 2;

    /// With the record of `once` instead of the state of the lock.
    pub(in crate::backends) fn record(self) -> Self {
        Self { kind: RECORD, ..self }
    }

    /// The key that marks an owner as released: an acquire of it that arrives later is refused.
    pub(in crate::backends) fn withdrawn(self, owner: &str) -> String {
        format!("fencepost:withdrawn:{}:{owner}", tagged(&format!("{}{}", self.prefix, self.name)))
    }
}

impl ToRedisArgs for Keys<'_> {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        let Self { prefix, name, kind } = self;
        out.write_arg_fmt(format_args!("{prefix}{name}"));
        if prefix.contains(['{', '}']) || name.contains(['{', '}']) {
            out.write_arg_fmt(format_args!("{kind}{}", tagged(&format!("{prefix}{name}"))));
        } else {
            out.write_arg_fmt(format_args!("{kind}{{{prefix}{name}}}"));
        }
    }

    fn num_of_args(&self) -> usize {
        Self::COUNT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_and_keys_are_converted_both_ways() {
        let prefix = Prefix::new("app[1]:".into()).unwrap();
        let name = LockName::new("invoice/42").unwrap();
        let keys = prefix.keys(&name).unwrap().to_redis_args();
        assert_eq!(keys[0], b"app[1]:invoice/42");
        let record = std::str::from_utf8(&keys[1]).unwrap();
        assert_eq!(prefix.name_in(record).as_deref(), Some(name.as_str()));
        let queue = prefix.name_in("fencepost:queue:{app[1]:invoice/42}");
        assert_eq!(queue.as_deref(), Some(name.as_str()));
        assert_eq!(prefix.name_in("fencepost:lock:{other}"), None);
        assert_eq!(prefix.name_in("fencepost:lock:app[1]:x"), None, "that is layout 1");
        assert_eq!(prefix.patterns()[0], "fencepost:lock:{*app\\[1\\]:*");
        let withdrawn = prefix.keys(&name).unwrap().withdrawn("00");
        assert_eq!(withdrawn, "fencepost:withdrawn:{app[1]:invoice/42}:00");
        let name = LockName::new("once/a*").unwrap();
        let record = prefix.keys(&name).unwrap().record().to_redis_args();
        assert_eq!(record[1], b"fencepost:record:{app[1]:once/a*}");
        assert_eq!(prefix.record_in(std::str::from_utf8(&record[1]).unwrap()), Some(name));
        assert_eq!(prefix.record_pattern("once/a*"), "fencepost:record:{*app\\[1\\]:once/a\\**");
    }

    /// In the slot of the lock's own key, so that one script reaches all of them.
    #[test]
    fn keys_of_a_name_with_braces_are_in_its_slot() {
        let prefix = Prefix::new("{app}:".into()).unwrap();
        let name = LockName::new("invoice{7}").unwrap();
        let keys = prefix.keys(&name).unwrap().to_redis_args();
        assert_eq!(keys, [&b"{app}:invoice{7}"[..], b"fencepost:lock:{app}{app}:invoice{7}"]);
        let found = prefix.name_in(std::str::from_utf8(&keys[1]).unwrap());
        assert_eq!(found.as_deref(), Some("invoice{7}"));
    }

    #[test]
    fn lock_name_cannot_be_a_key_of_ours() {
        let prefix = Prefix::new(String::new()).unwrap();
        let name = LockName::new("fencepost:lock:x").unwrap();
        assert!(prefix.keys(&name).is_err());
        assert!(Prefix::new("fencepost:".into()).is_err());
    }

    #[test]
    fn invalid_prefix_is_named_without_the_password() {
        use fencepost_base::redis::{RedisConfig, RedisOptions};
        let options = RedisOptions::new("h").password("hunter2").prefix("fencepost:");
        let error = Prefix::new(RedisConfig::new(options).unwrap().prefix).unwrap_err();
        assert_eq!(error.kind(), crate::ErrorKind::Invalid);
        assert!(!error.one_line().contains("hunter2"), "{error}");
    }
}
