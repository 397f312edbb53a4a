//! The cases, a file per theme.

use std::future::Future;
use std::pin::Pin;

use fencepost_core::invariants::{Held, p1_no_overlap, p2_tokens_rise};
use fencepost_core::{LockName, Moment, Token};
use parking_lot::Mutex;

use super::scene::{Scene, Verdict};

mod bounds;
mod breaking;
mod cancel;
mod claims;
mod election;
mod election_faults;
mod exclusion;
mod expiry;
mod faults;
mod flight;
mod guarantees;
mod ledger;
mod names;
mod observers;
mod once;
mod once_faults;
mod owners;
mod queue;
mod tokens;
mod waiting;

/// A named thing that must be true of every store.
pub(super) struct Case {
    pub(super) name: &'static str,
    /// Whether it does things to the store's server that no other case should see.
    pub(super) own_server: bool,
    /// Whether it keeps the machine so busy that others, with their short leases, should not run beside it.
    pub(super) alone: bool,
    pub(super) run: for<'a> fn(&'a Scene) -> Pin<Box<dyn Future<Output = Verdict> + 'a>>,
}

/// Lists the cases of a theme under the names of their functions; `@own_server` before those that need one,
/// `@alone` before those that run alone.
macro_rules! cases {
    ($($(@$how:ident)? $name:ident),+ $(,)?) => {
        pub(super) const CASES: &[$crate::cases::Case] = &[
            $($crate::cases::Case {
                name: stringify!($name),
                own_server: matches!(concat!($(stringify!($how))?).as_bytes(), b"own_server"),
                alone: matches!(concat!($(stringify!($how))?).as_bytes(), b"alone"),
                run: |scene| Box::pin($name(scene)),
            }),+
        ];
    };
}
use cases;

pub(super) fn all() -> impl Iterator<Item = &'static Case> {
    [
        waiting::CASES,
        exclusion::CASES,
        owners::CASES,
        tokens::CASES,
        expiry::CASES,
        faults::CASES,
        cancel::CASES,
        queue::CASES,
        breaking::CASES,
        bounds::CASES,
        names::CASES,
        guarantees::CASES,
        ledger::CASES,
        election::CASES,
        observers::CASES,
        election_faults::CASES,
        once::CASES,
        once_faults::CASES,
        flight::CASES,
        claims::CASES,
    ]
    .into_iter()
    .flatten()
}

/// What a case saw of one lock: who held it from when until when, on the client's clock. A stretch begins
/// after the grant and ends before the release, or at the guard's own deadline, so it lies inside the
/// lease that the store kept: two that overlap are two leases that overlapped.
pub(super) struct History {
    name: LockName,
    held: Mutex<Vec<Held>>,
}

impl History {
    pub(super) fn of(name: &str) -> Verdict<Self> {
        Ok(Self { name: LockName::new(name)?, held: Mutex::default() })
    }

    pub(super) fn add(&self, token: Token, from: Moment, until: Moment) {
        let held = Held { name: self.name.clone(), token, from, until };
        self.held.lock().push(held);
    }

    pub(super) fn len(&self) -> usize {
        self.held.lock().len()
    }

    /// P1 and P2 over all that was seen.
    pub(super) fn check(&self) -> Verdict {
        let held = self.held.lock();
        p1_no_overlap(&held)?;
        Ok(p2_tokens_rise(&held)?)
    }
}
