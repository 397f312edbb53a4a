//! What the server publishes to this client: that one of its waiters can have the lock, and which grant was broken.
//!
//! A break names the grant. If this client has it, its heartbeat renews it at once, and the reply decides. Both kinds of
//! message only shorten a wait: the next poll, or the next renewal, finds what was missed.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::{LockName, OwnerId, Token};

use super::layout::{Prefix, break_channel, channel};
use crate::backend::{GrantId, Request};
use crate::backends::live_grants::LiveGrants;
use crate::backends::waiter_registry::{WaiterRegistry, client_id};
use crate::error::Result;

/// The waiters and the grants of one client.
#[derive(Debug)]
pub(in crate::backends) struct Subscriber {
    /// The client's unique name: waiters are woken over a channel with that name.
    pub(in crate::backends) client: String,
    pub(in crate::backends) waiters: Arc<WaiterRegistry>,
    /// The channel on which breaks are published.
    pub(in crate::backends) break_channel: String,
    prefix: Prefix,
    /// There was a grant, so the client subscribes to breaks from then on.
    wanted: AtomicBool,
    /// A server denied the subscription.
    refused: AtomicBool,
    grants: LiveGrants<(LockName, Token)>,
}

impl Subscriber {
    pub(in crate::backends) fn new(db: i64, prefix: &Prefix) -> Result<Arc<Self>> {
        Ok(Arc::new(Self {
            client: client_id()?,
            waiters: Arc::default(),
            break_channel: break_channel(db, prefix),
            prefix: prefix.clone(),
            wanted: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            grants: LiveGrants::default(),
        }))
    }

    /// Adds a grant. Returns whether it is the first one: then the client must subscribe to breaks.
    pub(in crate::backends) fn granted(&self, request: &Request, token: Token) -> bool {
        let GrantId { name, owner } = &request.grant;
        self.grants.insert(*owner, (name.clone(), token), request.loss.clone())
            && !self.wanted.load(Ordering::Relaxed)
            && !self.wanted.swap(true, Ordering::SeqCst)
    }

    /// The owner has released.
    pub(in crate::backends) fn released(&self, owner: OwnerId) {
        self.waiters.forget(owner);
        self.grants.remove(owner);
    }

    /// The channel on which waiters are woken.
    pub(super) fn wake_channel(&self) -> String {
        channel(&self.client)
    }

    /// Whether the client must subscribe to breaks.
    pub(super) fn wants_breaks(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    pub(super) fn breaks_refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// For `explain`: the effect of a missing right on breaks.
    pub(in crate::backends) fn lines(&self) -> Option<(&'static str, String)> {
        let refused = self.refused.load(Ordering::Relaxed);
        refused.then(|| {
            let line =
                "this user may not subscribe: a broken holder learns of it at its next renewal";
            ("break", line.to_owned())
        })
    }

    /// Messages may have been missed: all waiters poll.
    pub(super) fn reconnected(&self) {
        self.waiters.notify_all();
    }

    /// The server published this.
    pub(super) fn message(&self, channel: &str, message: &str) {
        if channel == self.break_channel {
            self.broken(message);
        } else if let Ok(owner) = message.parse::<OwnerId>() {
            self.waiters.notify(owner);
        }
    }

    /// A break was published: "TOKEN KEY".
    fn broken(&self, message: &str) {
        let Some((token, key)) = message.split_once(' ') else { return };
        let Some(name) = key.strip_prefix(self.prefix.as_str()) else { return };
        let Some(token) = token.parse().ok().and_then(|token| Token::new(token).ok()) else {
            return;
        };
        self.grants.renew_now(|_, (known, drawn)| *drawn == token && known.as_str() == name);
    }
}
