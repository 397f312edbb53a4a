//! What the tests of all stores on servers share: clients, waiting with a deadline, errors, the log.
//!
//! How long things take is each store's own matter: it is said beside the `mod` of this.

mod clients;
mod errors;
mod time;

use super::{LONG, POLL, SOON};

pub(crate) use clients::*;
pub(crate) use errors::*;
pub(crate) use time::*;
