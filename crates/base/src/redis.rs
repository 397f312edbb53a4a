//! Connections to a Redis server, for everything we keep there: locks, and the marks of fences.

pub mod address;
pub mod config;
pub mod error;
pub mod hash_tag;
mod options;
pub mod server_info;

pub use self::config::{RedisConfig, RedlockConfig, Resource};
pub use self::options::{RedisOptions, RedlockOptions};
