//! The keys of marks, and which slot of a cluster they are in.

use fencepost_base::redis::hash_tag::{hashed, slot, tag_of};
use fencepost_base::{Error, Result};
use fencepost_core::LockName;
use redis::aio::ConnectionLike;

use super::failed;

/// The prefix of our keys.
pub(super) const OURS: &[u8] = b"fencepost:";
pub(super) const MARK: &str = "fencepost:mark:";
pub(super) const RESETS: &str = "fencepost:resets:";

/// The tag for names that cannot be one.
const ANYWHERE: &[u8] = b"fencepost";

/// The keys of marks with one hash tag.
#[derive(Clone, Debug)]
pub(super) struct MarkKeys {
    tag: Vec<u8>,
    /// The caller has named the slot of the data, so a key in another slot is an error.
    named: bool,
}

impl MarkKeys {
    /// Without `beside`: in the slot of the lock's name.
    pub(super) fn of(name: &LockName) -> Self {
        let tag = tag_of(name.as_str().as_bytes()).unwrap_or(ANYWHERE).to_vec();
        Self { tag, named: false }
    }

    /// In the slot of `key`.
    pub(super) fn beside(key: &[u8]) -> Result<Self> {
        match tag_of(key) {
            Some(tag) => Ok(Self { tag: tag.to_vec(), named: true }),
            None => Err(Error::invalid(format!(
                "no mark can be kept beside the key {}: give the keys of the data a hash tag, like \
                 {{user:7}}:cart",
                shown(key)
            ))),
        }
    }

    pub(super) fn mark(&self, name: &LockName) -> Vec<u8> {
        self.key(MARK, name)
    }

    pub(super) fn resets(&self, name: &LockName) -> Vec<u8> {
        self.key(RESETS, name)
    }

    fn key(&self, kind: &str, name: &LockName) -> Vec<u8> {
        [kind.as_bytes(), b"{", &self.tag, b"}", name.as_str().as_bytes()].concat()
    }

    /// Refuses a key that a script cannot reach together with the mark.
    pub(super) fn admit(&self, key: &[u8]) -> Result<()> {
        if key.starts_with(OURS) {
            return Err(Error::invalid(format!(
                "the key {} belongs to fencepost: use another key",
                shown(key)
            )));
        }
        let (here, there) = (slot(&self.tag), slot(hashed(key)));
        if self.named && here != there {
            return Err(Error::invalid(format!(
                "the key {} is in slot {there}, and the mark in slot {here}, beside {}: one step \
                 reaches one slot; give all keys that the lock protects one hash tag, like \
                 {{user:7}}:cart",
                shown(key),
                shown(&self.tag)
            )));
        }
        Ok(())
    }
}

/// Whether an argument of a command begins like a key of the fence.
pub(super) fn is_ours(word: &[u8]) -> bool {
    word.starts_with(MARK.as_bytes()) || word.starts_with(RESETS.as_bytes())
}

/// A key for messages, on one line and shortened.
pub(super) fn shown(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    let start: String = text.chars().take(64).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("\"{}{dots}\"", start.escape_debug())
}

/// A key of the fence on the server.
pub(super) struct FoundMark {
    pub(super) key: Vec<u8>,
    pub(super) name: LockName,
}

/// All keys of a kind, of one lock or of all.
pub(super) async fn search(
    connection: &mut impl ConnectionLike,
    kind: &str,
    name: Option<&LockName>,
) -> Result<Vec<FoundMark>> {
    let mut pattern = format!("{kind}{{*}}");
    match name {
        // A tag may contain anything, so matches are checked below.
        Some(name) => name.as_str().chars().for_each(|letter| {
            if "*?[]\\^-".contains(letter) {
                pattern.push('\\');
            }
            pattern.push(letter);
        }),
        None => pattern.push('*'),
    }
    let (mut keys, mut cursor) = (Vec::new(), 0_u64);
    loop {
        let mut scan = redis::cmd("SCAN");
        scan.arg(cursor).arg("MATCH").arg(&pattern).arg("COUNT").arg(1000);
        let (next, found): (u64, Vec<Vec<u8>>) =
            scan.query_async(connection).await.map_err(failed)?;
        keys.extend(found);
        if next == 0 {
            break;
        }
        cursor = next;
    }
    // SCAN may return a key twice.
    keys.sort_unstable();
    keys.dedup();
    let all =
        keys.into_iter().filter_map(|key| Some(FoundMark { name: name_in(&key, kind)?, key }));
    Ok(all.filter(|found| name.is_none_or(|name| *name == found.name)).collect())
}

/// The name after the tag, which contains no closing brace.
fn name_in(key: &[u8], kind: &str) -> Option<LockName> {
    let rest = key.strip_prefix(kind.as_bytes())?.strip_prefix(b"{")?;
    let close = rest.iter().position(|byte| *byte == b'}')?;
    LockName::new(std::str::from_utf8(&rest[close + 1..]).ok()?).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> LockName {
        LockName::new(text).unwrap()
    }

    #[test]
    fn mark_is_in_the_slot_of_its_data() {
        for key in ["{user:7}:cart", "user:7", "a{b", "{a{b}c"] {
            let mark_keys = MarkKeys::beside(key.as_bytes()).unwrap();
            for own in [mark_keys.mark(&name("x{y}z")), mark_keys.resets(&name("}{"))] {
                assert_eq!(slot(hashed(&own)), slot(hashed(key.as_bytes())), "{key}");
            }
            mark_keys.admit(key.as_bytes()).unwrap();
        }
        for key in ["", "{}user", "a}b"] {
            assert!(MarkKeys::beside(key.as_bytes()).is_err(), "{key}");
        }
        let mark_keys = MarkKeys::beside(b"{user:7}:cart").unwrap();
        mark_keys.admit(b"{user:7}").unwrap();
        let error = mark_keys.admit(b"{user:8}").unwrap_err().to_string();
        assert!(error.contains("{user:8}") && error.contains("user:7"), "{error}");
        assert!(mark_keys.admit(b"fencepost:mark:{user:7}x").is_err());
    }

    #[test]
    fn lock_name_is_read_back_from_the_key() {
        for text in ["a", "{user:7}", "}", "a}b{c", "x*[y]"] {
            let mark_keys = MarkKeys::of(&name(text));
            assert_eq!(name_in(&mark_keys.mark(&name(text)), MARK), Some(name(text)));
            assert_eq!(name_in(&mark_keys.mark(&name(text)), RESETS), None);
        }
    }
}
