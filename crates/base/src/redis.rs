//! The way to a Redis server, for all that we keep there: locks, and the marks of fences.

pub mod config;
pub mod error;
pub mod server_info;

pub use self::config::{RedisUrl, RedlockUrl};
