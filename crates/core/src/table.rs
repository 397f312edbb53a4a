//! A hash table that never stops to move all it has.
//!
//! A hash table doubles now and then, and with a million entries that one step took a quarter of a second:
//! longer than the shortest lease. Here the entries are spread over many small tables, and one more is
//! added, and half of one other moved into it, whenever they are full on average (linear hashing). So the
//! longest step moves some hundred entries, however many there are.

use std::collections::HashMap;
use std::hash::{BuildHasher, Hash, RandomState};

#[derive(Clone, Debug)]
pub(crate) struct Table<K, V> {
    // The keys of the hash are random, because names come from callers. Nothing that the machine or the
    // wheel answers depends on the order of entries.
    hash: RandomState,
    parts: Vec<HashMap<K, V, RandomState>>,
    len: usize,
}

/// Entries per part, on average, before there is one more. Those that are next to be split have up to
/// twice as many, which still fits 1024 buckets.
const FULL: usize = 400;

/// The one of `parts` where a key belongs. The first of them have been split already in this round, so
/// one more bit of the hash counts for them and for what was split off.
fn part<K: Hash>(hash: &RandomState, parts: usize, key: &K) -> usize {
    // Inside a part the lowest bits of the same hash choose the bucket and the highest seven mark it, so
    // the part is chosen by those between.
    let bits = (hash.hash_one(key) >> 32) as usize;
    let round = parts.next_power_of_two();
    let part = bits % round;
    if part < parts { part } else { part - round / 2 }
}

impl<K: Eq + Hash, V> Table<K, V> {
    fn part(&self, key: &K) -> usize {
        part(&self.hash, self.parts.len(), key)
    }

    /// Adds a part, and moves into it what belongs there now; all of that is in one other part.
    fn split(&mut self) {
        let new = self.parts.len();
        let old = new - (1 << new.ilog2());
        let mut moved = HashMap::with_capacity_and_hasher(FULL, self.hash.clone());
        moved.extend(self.parts[old].extract_if(|key, _| part(&self.hash, new + 1, key) == new));
        self.parts[old].shrink_to_fit();
        self.parts.push(moved);
    }

    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.parts[self.part(key)].get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let part = self.part(key);
        self.parts[part].get_mut(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        let part = self.part(&key);
        let new = self.parts[part].insert(key, value).is_none();
        self.len += usize::from(new);
        if self.len > self.parts.len() * FULL {
            self.split();
        }
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let part = self.part(key);
        let removed = self.parts[part].remove(key)?;
        self.len -= 1;
        Some(removed)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.parts.iter().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl<K, V> Default for Table<K, V> {
    fn default() -> Self {
        let hash = RandomState::new();
        Self { parts: vec![HashMap::with_hasher(hash.clone())], hash, len: 0 }
    }
}

/// Equal in what they hold: two tables hash with different keys.
impl<K: Eq + Hash, V: PartialEq> PartialEq for Table<K, V> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().all(|(key, value)| other.get(key) == Some(value))
    }
}

impl<K: Eq + Hash, V: Eq> Eq for Table<K, V> {}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 25 * FULL;

    #[test]
    fn it_is_one_table_to_whoever_uses_it() {
        let mut table = Table::default();
        for key in 0..COUNT {
            table.insert(key, key);
            table.insert(key, key + 1);
            assert_eq!(table.get(&key), Some(&(key + 1)));
            assert_eq!(table.get(&(key / 2)), Some(&(key / 2 + 1)), "after {key}");
        }
        assert_eq!((table.len(), table.iter().count()), (COUNT, COUNT));
        let mut other = Table::default();
        for key in (0..COUNT).rev() {
            other.insert(key, key + 1);
        }
        assert_eq!(table, other);
        *other.get_mut(&7).unwrap() = 0;
        assert_ne!(table, other);
        for key in 0..COUNT {
            assert_eq!(table.remove(&key), Some(key + 1));
            assert_eq!(table.remove(&key), None);
        }
        assert_eq!((table.len(), table.iter().count()), (0, 0));
    }

    #[test]
    fn no_part_is_much_fuller_than_the_others() {
        let mut table = Table::default();
        for key in 0..COUNT {
            table.insert(key, key);
            let fullest = table.parts.iter().map(HashMap::len).max().unwrap();
            assert!(fullest < 3 * FULL, "{fullest} of {key} in one part");
        }
        assert_eq!(table.parts.len(), COUNT / FULL);
    }
}
