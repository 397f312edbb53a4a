//! Processes that the lab and the tests start, freeze, wake and kill.
//!
//! [`Process`] is the parent's side. A worker is a process that follows the protocol: it reads orders from its standard
//! input, and writes reports to its standard output, both as lines of text. [`worker`] is the worker's side. The caller
//! defines the content of the lines; the lab uses JSON.
//!
//! What must hold:
//!
//! - No process outlives its parent. A process is killed when its handle is dropped. If the parent ends in another way,
//!   the worker's standard input is closed and it ends; if it is frozen, the kernel kills it.
//! - Nothing here uses a clock: a caller that waits polls until its own limit.

mod process;
mod spawner;
pub mod worker;

pub use process::Process;
