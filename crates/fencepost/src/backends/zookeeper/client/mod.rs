//! A client of ZooKeeper (docs/decisions/0009): sessions that move from server to server, and what they can be asked.
//! It knows nothing of locks.
//!
//! `session` keeps one session up, `dial` finds a server for it, `conn` is one connection and `pipe` its bytes; `asks`
//! are the requests of a session, `ops` and `wire` what they are on the wire. `beat` says from when an answer counts,
//! `patience` for how long a server may be silent.

mod asks;
mod beat;
mod conn;
mod dial;
pub(super) mod ops;
mod patience;
mod pipe;
pub(super) mod session;
pub(super) mod wire;

pub(super) use self::dial::Servers;
pub(super) use self::ops::{Access, Make, Op};
pub(super) use self::pipe::Pipe;
pub(super) use self::session::{Kept, Key, OnShorter, Session};
pub(super) use self::wire::Stat;
