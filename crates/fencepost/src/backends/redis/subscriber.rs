//! What the server publishes to this client: that the turn of one of its waiters has come, and which grant was broken.
//!
//! A break is addressed to the grant. Whoever of this process has it renews at once, and the answer decides. Both kinds
//! of message only shorten a wait: what is missed is found by the next poll, or the next renewal.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::{LockName, OwnerId, Token};
use parking_lot::Mutex;

use super::layout::{Prefix, break_channel, channel};
use crate::backend::{LossSignal, Request};
use crate::backends::ears::{Ears, client_id};
use crate::error::Result;

/// The waiters and the grants of one client.
#[derive(Debug)]
pub(in crate::backends) struct Subscriber {
    /// The client's name for itself: waiters are woken over a channel of that name.
    pub(in crate::backends) client: String,
    pub(in crate::backends) waiters: Arc<Ears>,
    /// Where breaks are published.
    pub(in crate::backends) break_channel: String,
    prefix: Prefix,
    /// There was a grant, so breaks are subscribed to from then on.
    wanted: AtomicBool,
    /// A server did not let us.
    refused: AtomicBool,
    grants: Mutex<Grants>,
}

#[derive(Debug, Default)]
struct Grants {
    live: HashMap<OwnerId, LiveGrant>,
    /// At how many of them those are dropped whose guard is gone.
    full: usize,
}

#[derive(Debug)]
struct LiveGrant {
    name: LockName,
    token: Token,
    loss: LossSignal,
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
            grants: Mutex::default(),
        }))
    }

    /// A grant was made. Whether it is the first one: then breaks are to be subscribed to.
    pub(in crate::backends) fn granted(&self, request: &Request, token: Token) -> bool {
        if !request.loss.is_heard() {
            return false;
        }
        let (name, loss) = (request.grant.name.clone(), request.loss.clone());
        let mut grants = self.grants.lock();
        if grants.live.len() >= grants.full {
            grants.live.retain(|_, grant| grant.loss.is_heard());
            grants.full = (grants.live.len() * 2).max(64);
        }
        grants.live.insert(request.grant.owner, LiveGrant { name, token, loss });
        drop(grants);
        !self.wanted.load(Ordering::Relaxed) && !self.wanted.swap(true, Ordering::SeqCst)
    }

    /// The owner has released.
    pub(in crate::backends) fn released(&self, owner: OwnerId) {
        self.grants.lock().live.remove(&owner);
    }

    /// On which channel waiters are woken.
    pub(super) fn wake_channel(&self) -> String {
        channel(&self.client)
    }

    /// Whether breaks are to be subscribed to.
    pub(super) fn wants_breaks(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    pub(super) fn breaks_refused(&self) {
        self.refused.store(true, Ordering::Relaxed);
    }

    /// For `explain`: what to expect of a break, if it is not what it should be.
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
        self.waiters.tell_all();
    }

    /// The server published this.
    pub(super) fn message(&self, channel: &str, message: &str) {
        if channel == self.break_channel {
            self.broken(message);
        } else if let Ok(owner) = message.parse::<OwnerId>() {
            self.waiters.tell(owner);
        }
    }

    /// A break was published: "TOKEN KEY". A break is rare, so all grants are looked through.
    fn broken(&self, message: &str) {
        let Some((token, key)) = message.split_once(' ') else { return };
        let Some(name) = key.strip_prefix(self.prefix.as_str()) else { return };
        let Some(token) = token.parse().ok().and_then(|token| Token::new(token).ok()) else {
            return;
        };
        let grants = self.grants.lock();
        let hit = grants
            .live
            .values()
            .filter(|grant| grant.token == token && grant.name.as_str() == name);
        let hit: Vec<_> = hit.map(|grant| grant.loss.clone()).collect();
        drop(grants);
        hit.iter().for_each(LossSignal::renew_now);
    }
}
