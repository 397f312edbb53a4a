//! Runs `tests/transcripts/*.txt`: a lock scenario as text that a reviewer can read.
//!
//! A line that starts in the first column is a command, the indented lines below it are its result,
//! and `#` starts a comment. `UPDATE_TRANSCRIPTS=1 cargo test -p fencepost-core --test transcripts`
//! writes the present results; read the difference before you keep it.
//!
//! ```text
//! acquire NAME OWNER ttl=30s [try]     renew|release|cancel NAME OWNER     break NAME
//! expire NAME token=N|ticket=N         tick 10s (the clock runs, due leases expire)     show
//! ```
//! Every step is checked against the invariants as well, and the queue against the machine.

#![expect(clippy::unwrap_used, clippy::panic, reason = "all of this file is a test")]

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost_core::invariants::{Step, check};
use fencepost_core::{
    Command, Effect, ExpiryQueue, Label, Lease, LockName, Machine, Moment, OwnerId, Ticket, Token,
    Ttl,
};

#[test]
fn transcripts() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/transcripts");
    let mut files: Vec<PathBuf> =
        std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).collect();
    files.retain(|path| path.extension().is_some_and(|ext| ext == "txt"));
    files.sort();
    assert!(files.len() >= 12, "only {} transcripts were found", files.len());
    let update = std::env::var_os("UPDATE_TRANSCRIPTS").is_some();
    let mut wrong = String::new();
    for path in files {
        let expected = std::fs::read_to_string(&path).unwrap();
        let story = expected.starts_with("# ");
        assert!(story, "{} does not open with its story", path.display());
        let actual = replay(&expected, &path);
        if update && actual != expected {
            std::fs::write(&path, actual).unwrap();
        } else if actual != expected {
            let same = expected.lines().zip(actual.lines()).take_while(|(e, a)| e == a).count();
            let line = |text: &str| text.lines().nth(same).unwrap_or("(end)").to_owned();
            let (e, a) = (line(&expected), line(&actual));
            let at = format!("{}:{}", path.display(), same + 1);
            writeln!(wrong, "{at}\n  expected: {e}\n  got:      {a}").unwrap();
        }
    }
    assert!(wrong.is_empty(), "\n{wrong}");
}

/// The transcript with its present results.
fn replay(text: &str, path: &Path) -> String {
    let mut driver = Driver::default();
    let mut out = String::new();
    for (number, line) in text.lines().enumerate() {
        if line.starts_with(' ') {
            continue;
        }
        writeln!(out, "{line}").unwrap();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let at = format!("{}:{}", path.display(), number + 1);
        for shown in driver.run(line, &at) {
            writeln!(out, "  {shown}").unwrap();
        }
    }
    out
}

#[derive(Default)]
struct Driver {
    machine: Machine,
    expiry_queue: ExpiryQueue,
    now: Moment,
    owners: BTreeMap<OwnerId, String>,
}

impl Driver {
    fn run(&mut self, line: &str, at: &str) -> Vec<String> {
        let words: Vec<&str> = line.split_whitespace().collect();
        let lines = match words[..] {
            ["acquire", name, owner, ttl] => self.acquire(name, owner, ttl, true, at),
            ["acquire", name, owner, ttl, "try"] => self.acquire(name, owner, ttl, false, at),
            ["renew", name, owner] => {
                let (name, owner) = (lock(name), self.owner(owner));
                self.apply(&Command::Renew { name, owner }, at)
            }
            ["release", name, owner] => {
                let (name, owner) = (lock(name), self.owner(owner));
                self.apply(&Command::Release { name, owner }, at)
            }
            ["cancel", name, owner] => {
                let (name, owner) = (lock(name), self.owner(owner));
                self.apply(&Command::Cancel { name, owner }, at)
            }
            ["break", name] => self.apply(&Command::Break { name: lock(name) }, at),
            ["expire", name, lease] => {
                let lease = match lease.split_once('=') {
                    Some(("token", n)) => Lease::Held(n.parse::<Token>().unwrap()),
                    Some(("ticket", n)) => Lease::Queued(Ticket::new(n.parse().unwrap()).unwrap()),
                    _ => panic!("{at}: token=N or ticket=N"),
                };
                self.apply(&Command::Expire { name: lock(name), lease }, at)
            }
            ["tick", span] => self.tick(seconds(span), at),
            ["show"] => self.show(),
            _ => panic!("{at}: unknown command \"{line}\""),
        };
        if lines.is_empty() { vec!["(nothing)".to_owned()] } else { lines }
    }

    fn acquire(
        &mut self,
        name: &str,
        owner: &str,
        ttl: &str,
        queue: bool,
        at: &str,
    ) -> Vec<String> {
        let ttl = Ttl::new(seconds(ttl.strip_prefix("ttl=").unwrap())).unwrap();
        let label = Label::new(owner).unwrap();
        let (name, owner) = (lock(name), self.owner(owner));
        self.apply(&Command::Acquire { name, owner, ttl, label, queue }, at)
    }

    fn apply(&mut self, command: &Command, at: &str) -> Vec<String> {
        let before = self.machine.clone();
        let effects = self.machine.apply(command.clone());
        let (before, after) = (&before, &self.machine);
        let step = Step { before, command, effects: &effects, after };
        check(&step).unwrap_or_else(|violation| panic!("{at}: {violation}"));
        for effect in &effects {
            self.expiry_queue.observe(effect, self.now);
        }
        let waiting: usize = self.machine.locks().map(|(name, _)| self.machine.waiting(name)).sum();
        assert_eq!(
            self.expiry_queue.len(),
            self.machine.len() + waiting,
            "{at}: leases in the expiry queue"
        );
        effects.iter().map(|effect| self.shown(effect)).collect()
    }

    /// The clock stops at every deadline on the way, as for a caller that waits for `next`.
    fn tick(&mut self, span: Duration, at: &str) -> Vec<String> {
        let until = self.now + span;
        let mut lines = Vec::new();
        while let Some(next) = self.expiry_queue.next().filter(|next| *next <= until) {
            self.now = next;
            while let Some(expire) = self.expiry_queue.expired(next) {
                let clock = next.since(Moment::default());
                lines.extend(self.apply(&expire, at).iter().map(|l| format!("{l} at={clock:?}")));
            }
        }
        self.now = until;
        lines
    }

    fn show(&self) -> Vec<String> {
        let left = |lease| {
            let deadline =
                self.expiry_queue.deadline(lease).expect("a live lease is in the expiry queue");
            format!("{:?}", deadline.since(self.now))
        };
        let mut locks: Vec<_> = self.machine.locks().collect();
        locks.sort_by_key(|(name, _)| *name);
        let mut lines = Vec::new();
        for (name, grant) in locks {
            let token = grant.token;
            let left_of_grant = left(Lease::Held(token));
            lines.push(format!("{name}: {} token={token} left={left_of_grant}", grant.label));
            for waiter in self.machine.waiters(name) {
                let ticket = waiter.ticket;
                let left = left(Lease::Queued(ticket));
                lines.push(format!(
                    "  waits: {} ticket={} left={left}",
                    waiter.label,
                    ticket.get()
                ));
            }
        }
        if lines.is_empty() {
            lines.push("all free".to_owned());
        }
        lines
    }

    fn owner(&mut self, text: &str) -> OwnerId {
        let bits = text.bytes().fold(0, |bits: u128, byte| bits << 8 | u128::from(byte));
        let owner = OwnerId::from_bits(bits);
        self.owners.insert(owner, text.to_owned());
        owner
    }

    fn shown(&self, effect: &Effect) -> String {
        let who = |owner: &OwnerId| &self.owners[owner];
        match effect {
            Effect::Granted { owner, token, ttl, ticket, .. } => {
                let ttl = ttl.as_duration();
                let ticket = ticket.map_or(String::new(), |t| format!(" ticket={}", t.get()));
                format!("granted {} token={token} ttl={ttl:?}{ticket}", who(owner))
            }
            Effect::Queued { owner, ticket, ttl, .. } => {
                let ttl = ttl.as_duration();
                format!("queued {} ticket={} ttl={ttl:?}", who(owner), ticket.get())
            }
            Effect::Held { owner, by, .. } => format!("refused {}: held by token={by}", who(owner)),
            Effect::Renewed { owner, token, ttl, .. } => {
                format!("renewed {} token={token} ttl={:?}", who(owner), ttl.as_duration())
            }
            Effect::Released { owner, token, .. } => {
                format!("released {} token={token}", who(owner))
            }
            Effect::Withdrawn { owner, ticket, .. } => {
                format!("withdrawn {} ticket={}", who(owner), ticket.get())
            }
            Effect::NotHeld { owner, .. } => format!("not held by {}", who(owner)),
            Effect::Expired { owner, lease: Lease::Held(token), .. } => {
                format!("expired {} token={token}", who(owner))
            }
            Effect::Expired { owner, lease: Lease::Queued(ticket), .. } => {
                format!("expired {} ticket={}", who(owner), ticket.get())
            }
            Effect::Broken { owner, token, floor, .. } => {
                format!("broken {} token={token} floor={floor}", who(owner))
            }
            Effect::NotBroken { .. } => "not broken: free".to_owned(),
            Effect::Exhausted { owner, .. } => format!("exhausted, {} is not granted", who(owner)),
        }
    }
}

fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

fn seconds(text: &str) -> Duration {
    if let Some(millis) = text.strip_suffix("ms") {
        return Duration::from_millis(millis.parse().unwrap());
    }
    Duration::from_secs(text.strip_suffix('s').unwrap().parse().unwrap())
}
