//! The fence of a file: what is the file's own. What all fences have in common is in `fences.rs`.

#![expect(clippy::unwrap_used, clippy::panic, reason = "a test may panic")]

#[path = "fence_file/common.rs"]
mod common;
#[path = "fence_file/kills.rs"]
mod kills;
#[path = "fence_file/paths.rs"]
mod paths;
#[path = "fence_file/sharing.rs"]
mod sharing;
#[path = "fence_file/writes.rs"]
mod writes;
