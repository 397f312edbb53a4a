//! What is remembered of the marks: bounded, however many names there are.

use std::collections::HashMap;
use std::collections::hash_map::RandomState;
use std::hash::BuildHasher as _;

use fencepost_core::{LockName, Token};
use parking_lot::{Mutex, MutexGuard};

const SHARDS: usize = 16;
/// Names per generation of a shard: half a million in all, some 50 MB.
const GENERATION: usize = 16 * 1024;

/// Names and their marks. A name that is not used while a generation fills up is forgotten.
#[derive(Default)]
pub(super) struct Known {
    shards: [Mutex<Shard>; SHARDS],
    hasher: RandomState,
}

#[derive(Default)]
struct Shard {
    young: HashMap<LockName, Token>,
    old: HashMap<LockName, Token>,
}

impl Known {
    fn shard(&self, name: &LockName) -> MutexGuard<'_, Shard> {
        let shard = self.hasher.hash_one(name) as usize % SHARDS;
        self.shards[shard].lock()
    }

    /// Whether the mark is known to be this token.
    pub(super) fn is(&self, name: &LockName, token: Token) -> bool {
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

    /// This is the mark on disk.
    pub(super) fn set(&self, name: LockName, mark: Token) {
        self.shard(&name).put(name, mark);
    }

    /// Somebody else has written to the database.
    pub(super) fn forget(&self) {
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
    fn the_memory_is_bounded_and_what_is_used_stays() {
        let (known, token) = (Known::default(), Token::new(7).unwrap());
        let name = |n: usize| LockName::new(&format!("n/{n}")).unwrap();
        let used = name(usize::MAX);
        known.set(used.clone(), token);
        for n in 0..3 * SHARDS * GENERATION {
            known.set(name(n), token);
            if n % 1000 == 0 {
                assert!(known.is(&used, token));
            }
        }
        assert!(!known.is(&name(0), token), "forgotten, and asked of the database again");
        assert!(!known.is(&used, Token::new(8).unwrap()));
        known.forget();
        assert!(!known.is(&used, token));
    }
}
