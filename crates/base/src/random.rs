//! Random numbers from the system.

use std::time::Duration;

use crate::error::{Error, Result};

/// Fills `bytes`, for what must be unique or secret.
pub fn fill(bytes: &mut [u8]) -> Result<()> {
    getrandom::fill(bytes)
        .map_err(|error| Error::unreachable("the system gave no random numbers").with_source(error))
}

/// Random bytes, for what must be unique or secret.
pub fn bytes<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    fill(&mut bytes)?;
    Ok(bytes)
}

/// A number below `count`, so that clients do not all choose the same. Zero without random numbers, which does no harm.
pub fn below(count: usize) -> usize {
    getrandom::u32().map_or(0, |number| number as usize % count.max(1))
}

/// A random part of `span`, so that clients do not all act at once. Zero without random numbers, which does no harm.
pub fn part_of(span: Duration) -> Duration {
    span.mul_f64(f64::from(getrandom::u32().unwrap_or(0)) / f64::from(u32::MAX))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stay_within_their_bounds() {
        assert_eq!((below(0), below(1), part_of(Duration::ZERO)), (0, 0, Duration::ZERO));
        for _ in 0..1000 {
            assert!(below(3) < 3);
            assert!(part_of(Duration::from_secs(1)) <= Duration::from_secs(1));
        }
        assert_ne!(bytes::<16>().unwrap(), bytes::<16>().unwrap());
    }
}
