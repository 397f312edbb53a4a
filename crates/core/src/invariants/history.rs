//! The promises over what an onlooker saw: who held what, from when until when. It says nothing about how
//! the store works, so the same two predicates judge every backend.

use super::{Violation, hold};
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

/// P1: no two grants of one name were in force at the same moment; one that was over at once counts as
/// made at that moment. In O(n log n).
pub fn p1_no_overlap(history: &[Held]) -> Result<(), Violation> {
    let mut reaches: Option<&Held> = None;
    for held in in_order(history) {
        let (name, token) = (&held.name, held.token);
        hold!("P1", held.from <= held.until, "token {token} on {name} ended before it began");
        match reaches {
            Some(earlier) if earlier.name == held.name => {
                let clear = earlier.until <= held.from;
                hold!("P1", clear, "tokens {} and {token} held {name} together", earlier.token);
            }
            _ => {}
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
            hold!("P2", rises, "{name} was granted with token {token} after {}", earlier.token);
        }
        last = Some(held);
    }
    Ok(())
}

/// By name, then by start. Of those that start together the first to end comes first, and of those that
/// do not last at all any order would do: the one that is kindest to the tokens is taken.
fn in_order(history: &[Held]) -> Vec<&Held> {
    let mut ordered: Vec<&Held> = history.iter().collect();
    ordered.sort_by_key(|held| (&held.name, held.from, held.until, held.token));
    ordered
}
