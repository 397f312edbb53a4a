//! How the holder of a broken grant is notified, and how `break` learns that the holder has confirmed.
//!
//! A break notifies [`BROKEN`] with the grant's token, in the transaction that breaks it: one sequence draws the tokens of
//! all names of a database, so that token identifies the grant, whichever process has it. The client that has it renews it
//! at once, and the reply ends it. Its release then notifies [`CONFIRMED`] with the same token, for which `break` waits.
//!
//! Only tokens are sent: any role of the database may listen to a channel, and owners are secrets. Any role may notify a
//! channel, too: a forged break costs a renewal; a forged confirmation makes `break` report a confirmation, and nothing
//! else depends on it.

use std::sync::Arc;

use fencepost_core::Token;

use crate::backends::live_grants::LiveGrants;
use crate::backends::waiter_registry::{Waiter, WaiterRegistry};

/// The channel of grants that were broken.
pub(super) const BROKEN: &str = "fencepost_broken";
/// The channel of confirmations.
pub(super) const CONFIRMED: &str = "fencepost_confirmed";

/// The grants of this client, and the breaks that wait for a confirmation.
#[derive(Debug, Default)]
pub(super) struct Breaks {
    pub(super) grants: LiveGrants<Token>,
    awaited: Arc<WaiterRegistry<Token>>,
}

impl Breaks {
    /// The server notified us on one of the channels.
    pub(super) fn notified(&self, channel: &str, payload: &str) {
        let Some(token) = payload.parse().ok().and_then(|number| Token::new(number).ok()) else {
            return;
        };
        if channel == BROKEN {
            self.grants.renew_now(|_, drawn| *drawn == token);
        } else if channel == CONFIRMED {
            self.awaited.notify(token);
        }
    }

    /// From now on a confirmation is received.
    pub(super) fn await_confirmation(&self, token: Token) -> Waiter<Token> {
        self.awaited.register(token)
    }
}
