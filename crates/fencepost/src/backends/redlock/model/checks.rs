//! What must hold for any two grants under every fault profile, and what only without clock jumps.

/// One grant, with everything that only the simulator knows.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) token: u64,
    /// When its attempt began.
    pub(super) began: u64,
    /// When its client learned of it.
    pub(super) reported: u64,
    /// Until when its client relies on it: the deadline, the release or the crash.
    pub(super) until: u64,
    /// The nodes whose acceptance made it, and the step at which each accepted.
    pub(super) accepted: Vec<(usize, u64)>,
    /// For each node, its last step, up to `reported`, after which the owner's key existed.
    pub(super) key_existed: Vec<Option<u64>>,
}

/// A promise about two grants, in either order.
#[derive(Clone)]
pub(super) struct Predicate {
    pub(super) name: &'static str,
    pub(super) holds: fn(&Grant, &Grant) -> bool,
}

/// A token is granted once.
pub(super) const UNIQUE: Predicate = Predicate { name: "unique", holds: |a, b| a.token != b.token };

/// A grant that was reported before an attempt began has a lower token than that attempt.
pub(super) const REAL_TIME_ORDER: Predicate =
    Predicate { name: "real-time order", holds: |a, b| a.reported >= b.began || a.token < b.token };

/// What the owner check ensures: if A is above B, then A's key existed, before A was reported, on one of the nodes
/// that made B, at or after the step in which that node accepted B.
///
/// A node has one key, so B's key was gone from there. Hence no higher token is reported while the keys of a grant
/// exist. A client that lost its keys, for example to a clock jump, and sleeps, cannot be granted above a later
/// holder unless it takes a key from that holder again.
///
/// It does not ensure that A has a majority when it is reported, nor that B has lost its own: A's acceptances may
/// come from keys that existed one after the other.
pub(super) const NO_GRANT_WITHOUT_KEYS: Predicate = Predicate {
    name: "no grant without keys",
    holds: |a, b| {
        let after = |(node, step): &(usize, u64)| a.key_existed[*node] >= Some(*step);
        a.token <= b.token || b.accepted.iter().any(after)
    },
};

/// The times in which two clients rely on their grants do not overlap.
pub(super) const EXCLUSION: Predicate =
    Predicate { name: "exclusion", holds: |a, b| a.until <= b.reported || b.until <= a.reported };

/// What holds for tokens under every fault profile.
pub(super) const TOKENS: [Predicate; 3] = [UNIQUE, REAL_TIME_ORDER, NO_GRANT_WITHOUT_KEYS];

/// The pairs that violate it.
pub(super) fn broken<'a>(
    predicate: &Predicate,
    grants: &'a [Grant],
) -> Vec<(&'a Grant, &'a Grant)> {
    let mut found = Vec::new();
    for (at, b) in grants.iter().enumerate() {
        for a in &grants[..at] {
            if !(predicate.holds)(a, b) || !(predicate.holds)(b, a) {
                found.push((a, b));
            }
        }
    }
    found
}
