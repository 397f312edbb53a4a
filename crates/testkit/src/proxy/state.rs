//! The state that the proxy's handle and its thread share.
//!
//! The thread moves bytes only while it holds the lock and has checked the mode, so a new mode applies as soon as the lock is
//! free. The thread alone knows the sockets, so it closes them; a caller waits until that is done.

use std::collections::BTreeSet;
use std::sync::Arc;

use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::watch;

use super::{Mode, Trigger};

#[derive(Debug, Default)]
pub(super) struct Shared {
    state: Mutex<State>,
    /// Notifies the thread of a change.
    changes: watch::Sender<()>,
    /// Notifies callers that connections were closed.
    closed: Condvar,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) mode: Mode,
    pub(super) triggers: Vec<Trigger>,
    pub(super) fired: usize,
    pub(super) accepted: usize,
    /// The connections that exist, numbered as they were accepted.
    pub(super) open: BTreeSet<usize>,
    /// How often closing all was requested, and how often it was begun.
    closes_asked: usize,
    closes_begun: usize,
    /// Connections below this number are to be closed.
    doomed_below: usize,
    pub(super) ended: bool,
}

impl State {
    pub(super) fn is_doomed(&self, connection: usize) -> bool {
        connection < self.doomed_below
    }

    fn closed(&self, asked: usize) -> bool {
        let doomed_left = self.open.first().is_some_and(|first| self.is_doomed(*first));
        self.ended || (self.closes_begun >= asked && !doomed_left)
    }
}

impl Shared {
    pub(super) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    pub(super) fn changes(&self) -> watch::Receiver<()> {
        self.changes.subscribe()
    }

    pub(super) fn count(&self, what: impl Fn(&State) -> usize) -> usize {
        what(&self.lock())
    }

    pub(super) fn set_mode(&self, mode: Mode) {
        self.lock().mode = mode;
        self.changes.send_replace(());
    }

    pub(super) fn cut_on(&self, trigger: Trigger) {
        // No wake-up is needed: what was passed on is gone, and what is held back is checked later.
        self.lock().triggers.push(trigger);
    }

    pub(super) fn close_all(&self) {
        let mut state = self.lock();
        state.closes_asked += 1;
        let asked = state.closes_asked;
        self.changes.send_replace(());
        while !state.closed(asked) {
            self.closed.wait(&mut state);
        }
    }

    /// Ends the thread, or records that it has ended, so that no caller waits for it.
    pub(super) fn end(&self) {
        self.lock().ended = true;
        self.changes.send_replace(());
        self.closed.notify_all();
    }

    /// Begins to close what was requested. By now everything that waited was accepted.
    pub(super) fn begin_closing(&self) {
        let mut state = self.lock();
        if state.closes_begun < state.closes_asked {
            state.closes_begun = state.closes_asked;
            state.doomed_below = state.accepted;
            self.changes.send_replace(());
            self.closed.notify_all();
        }
    }

    /// Counts a new connection. None if it is to be refused.
    pub(super) fn admit(self: &Arc<Self>) -> Option<Admission> {
        let mut state = self.lock();
        let connection = state.accepted;
        state.accepted += 1;
        if state.mode == Mode::Refuse {
            return None;
        }
        state.open.insert(connection);
        Some(Admission { shared: Arc::clone(self), connection })
    }
}

/// One connection's entry; removed when its sockets are closed.
#[derive(Debug)]
pub(super) struct Admission {
    pub(super) shared: Arc<Shared>,
    pub(super) connection: usize,
}

impl Admission {
    pub(super) fn is_doomed(&self) -> bool {
        self.shared.lock().is_doomed(self.connection)
    }
}

impl Drop for Admission {
    fn drop(&mut self) {
        self.shared.lock().open.remove(&self.connection);
        self.shared.closed.notify_all();
    }
}
