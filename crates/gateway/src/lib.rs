//! `fencepost fence proxy`: a gateway in front of any HTTP service that refuses a stale fencing token.
//!
//! A holder sends the token of its grant with each request: `Fencing-Token: 33`. The gateway keeps a mark per lock
//! name, and forwards no request whose token is below it. What must hold (P8):
//!
//! - Not one byte of a write without a token, or with a token below the mark, reaches the service. The mark is on disk
//!   before the first byte of a request leaves (`marks.rs`).
//! - The service gets one request per name at a time, in order of arrival. A write whose outcome is unknown blocks its
//!   name for the settle time (`permits.rs`): there was no response, or one that an intermediary may have sent while the
//!   service is still working (`status.rs`).
//! - A request is read completely before it waits for its name, so a sender that freezes delays nobody (`spool.rs`).
//! - There is one way to parse a request. A request that could be parsed in two ways is refused (`message.rs`, `path.rs`).
//!
//! The gateway cannot protect against clients that bypass it, requests that write what another lock guards, a service
//! that applies a request later than the settle time after it failed to respond, and an intermediary behind the gateway
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
mod permits;
mod problem;
mod rules;
mod server;
mod spool;
mod status;
mod time;
mod tls;
mod upstream;

pub use config::{AccessLog, Address, Config};
pub use pattern::Pattern;
pub use server::{Gateway, Stopped};
pub use status::StatusList;
