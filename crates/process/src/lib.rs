//! Processes that the lab and the tests start, freeze, wake and kill.
//!
//! [`Process`] is the parent's side. A process that takes part in the protocol is a worker: it reads orders from its
//! standard input and writes to its standard output, both in lines of text, and [`worker`] is its side. What a line
//! means is the caller's own; the lab's lines are JSON.
//!
//! What must hold:
//!
//! - Nothing outlives its parent. A process is killed when its handle is dropped. A worker whose parent ends in any
//!   other way finds its standard input closed; if it is frozen, the kernel kills it.
//! - Nothing here knows the time: who waits for something asks again and again, until its own limit.

mod process;
mod spawner;
pub mod worker;

pub use process::Process;
