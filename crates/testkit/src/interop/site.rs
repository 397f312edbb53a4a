//! A lock that several clients share: our command on its store, a directory, and the name.

use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::command::{LIMIT, Running, Store, outcome_of, wait_for, wait_for_text};

/// Our command on the shared store.
pub struct Site {
    /// For our own files.
    pub store: Store,
    url: String,
    /// A name of its own, because tests share servers.
    pub name: String,
}

impl Site {
    /// On the store of this URL.
    pub fn on(url: String) -> Self {
        static SITES: AtomicUsize = AtomicUsize::new(0);
        let name = format!("lock-{}", SITES.fetch_add(1, Ordering::Relaxed));
        Self { store: Store::new(), url, name }
    }

    /// The URL of the store.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The same lock, by another URL.
    pub fn by(&self, url: String) -> Self {
        Self { store: Store::new(), url, name: self.name.clone() }
    }

    /// `fencepost` on this store.
    pub fn fencepost(&self, arguments: &[&str]) -> Command {
        let mut command = self.store.fencepost(arguments);
        command.env("FENCEPOST_URL", &self.url);
        command
    }

    /// Runs it to its end. Returns exit code, stdout, stderr.
    pub fn run(&self, arguments: &[&str]) -> (Option<i32>, String, String) {
        outcome_of(&self.fencepost(arguments).output().unwrap())
    }

    /// Starts it; it is killed if the test ends first.
    pub fn start(&self, arguments: &[&str]) -> Running {
        let mut command = self.fencepost(arguments);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        Running::new(command)
    }

    /// The output of `fencepost show` for a lock.
    pub fn show_of(&self, name: &str) -> serde_json::Value {
        let (code, out, err) = self.run(&["show", "--json", name]);
        assert_eq!(code, Some(0), "{err}");
        serde_json::from_str(&out).unwrap()
    }

    /// The output of `fencepost show` for the lock.
    pub fn show(&self) -> serde_json::Value {
        self.show_of(&self.name)
    }

    /// Waits until the lock has this many waiters.
    pub fn wait_for_waiters(&self, waiters: u64) {
        wait_for("waiters", LIMIT, || self.show()["waiting"] == waiters);
    }

    /// Breaks the grant with `fencepost break`.
    pub fn break_it(&self) {
        let (code, out, err) = self.run(&["break", "--yes", &self.name]);
        assert_eq!(code, Some(0), "{out}{err}");
    }

    /// Acquires a lock with `fencepost acquire` and these arguments.
    pub fn acquire(&self, words: &[&str]) -> Ours {
        let (code, out, err) = self.run(&[&["acquire", "--json"], words].concat());
        assert_eq!(code, Some(0), "{err}");
        let grant: serde_json::Value = serde_json::from_str(&out).unwrap();
        let owner = grant["owner"].as_str().unwrap().to_owned();
        Ours { owner, token: grant["token"].as_u64().unwrap() }
    }

    /// Neither a former owner nor an unknown one may renew or release the lock.
    pub fn assert_anothers(&self, name: &str, owner: &str) {
        for verb in ["renew", "release"] {
            for owner in [owner, "0123456789abcdef0123456789abcdef"] {
                let (code, _, err) = self.run(&[verb, name, "--owner", owner]);
                assert_eq!(code, Some(76), "{verb}: {err}");
            }
        }
    }

    /// A caller that does not wait for a held lock, or not long enough, gets an error and runs nothing.
    pub fn assert_refused(&self, name: &str) {
        for wait in [&["--no-wait"][..], &["--wait", "200ms"]] {
            let line = [&["run"], wait, &[name, "--", "echo", "never"]].concat();
            let (code, out, err) = self.run(&line);
            assert_eq!((code, out.as_str()), (Some(75), ""), "{err}");
        }
    }

    /// The lock is held with this label, and neither a read nor a try takes it away. Returns the output of `fencepost show`.
    pub fn assert_held_by(&self, label: &str, token: u64) -> serde_json::Value {
        let seen = self.show();
        assert_eq!(seen["holder"]["label"], label, "{seen}");
        assert_eq!(seen["token"], token, "{seen}");
        let (code, out, err) = self.run(&["ls"]);
        assert_eq!(code, Some(0), "{err}");
        assert!(out.lines().any(|line| line.contains(&self.name) && line.contains(label)), "{out}");
        self.assert_refused(&self.name);
        assert_eq!(self.show()["token"], token, "we took nothing away");
        seen
    }

    /// One of our clients that holds the lock for two seconds at a time, with child processes. Returns their group and its
    /// token.
    pub fn start_group(&self) -> (Running, i32, u64) {
        let work = "echo $FENCEPOST_TOKEN > token; echo $$ > group; sleep 1000 & exec sleep 1000";
        let line = ["run", "--ttl", "2s", &self.name, "--", "sh", "-c", work];
        let holder = Running::new(self.fencepost(&line));
        let number = |file| wait_for_text(&self.store.path(file));
        (holder, number("group").parse().unwrap(), number("token").parse().unwrap())
    }
}

/// A lock that `fencepost acquire` took.
pub struct Ours {
    /// Who it was granted to.
    pub owner: String,
    /// Its token.
    pub token: u64,
}
