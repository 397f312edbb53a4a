//! The fence of a file: what is the file's own. What all fences have in common is in `fences/`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;
mod kills;
mod paths;
mod sharing;
mod writes;
