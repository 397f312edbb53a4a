//! The cases, one file per theme.

use std::future::Future;
use std::pin::Pin;

use fencepost_core::invariants::{Held, p1_no_overlap, p2_tokens_rise};
use fencepost_core::{LockName, Moment, Token};
use parking_lot::Mutex;

use super::fixture::{Fixture, Verdict};

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
mod look_up;
mod names;
mod observers;
mod once;
mod once_faults;
mod owners;
mod queue;
mod tokens;
mod waiting;

/// Something that must be true of every store, or of every fence.
pub(super) struct Case<F = Fixture> {
    pub(super) name: &'static str,
    /// Whether it disturbs the store's server, so that no other case may share it.
    pub(super) own_server: bool,
    /// Whether it keeps the machine so busy that cases with short leases should not run beside it.
    pub(super) alone: bool,
    pub(super) run: for<'a> fn(&'a F) -> Pin<Box<dyn Future<Output = Verdict> + 'a>>,
}

/// Lists the cases of a theme, named after their functions. `@own_server` marks those that need a server of their own,
/// `@alone` those that run alone.
macro_rules! cases {
    ($($(@$how:ident)? $name:ident),+ $(,)?) => {
        pub(super) const CASES: &[$crate::cases::Case<Fixture>] = &[
            $($crate::cases::Case {
                name: stringify!($name),
                own_server: matches!(concat!($(stringify!($how))?).as_bytes(), b"own_server"),
                alone: matches!(concat!($(stringify!($how))?).as_bytes(), b"alone"),
                run: |fixture| Box::pin($name(fixture)),
            }),+
        ];
    };
}
pub(super) use cases;

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
        look_up::CASES,
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

/// Who held one lock from when until when, on the client's clock. An interval begins after the grant and ends before the
/// release, or at the guard's deadline. So it lies within the store's lease: if two intervals overlap, two leases did.
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

    /// Checks P1 and P2 over the whole history.
    pub(super) fn check(&self) -> Verdict {
        let held = self.held.lock();
        p1_no_overlap(&held)?;
        Ok(p2_tokens_rise(&held)?)
    }
}
