//! The fence suite on our own fences.
//!
//! `FENCEPOST_FENCE_ROUNDS=1000 cargo test --test fences -- counter` runs a thousand rounds of the counter.

mod file;
#[cfg(feature = "object-store")]
mod object;
#[cfg(feature = "postgres")]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "sqlite")]
mod sqlite;

use std::process::ExitCode;

use fencepost::{FencingToken, LockName, Token};

/// The argument of a fence, from the suite's parameters.
fn fencing(name: &LockName, token: Token) -> FencingToken {
    FencingToken::new(name.clone(), token)
}

fn main() -> ExitCode {
    fencepost_conformance::fences::main(vec![
        #[cfg(feature = "sqlite")]
        Box::new(sqlite::InFile::Marks),
        #[cfg(feature = "sqlite")]
        Box::new(sqlite::InFile::Column),
        #[cfg(feature = "postgres")]
        Box::new(postgres::InDatabase),
        #[cfg(feature = "redis")]
        Box::new(redis::InRedis::Alone),
        #[cfg(feature = "redis")]
        Box::new(redis::InRedis::Cluster),
        Box::new(file::InFiles),
        #[cfg(feature = "object-store")]
        Box::new(object::InStore { shape: object::Shape::Envelope, memory: false }),
        #[cfg(feature = "object-store")]
        Box::new(object::InStore { shape: object::Shape::Pointer, memory: false }),
        #[cfg(feature = "object-store")]
        Box::new(object::InStore { shape: object::Shape::Envelope, memory: true }),
        #[cfg(feature = "object-store")]
        Box::new(object::InStore { shape: object::Shape::Pointer, memory: true }),
    ])
}
