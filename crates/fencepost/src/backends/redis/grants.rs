//! The grants that live in this process, and the breaks that the server publishes: whoever holds the grant that was
//! broken renews it at once, and the answer decides.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};

use fencepost_core::{LockName, OwnerId, Token};
use parking_lot::{Mutex, MutexGuard};

use super::keys::{Prefix, break_channel};
use crate::backend::LossSignal;
use crate::backends::bridge::Request;

/// All grants of one client.
#[derive(Debug)]
pub(in crate::backends) struct LiveGrants {
    prefix: Prefix,
    channel: String,
    /// There was a grant, so breaks are listened to from then on.
    wanted: AtomicBool,
    /// A server did not let us.
    refused: AtomicBool,
    live: Mutex<Live>,
}

#[derive(Debug, Default)]
struct Live {
    grants: HashMap<OwnerId, LiveGrant>,
    /// At how many of them those are dropped whose guard is gone.
    full: usize,
}

#[derive(Debug)]
struct LiveGrant {
    name: LockName,
    token: Token,
    loss: LossSignal,
}

impl LiveGrants {
    pub(in crate::backends) fn new(db: i64, prefix: Prefix) -> Self {
        let channel = break_channel(db, &prefix);
        let (wanted, refused) = (AtomicBool::new(false), AtomicBool::new(false));
        Self { prefix, channel, wanted, refused, live: Mutex::default() }
    }

    fn live(&self) -> MutexGuard<'_, Live> {
        self.live.lock()
    }

    /// Where breaks are published.
    pub(in crate::backends) fn channel(&self) -> &str {
        &self.channel
    }

    /// A grant was made. Whether it is the first one: then breaks are to be listened to.
    pub(in crate::backends) fn add(&self, request: &Request, token: Token) -> bool {
        if !request.loss.is_heard() {
            return false;
        }
        let (name, loss) = (request.name.clone(), request.loss.clone());
        let mut live = self.live();
        if live.grants.len() >= live.full {
            live.grants.retain(|_, grant| grant.loss.is_heard());
            live.full = (live.grants.len() * 2).max(64);
        }
        live.grants.insert(request.owner, LiveGrant { name, token, loss });
        drop(live);
        !self.wanted.load(Ordering::Relaxed) && !self.wanted.swap(true, Ordering::SeqCst)
    }

    /// The owner has released.
    pub(in crate::backends) fn remove(&self, owner: OwnerId) {
        self.live().grants.remove(&owner);
    }

    pub(super) fn wanted(&self) -> bool {
        self.wanted.load(Ordering::SeqCst)
    }

    pub(super) fn refuse(&self) {
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

    /// A break was published: "TOKEN KEY". A break is rare, so all grants are looked through.
    pub(super) fn broken(&self, message: &str) {
        let Some((token, key)) = message.split_once(' ') else { return };
        let Some(name) = key.strip_prefix(self.prefix.as_str()) else { return };
        let Some(token) = token.parse().ok().and_then(|token| Token::new(token).ok()) else {
            return;
        };
        let live = self.live();
        let hit = live
            .grants
            .values()
            .filter(|grant| grant.token == token && grant.name.as_str() == name);
        let hit: Vec<_> = hit.map(|grant| grant.loss.clone()).collect();
        drop(live);
        hit.iter().for_each(LossSignal::renew_now);
    }
}
