//! What a user can watch: a holder that freezes ([`pause`]), one that dies ([`crash`]), and a job that needs no
//! lock at all ([`nolock`]). It ships in the one binary.
//!
//! The workers are real processes: this same program, started with a hidden command ([`WORKER`]). They are
//! frozen, woken and killed by their process ids, and they end with the lab on every path: each is killed when
//! its handle is dropped, the kernel kills it when the lab ends, and a worker that finds its
//! standard input closed ends by itself.
//!
//! A lab takes place in a [`Scene`], which its caller sets and clears on every path: what the lab puts into a database
//! of the user's goes with it, or is named.
//!
//! A lab waits for conditions, each with a limit, and judges what it saw: an account whose
//! [`Verdict`](verdict::Verdict) does not hold shows nothing, and the command exits with another code.

pub mod crash;
mod event;
mod fault;
pub mod lanes;
pub mod nolock;
pub mod pause;
mod process;
mod resource;
mod scene;
pub mod verdict;
mod worker;

pub use event::{Event, What, Who};
pub use fault::{Fault, Result};
pub use scene::{At, Left, Scene, Setting};
pub use worker::{WORKER, worker_main};
