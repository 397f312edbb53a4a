//! How the holder of a broken grant learns of it, and how whoever broke it learns that the holder knows.
//!
//! A break notifies [`BROKEN`] with the grant's token, in the transaction that breaks it: one sequence draws the tokens of
//! all names of a database, so that token is this grant's alone, whichever process keeps it. The client that has it
//! renews it at once, and the answer ends it. Its release then notifies [`CONFIRMED`] with the same token, which whoever
//! broke it waits for.
//!
//! No more than tokens are sent: any role of the database may listen to a channel, and owners are secrets. Any role may
//! notify one, too: a break that is made up costs a renewal; a confirmation that is made up says of a holder that it
//! knows, and nothing depends on that but what `break` shows.

use std::collections::HashMap;
use std::sync::Arc;

use fencepost_core::{OwnerId, Token};
use parking_lot::Mutex;

use crate::backend::LossSignal;
use crate::backends::ears::{Ear, Ears};

/// The channel of grants that were broken.
pub(super) const BROKEN: &str = "fencepost_broken";
/// The channel of holders that know.
pub(super) const CONFIRMED: &str = "fencepost_confirmed";
/// So few grants are not looked through for those that are over.
const FEW: usize = 64;

/// The grants that this client keeps, and the breaks that it waits for.
#[derive(Debug, Default)]
pub(super) struct Breaks {
    grants: Mutex<Grants>,
    awaited: Arc<Ears<Token>>,
}

#[derive(Debug, Default)]
struct Grants {
    live: HashMap<OwnerId, (Token, LossSignal)>,
    /// How many there were when they were last looked through.
    kept: usize,
}

impl Breaks {
    /// A grant was made that lives in this process.
    pub(super) fn granted(&self, owner: OwnerId, token: Token, signal: LossSignal) {
        if !signal.is_heard() {
            return;
        }
        let mut grants = self.grants.lock();
        grants.live.insert(owner, (token, signal));
        // Most go with their release. The others are never more than those that live.
        if grants.live.len() > (2 * grants.kept).max(FEW) {
            grants.live.retain(|_, (_, signal)| signal.is_heard());
            grants.kept = grants.live.len();
        }
    }

    /// The grant is released. Its token, if it was one of ours.
    pub(super) fn released(&self, owner: OwnerId) -> Option<Token> {
        self.grants.lock().live.remove(&owner).map(|(token, _)| token)
    }

    /// Whether there is anything to be notified of.
    pub(super) fn any_lives(&self) -> bool {
        self.grants.lock().live.values().any(|(_, signal)| signal.is_heard())
    }

    /// The server notified us on one of the channels.
    pub(super) fn notified(&self, channel: &str, payload: &str) {
        let Some(token) = payload.parse().ok().and_then(|number| Token::new(number).ok()) else {
            return;
        };
        if channel == BROKEN {
            // Not under the lock: it leads into the heartbeat.
            let of =
                |(owned, signal): &(Token, LossSignal)| (*owned == token).then(|| signal.clone());
            let signal = self.grants.lock().live.values().find_map(of);
            if let Some(signal) = signal {
                signal.renew_now();
            }
        } else if channel == CONFIRMED {
            self.awaited.tell(token);
        }
    }

    /// From now on a confirmation is heard.
    pub(super) fn await_confirmation(&self, token: Token) -> Ear<Token> {
        self.awaited.open(token)
    }
}
