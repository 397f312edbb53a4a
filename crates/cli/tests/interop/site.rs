//! Where makes meet, whatever the store: our command on it, a directory, and the name of a lock.

#![allow(dead_code, reason = "each test file uses its part")]

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};

use crate::common::{LIMIT, Store, heard, wait_for};
use crate::contender::{Contender, HOLD, Ways};
use crate::mixed::{INCREMENT, Way};
use crate::worker::Worker;

pub(crate) struct Site {
    pub(crate) store: Store,
    url: String,
    /// Nobody else's: tests share servers.
    pub(crate) name: String,
}

impl Site {
    pub(crate) fn on(url: String) -> Self {
        static SITES: AtomicUsize = AtomicUsize::new(0);
        let name = format!("lock-{}", SITES.fetch_add(1, Ordering::Relaxed));
        Self { store: Store::new(), url, name }
    }

    /// The same lock, by another URL.
    pub(crate) fn by(&self, url: String) -> Self {
        Self { store: Store::new(), url, name: self.name.clone() }
    }

    /// `fencepost` on this store.
    pub(crate) fn fencepost(&self, arguments: &[&str]) -> Command {
        let mut command = self.store.fencepost(arguments);
        command.env("FENCEPOST_URL", &self.url);
        command
    }

    /// Runs it to its end; exit code, stdout, stderr.
    pub(crate) fn say(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        heard(&self.fencepost(arguments).output().unwrap())
    }

    /// What `fencepost show` says of a lock.
    pub(crate) fn show_of(&self, name: &str) -> serde_json::Value {
        let (code, out, err) = self.say(&["show", "--json", name]);
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// What it says of the lock.
    pub(crate) fn show(&self) -> serde_json::Value {
        self.show_of(&self.name)
    }

    /// Waits until so many stand in line.
    pub(crate) fn wait_for_waiters(&self, waiters: u64) {
        wait_for("waiters", LIMIT, || self.show()["waiting"] == waiters);
    }

    /// Has `fencepost break` end the grant.
    pub(crate) fn break_it(&self) {
        let (code, out, err) = self.say(&["break", "--yes", &self.name]);
        assert_eq!(code, Some(0), "{out}{err}");
    }

    /// One of ours that holds a lock as soon as it gets it.
    pub(crate) fn ours(&self, name: &str, ttl: u32) -> Contender {
        let ttl = format!("{ttl}s");
        let command = self.fencepost(&["run", "--ttl", &ttl, name, "--", "sh", "-c", HOLD]);
        Contender::new(Worker::spawn(command, self.store.dir.path()), Ways::FENCEPOST)
    }

    /// One of ours that counts under a lock.
    pub(crate) fn our_way<'a>(&'a self, name: &'a str) -> Way<'a> {
        Way::Ours(Box::new(move || {
            let script = format!("token=$FENCEPOST_TOKEN; {INCREMENT}");
            self.fencepost(&["run", "--wait", "30s", name, "--", "sh", "-c", &script])
        }))
    }
}

/// What there is, or a new one if the last test that used it is over.
pub(crate) fn shared<T>(slot: &Mutex<Weak<T>>, start: impl FnOnce() -> T) -> Arc<T> {
    let mut slot = slot.lock().unwrap_or_else(PoisonError::into_inner);
    slot.upgrade().unwrap_or_else(|| {
        let new = Arc::new(start());
        *slot = Arc::downgrade(&new);
        new
    })
}
