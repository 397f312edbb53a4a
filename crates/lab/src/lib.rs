//! The labs: a holder that freezes ([`pause`]), one that dies ([`crash`]), and a job that needs no lock ([`nolock`]).
//! They ship in the one binary.
//!
//! The workers are real processes: this same program, started with a hidden command ([`WORKER`]). They are frozen, woken
//! and killed by their process ids, and they always end with the lab: a worker is killed when its handle is dropped, the
//! kernel kills it when the lab's process ends, and it ends by itself when its standard input is closed.
//!
//! A lab runs in an [`Environment`], which its caller always creates and removes. What the lab creates in a user's
//! database is removed with it, or reported.
//!
//! A lab waits for conditions, each with a timeout, and checks what it observed. If the
//! [`Verdict`](verdict::Verdict) does not hold, the lab has shown nothing, and the command exits with 1.

pub mod crash;
mod environment;
mod error;
mod event;
pub mod nolock;
pub mod pause;
mod process;
mod resource;
pub mod timeline;
pub mod verdict;
mod worker;

pub use environment::{Environment, Leftovers, ResourceLocation};
pub use error::{LabError, Result};
pub use event::{Action, Actor, Event};
pub use worker::{WORKER, worker_main};
