//! What must be true of any two grants, whatever the weather; and of two in fair weather.

/// One grant, with all that nobody but the simulator can know.
#[derive(Clone, Debug)]
pub(super) struct Grant {
    pub(super) token: u64,
    /// When its attempt began.
    pub(super) began: u64,
    /// When its client was told.
    pub(super) told: u64,
    /// Until when its client counts on it: to the deadline, the release or the crash.
    pub(super) until: u64,
    /// The nodes whose acceptance made it, and at which of its steps each accepted.
    pub(super) accepted: Vec<(usize, u64)>,
    /// For each node, the last of its steps, up to `told`, after which the owner's key stood there.
    pub(super) stood: Vec<Option<u64>>,
}

/// A promise over two grants, in either order.
#[derive(Clone)]
pub(super) struct Predicate {
    pub(super) name: &'static str,
    pub(super) holds: fn(&Grant, &Grant) -> bool,
}

/// A token is granted once.
pub(super) const UNIQUE: Predicate = Predicate { name: "unique", holds: |a, b| a.token != b.token };

/// A grant that was told before an attempt began is below what that attempt is granted.
pub(super) const REAL_TIME_ORDER: Predicate =
    Predicate { name: "real-time order", holds: |a, b| a.told >= b.began || a.token < b.token };

/// What the owner check gives: if A is above B, then A's key stood, before A was told, on one of the nodes
/// that made B, at or after the step in which that node accepted B.
///
/// A node has one key, so B's had gone from there. Hence: while the keys that made a grant stand, nobody is
/// told a higher token. And a client that has lost its keys, to a clock that leapt, say, and sleeps, can not
/// come back above whoever was granted meanwhile unless it takes a key from that one again.
///
/// It does not say that A has a majority when it is told, nor that B has lost its own: A's acceptances may
/// have come from keys that stood one after the other.
pub(super) const NO_REVENANT: Predicate = Predicate {
    name: "no revenant",
    holds: |a, b| {
        let after = |(node, step): &(usize, u64)| a.stood[*node] >= Some(*step);
        a.token <= b.token || b.accepted.iter().any(after)
    },
};

/// The times for which two clients count on their grants do not overlap.
pub(super) const EXCLUSION: Predicate =
    Predicate { name: "exclusion", holds: |a, b| a.until <= b.told || b.until <= a.told };

/// What holds of tokens in all weathers.
pub(super) const TOKENS: [Predicate; 3] = [UNIQUE, REAL_TIME_ORDER, NO_REVENANT];

/// The pairs that break it.
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
