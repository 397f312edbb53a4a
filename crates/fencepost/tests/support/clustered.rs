//! What the tests of stores that are clusters share besides: guards that are renewed, members that fail, a
//! process that stands still.

mod guards;
mod ways;
mod worker;

use super::{SOON, connect, ms, until, within};

pub(crate) use guards::*;
pub(crate) use ways::*;
pub(crate) use worker::*;
