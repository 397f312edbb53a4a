//! A client of ZooKeeper (docs/decisions/0009): sessions that move from server to server, and their requests. It knows
//! nothing of locks.
//!
//! `session` keeps one session up, `dial` finds a server for it, `conn` is one connection and `frame_stream` its bytes; `requests`
//! are the requests of a session, `protocol` and `wire` their encoding. `lease_credit` says from when a renewal counts,
//! `adaptive_timeout` how long a server may stay silent.

mod adaptive_timeout;
mod conn;
mod dial;
mod frame_stream;
mod lease_credit;
pub(super) mod protocol;
mod requests;
pub(super) mod session;
pub(super) mod wire;

pub(super) use self::dial::Servers;
pub(super) use self::frame_stream::FrameStream;
pub(super) use self::protocol::{Access, CreateMode, Op};
pub(super) use self::session::{KeepAlive, Key, OnShorter, Session};
pub(super) use self::wire::Stat;
