//! Which keys are in which slot of a Redis Cluster: one script reaches one slot.

use std::borrow::Cow;
use std::sync::LazyLock;

const SLOTS: u16 = 16384;
/// The lowest number in each slot. It takes some tens of thousands of hashes, so it is made once.
static LOWEST: LazyLock<Vec<u32>> = LazyLock::new(|| {
    let mut lowest = vec![None; SLOTS.into()];
    let mut open = SLOTS;
    for number in 0_u32.. {
        let slot = &mut lowest[usize::from(slot(number.to_string().as_bytes()))];
        if slot.is_none() {
            (*slot, open) = (Some(number), open - 1);
        }
        if open == 0 {
            break;
        }
    }
    lowest.into_iter().flatten().collect()
});

/// The part of a key that decides its slot: the text in the first braces, or all of it.
#[must_use]
pub fn hashed(key: &[u8]) -> &[u8] {
    let inner = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        let close = rest.iter().position(|byte| *byte == b'}')?;
        Some(&rest[..close])
    });
    inner.filter(|inner| !inner.is_empty()).unwrap_or(key)
}

/// The same, if it can be put in braces of ours.
#[must_use]
pub fn tag_of(key: &[u8]) -> Option<&[u8]> {
    Some(hashed(key)).filter(|tag| !tag.is_empty() && !tag.contains(&b'}'))
}

/// The slot of a key whose hashed part is this.
#[must_use]
pub fn slot(hashed: &[u8]) -> u16 {
    crc16(hashed) % SLOTS
}

/// `key` as a part of the keys beside it, in its own slot: `{key}`, or `{TAG}key` if braces in `key` would make that
/// another slot. TAG is its hash tag, or the lowest number in its slot if its tag cannot be put in braces.
#[must_use]
pub fn tagged(key: &str) -> String {
    match tag_of(key.as_bytes()).map(String::from_utf8_lossy) {
        Some(tag) if tag == key => format!("{{{key}}}"),
        Some(tag) => format!("{{{tag}}}{key}"),
        None => {
            let tag = LOWEST[usize::from(slot(hashed(key.as_bytes())))];
            format!("{{{tag}}}{key}")
        }
    }
}

/// The key that [`tagged`] was given.
#[must_use]
pub fn untagged(tagged: &str) -> Option<&str> {
    let (tag, key) = tagged.strip_prefix('{')?.split_once('}')?;
    Some(if key.is_empty() { tag } else { key })
}

/// A pattern that matches `tagged` of every key with this prefix, and some others: check with [`untagged`].
#[must_use]
pub fn tagged_pattern(kind: &str, start: &str) -> String {
    format!("{kind}{{*{}*", escaped(start))
}

/// Escapes text for a pattern, so that it matches only itself.
#[must_use]
pub fn escaped(text: &str) -> Cow<'_, str> {
    if !text.contains(['*', '?', '[', ']', '\\', '^']) {
        return text.into();
    }
    let mut escaped = String::new();
    for character in text.chars() {
        if matches!(character, '*' | '?' | '[' | ']' | '\\' | '^') {
            escaped.push('\\');
        }
        escaped.push(character);
    }
    escaped.into()
}

/// CRC-16/XMODEM, which is Redis's.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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
    fn tagged_key_is_in_the_slot_of_the_key() {
        let keys =
            ["a", "orders/7", "{a}", "{a}{a}", "x{user:7}:cart", "a{b", "{a{b}c", "}", "a}b"];
        let keys = keys.into_iter().chain(["{}a", "{}", "}{", "a}{b}", "{", "{0}", "ü{ö}"]);
        let mut seen = std::collections::HashSet::new();
        for key in keys {
            let beside = format!("fencepost:lock:{}", tagged(key));
            assert_eq!(slot(hashed(beside.as_bytes())), slot(hashed(key.as_bytes())), "{beside}");
            assert_eq!(untagged(&tagged(key)), Some(key));
            assert!(seen.insert(beside));
        }
        assert_eq!(tagged("orders/7"), "{orders/7}");
        assert_eq!(tagged("x{user:7}:cart"), "{user:7}x{user:7}:cart");
        assert_eq!((untagged("a"), untagged("{a")), (None, None));
    }
}
