//! Owner ids: secrets, one for each acquire.

use std::cell::RefCell;

use fencepost_core::OwnerId;

use crate::error::Result;
use crate::random;

/// Random bytes from the system, drawn in advance: one call for each id would be a good part of a lock's cost.
struct Drawn {
    bytes: [u8; 1024],
    used: usize,
    /// The process that drew them: a fork has the same bytes, and must not use them.
    process: u32,
}

thread_local! {
    static DRAWN: RefCell<Drawn> = const { RefCell::new(Drawn { bytes: [0; 1024], used: 1024, process: 0 }) };
}

/// An id that nobody can guess, for one acquire.
pub(crate) fn draw_owner() -> Result<OwnerId> {
    DRAWN.with_borrow_mut(|drawn| {
        let process = std::process::id();
        if drawn.process != process || drawn.used + 16 > drawn.bytes.len() {
            // If the next line fails, nothing may be used.
            drawn.used = drawn.bytes.len();
            random::fill(&mut drawn.bytes)?;
            (drawn.process, drawn.used) = (process, 0);
        }
        let mut bits = [0; 16];
        let next = &mut drawn.bytes[drawn.used..drawn.used + 16];
        bits.copy_from_slice(next);
        // An id is a secret: it does not stay in memory.
        next.fill(0);
        drawn.used += 16;
        Ok(OwnerId::from_bits(u128::from_ne_bytes(bits)))
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn owners_do_not_repeat() {
        let many: Vec<_> = (0..500).map(|_| super::draw_owner().unwrap().bits()).collect();
        let distinct: std::collections::HashSet<_> = many.iter().collect();
        assert_eq!(distinct.len(), many.len());
        assert!(!many.contains(&0));
    }
}
