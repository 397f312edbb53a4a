//! The names that are held, in many hash maps instead of one.
//!
//! A hash map doubles now and then, and moves all it has in that one step. With a million names that took 0.3 to 0.5 s:
//! longer than the shortest lease. So names are spread over a fixed number of maps, and the longest step moves one of
//! them (docs/decisions/0012).

use std::collections::HashMap;
use std::hash::{BuildHasher as _, BuildHasherDefault, DefaultHasher, Hash};

/// A map in shards. Each has random keys of its own, because names come from callers; nothing that the machine answers
/// depends on the order of entries.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Table<K: Eq + Hash, V> {
    shards: Vec<HashMap<K, V>>,
    len: usize,
}

/// So few that an empty table is small, and so many that a shard of ten million names moves in some 20 ms.
const SHARDS: usize = 256;

/// Without random keys, so that equal tables have equal shards. Names that are chosen to fall into one shard cost what
/// they would in a plain hash map.
fn shard<K: Hash>(key: &K) -> usize {
    BuildHasherDefault::<DefaultHasher>::default().hash_one(key) as usize % SHARDS
}

impl<K: Eq + Hash, V> Table<K, V> {
    pub(crate) fn get(&self, key: &K) -> Option<&V> {
        self.shards[shard(key)].get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        self.shards[shard(key)].get_mut(key)
    }

    pub(crate) fn insert(&mut self, key: K, value: V) {
        let replaced = self.shards[shard(&key)].insert(key, value);
        self.len += usize::from(replaced.is_none());
    }

    pub(crate) fn remove(&mut self, key: &K) -> Option<V> {
        let removed = self.shards[shard(key)].remove(key)?;
        self.len -= 1;
        Some(removed)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.shards.iter().flatten()
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }
}

impl<K: Eq + Hash, V> Default for Table<K, V> {
    fn default() -> Self {
        Self { shards: (0..SHARDS).map(|_| HashMap::new()).collect(), len: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const COUNT: usize = 100 * SHARDS;

    #[test]
    fn shards_behave_like_one_table() {
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
    fn no_shard_is_much_fuller_than_the_others() {
        let mut table = Table::default();
        (0..COUNT).for_each(|key| table.insert(key, key));
        let fullest = table.shards.iter().map(HashMap::len).max().unwrap();
        assert!(fullest < 3 * COUNT / SHARDS, "{fullest} of {COUNT} in one shard");
    }
}
