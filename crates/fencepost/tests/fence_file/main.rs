//! The fence of a file: what is specific to files. What all fences share is in `fences/`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

mod common;
mod killed_writers;
mod paths;
mod sharing;
mod writes;
