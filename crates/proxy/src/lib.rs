//! `fencepost fence proxy`: a gateway in front of any HTTP service that refuses a stale fencing token.
//!
//! A holder sends the token of its grant with each request: `Fencing-Token: 33`. The proxy keeps a mark per lock name, and
//! lets no request through whose token is below it. What must hold (P8):
//!
//! - A request that writes and brings no token, or a token below the mark, never reaches the service: not even a part
//!   of it. The mark is on disk before the first byte of a request leaves (`marks.rs`).
//! - Requests of one name are at the service one at a time, in the order in which they came, and a write whose end is not
//!   known keeps its name busy for the settle time (`turns.rs`): there was no response, or one that an intermediary may have
//!   made while the service goes on (`status.rs`).
//! - A request is read whole before it takes its turn, so a sender that freezes keeps nobody waiting (`spool.rs`).
//! - There is one way to read a request, and a request that could be read in two is refused (`message.rs`, `path.rs`).
//!
//! That ends with writers that go round the proxy, with requests that write what another lock guards, with a service
//! that applies a request later than the settle time after it failed to answer, and with an intermediary behind the proxy
//! that sends a request twice.

mod admin;
mod config;
mod files;
mod gate;
mod h1;
mod h2;
mod log;
mod marks;
mod message;
mod metrics;
mod path;
mod pattern;
mod problem;
mod rules;
mod server;
mod spool;
mod status;
mod time;
mod tls;
mod turns;
mod upstream;

pub use config::{AccessLog, Address, Config};
pub use pattern::Pattern;
pub use server::{Proxy, Stopped};
pub use status::StatusList;
