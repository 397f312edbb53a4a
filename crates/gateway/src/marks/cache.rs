//! A cache of the marks, bounded however many names there are.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use fencepost_core::{LockName, Token};
use parking_lot::{Mutex, MutexGuard};

const SHARDS: usize = 16;
/// Names per generation of a shard: half a million in all, some 50 MB.
const GENERATION: usize = 16 * 1024;

/// Names and their marks. A name that is not used while a generation fills up is dropped.
#[derive(Default)]
pub(super) struct MarkCache {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
}

#[derive(Default)]
struct Shard {
    young: HashMap<LockName, Token>,
    old: HashMap<LockName, Token>,
}

impl MarkCache {
    fn shard(&self, name: &LockName) -> MutexGuard<'_, Shard> {
        let shard = self.hasher.hash_one(name) as usize % SHARDS;
        self.shards[shard].lock()
    }

    /// Whether the mark is known to be this token.
    pub(super) fn contains(&self, name: &LockName, token: Token) -> bool {
        let mut shard = self.shard(name);
        if let Some(mark) = shard.young.get(name) {
            return *mark == token;
        }
        match shard.old.remove_entry(name) {
            Some((name, mark)) => {
                shard.put(name, mark);
                mark == token
            }
            None => false,
        }
    }

    /// Stores the mark that is on disk.
    pub(super) fn set(&self, name: LockName, mark: Token) {
        self.shard(&name).put(name, mark);
    }

    /// Another program has written to the database.
    pub(super) fn clear(&self) {
        for shard in &self.shards {
            *shard.lock() = Shard::default();
        }
    }
}

impl Shard {
    fn put(&mut self, name: LockName, mark: Token) {
        if self.young.len() >= GENERATION {
            self.old = std::mem::take(&mut self.young);
        }
        self.young.insert(name, mark);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cache_is_bounded_and_keeps_what_is_used() {
        let (cache, token) = (MarkCache::default(), Token::new(7).unwrap());
        let name = |n: usize| LockName::new(&format!("n/{n}")).unwrap();
        let used = name(usize::MAX);
        cache.set(used.clone(), token);
        for n in 0..3 * SHARDS * GENERATION {
            cache.set(name(n), token);
            if n % 1000 == 0 {
                assert!(cache.contains(&used, token));
            }
        }
        assert!(!cache.contains(&name(0), token), "an unused name was not dropped");
        assert!(!cache.contains(&used, Token::new(8).unwrap()));
        cache.clear();
        assert!(!cache.contains(&used, token));
    }
}
