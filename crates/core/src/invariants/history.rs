//! The promises over a history of grants, as seen from outside: who held what, from when until when. They do not depend on
//! how the store works, so the same two predicates check every backend.

use super::{Violation, ensure};
use crate::{LockName, Moment, Token};

/// One grant as seen from outside: it was in force from `from` on, and no longer at `until`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The locked name.
    pub name: LockName,
    /// Its fencing token.
    pub token: Token,
    /// The first moment.
    pub from: Moment,
    /// The moment after the last.
    pub until: Moment,
}

/// P1: no two grants of one name were in force at the same moment. A grant that ended at once counts as that moment. In
/// O(n log n).
pub fn p1_no_overlap(history: &[Held]) -> Result<(), Violation> {
    let mut reaches: Option<&Held> = None;
    for held in in_order(history) {
        let (name, token) = (&held.name, held.token);
        ensure!("P1", held.from <= held.until, "token {token} on {name} ended before it began");
        if let Some(earlier) = reaches.filter(|earlier| earlier.name == held.name) {
            let clear = earlier.until <= held.from;
            ensure!("P1", clear, "tokens {} and {token} held {name} together", earlier.token);
        }
        // Everything before it has ended when it starts, so it reaches furthest.
        reaches = Some(held);
    }
    Ok(())
}

/// P2: of two grants of one name the later has the higher token. In O(n log n).
pub fn p2_tokens_rise(history: &[Held]) -> Result<(), Violation> {
    let mut last: Option<&Held> = None;
    for held in in_order(history) {
        if let Some(earlier) = last.filter(|earlier| earlier.name == held.name) {
            let (name, token) = (&held.name, held.token);
            let rises = earlier.token < token;
            ensure!("P2", rises, "{name} was granted with token {token} after {}", earlier.token);
        }
        last = Some(held);
    }
    Ok(())
}

/// By name, then by start. Of grants that start together the one that ends first comes first; grants without duration may
/// have any order, so they are sorted by token.
fn in_order(history: &[Held]) -> Vec<&Held> {
    let mut ordered: Vec<&Held> = history.iter().collect();
    ordered.sort_by_key(|held| (&held.name, held.from, held.until, held.token));
    ordered
}
