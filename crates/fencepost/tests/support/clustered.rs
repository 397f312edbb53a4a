//! What the tests of stores that are clusters share besides: guards that are renewed, members that fail, a
//! process that stands still.

mod breaks;
mod guards;
mod ways;
mod worker;

use super::{SOON, connect, ms, now, pass, until, within};

pub(crate) use breaks::*;
pub(crate) use guards::*;
pub(crate) use ways::*;
pub(crate) use worker::*;
