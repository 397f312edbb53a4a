//! Where a mark lies: which keys are in which slot of a cluster.

use fencepost_base::{Error, Result};
use fencepost_core::LockName;
use redis::aio::ConnectionLike;

use super::failed;

/// What our keys begin with.
pub(super) const OURS: &[u8] = b"fencepost:";
pub(super) const MARK: &str = "fencepost:mark:";
pub(super) const RESETS: &str = "fencepost:resets:";

const SLOTS: u16 = 16384;
/// For names that can stand in no tag.
const ANYWHERE: &[u8] = b"fencepost";

/// A slot, by the tag that names it.
#[derive(Clone, Debug)]
pub(super) struct Place {
    tag: Vec<u8>,
    /// The caller has said where the data lies, so what lies elsewhere is a mistake.
    named: bool,
}

impl Place {
    /// Where a lock's mark lies if nobody says more: where the key of its name would.
    pub(super) fn of(name: &LockName) -> Self {
        let tag = tag_of(name.as_str().as_bytes()).unwrap_or(ANYWHERE).to_vec();
        Self { tag, named: false }
    }

    /// Where `key` lies.
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

    /// Refuses a key that no script can reach together with the mark.
    pub(super) fn admit(&self, key: &[u8]) -> Result<()> {
        if key.starts_with(OURS) {
            return Err(Error::invalid(format!(
                "the key {} is one of fencepost's own: name another",
                shown(key)
            )));
        }
        let (here, there) = (slot(&self.tag), slot(hashed(key)));
        if self.named && here != there {
            return Err(Error::invalid(format!(
                "the key {} lies in slot {there}, and the mark in slot {here}, beside {}: one step \
                 reaches one slot; give all keys that the lock protects one hash tag, like \
                 {{user:7}}:cart",
                shown(key),
                shown(&self.tag)
            )));
        }
        Ok(())
    }
}

/// Whether a word of a command begins like a key that the fence keeps.
pub(super) fn is_ours(word: &[u8]) -> bool {
    word.starts_with(MARK.as_bytes()) || word.starts_with(RESETS.as_bytes())
}

/// The part of a key that decides its slot: what stands in the first braces, or all of it.
fn hashed(key: &[u8]) -> &[u8] {
    let inner = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        Some(&rest[..close])
    });
    inner.filter(|inner| !inner.is_empty()).unwrap_or(key)
}

/// The same, if it can stand in braces of ours.
fn tag_of(key: &[u8]) -> Option<&[u8]> {
    Some(hashed(key)).filter(|tag| !tag.is_empty() && !tag.contains(&b'}'))
}

fn slot(hashed: &[u8]) -> u16 {
    crc16(hashed) % SLOTS
}

/// CRC-16/XMODEM, which is Redis's.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// A key as people read it, on one line and not too long.
pub(super) fn shown(key: &[u8]) -> String {
    let text = String::from_utf8_lossy(key);
    let start: String = text.chars().take(64).collect();
    let dots = if start.len() < text.len() { "..." } else { "" };
    format!("\"{}{dots}\"", start.escape_debug())
}

/// A key of ours that was found.
pub(super) struct Found {
    pub(super) key: Vec<u8>,
    pub(super) name: LockName,
}

/// All keys of a kind, of one lock or of all.
pub(super) async fn search(
    connection: &mut impl ConnectionLike,
    kind: &str,
    name: Option<&LockName>,
) -> Result<Vec<Found>> {
    let mut pattern = format!("{kind}{{*}}");
    match name {
        // A tag may hold anything: what the pattern lets through is looked at below.
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
    // SCAN may tell of a key twice.
    keys.sort_unstable();
    keys.dedup();
    let all = keys.into_iter().filter_map(|key| Some(Found { name: name_in(&key, kind)?, key }));
    Ok(all.filter(|found| name.is_none_or(|name| *name == found.name)).collect())
}

/// What stands behind the tag: the tag itself has no closing brace in it.
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
    fn slots_are_those_of_a_cluster() {
        assert_eq!(crc16(b"123456789"), 0x31c3);
        // As CLUSTER KEYSLOT says.
        assert_eq!(slot(hashed(b"foo")), 12182);
        assert_eq!(slot(hashed(b"{foo}:bar")), 12182);
        assert_eq!(hashed(b"{}foo"), b"{}foo");
        assert_eq!(hashed(b"a{b{c}d}"), b"b{c");
        assert_eq!(hashed(b"a{b"), b"a{b");
    }

    #[test]
    fn a_mark_lies_in_the_slot_of_its_data() {
        for key in ["{user:7}:cart", "user:7", "a{b", "{a{b}c"] {
            let place = Place::beside(key.as_bytes()).unwrap();
            for own in [place.mark(&name("x{y}z")), place.resets(&name("}{"))] {
                assert_eq!(slot(hashed(&own)), slot(hashed(key.as_bytes())), "{key}");
            }
            place.admit(key.as_bytes()).unwrap();
        }
        for key in ["", "{}user", "a}b"] {
            assert!(Place::beside(key.as_bytes()).is_err(), "{key}");
        }
        let place = Place::beside(b"{user:7}:cart").unwrap();
        place.admit(b"{user:7}").unwrap();
        let error = place.admit(b"{user:8}").unwrap_err().to_string();
        assert!(error.contains("{user:8}") && error.contains("user:7"), "{error}");
        assert!(place.admit(b"fencepost:mark:{user:7}x").is_err());
    }

    #[test]
    fn a_key_tells_its_name_again() {
        for text in ["a", "{user:7}", "}", "a}b{c", "x*[y]"] {
            let place = Place::of(&name(text));
            assert_eq!(name_in(&place.mark(&name(text)), MARK), Some(name(text)));
            assert_eq!(name_in(&place.mark(&name(text)), RESETS), None);
        }
    }
}
