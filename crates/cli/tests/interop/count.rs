//! Clients of several kinds read a counter, pause and write it back, which loses updates unless they exclude each other.

use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use fencepost_testkit::command::{Running, now};

use crate::fixture::{ClientKind, Fixture};

/// How often each fencepost loop counts. The third-party clients count until these are done, so that all contend.
const ROUNDS: u64 = 10;

/// Prints that it has the lock, reads the counter, pauses, writes it back, and logs its token. The workers do the same.
const INCREMENT: &str = "echo granted; value=$(cat counter); sleep 0.002; \
                         echo $((value + 1)) > counter; echo $FENCEPOST_TOKEN >> grants";

pub(crate) struct CountResult {
    pub(crate) rounds: u64,
    counted: u64,
    /// In order: the token of a grant of fencepost, else the kind of client.
    grants: Vec<String>,
    /// From the start of a fencepost command to its grant, sorted.
    waits: Vec<Duration>,
}

/// Lets these clients count together, on one key except for the outsider's.
pub(crate) fn count(
    fixture: &Fixture,
    clients: &[ClientKind],
    outsider: Option<ClientKind>,
) -> CountResult {
    let key = |kind: ClientKind| if Some(kind) == outsider { "other" } else { "counter" };
    let (counter, grants) = (fixture.store.path("counter"), fixture.store.path("grants"));
    std::fs::write(&counter, "0\n").unwrap();
    let others = clients.iter().filter(|kind| **kind != ClientKind::Fencepost);
    let mut workers: Vec<_> =
        others.map(|kind| fixture.worker(*kind, key(*kind), 10_000)).collect();
    for worker in &mut workers {
        worker.send(&format!("count {}", fixture.store.dir.path().display()));
    }
    let waits = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in clients.iter().filter(|kind| **kind == ClientKind::Fencepost) {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let wait = increment(fixture, key(ClientKind::Fencepost));
                    waits.lock().unwrap().push(wait);
                }
            });
        }
    });
    std::fs::write(fixture.store.path("enough"), "").unwrap();
    let mut waits = waits.into_inner().unwrap();
    waits.sort();
    let mut rounds = waits.len() as u64;
    for worker in &mut workers {
        let answer = worker.answer();
        rounds += answer.parse::<u64>().expect(&answer);
    }
    let read = |path| std::fs::read_to_string(path).unwrap();
    let grants = read(grants).lines().map(str::to_owned).collect();
    CountResult { rounds, counted: read(counter).trim().parse().unwrap(), grants, waits }
}

/// One round of fencepost. Returns the time to the grant.
fn increment(fixture: &Fixture, key: &str) -> Duration {
    let before = now();
    let mut command =
        fixture.fencepost(&["run", "--wait", "30s", key, "--", "sh", "-c", INCREMENT]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::new(command);
    let said = running.lines().next().unwrap().unwrap();
    let wait = now().since(before);
    let (code, _, err) = running.end();
    assert_eq!((said.as_str(), code), ("granted", Some(0)), "{err}");
    wait
}

impl CountResult {
    pub(crate) fn lost(&self) -> u64 {
        self.rounds - self.counted
    }

    /// How often the lock went from one kind of client to another.
    fn changes(&self) -> usize {
        let kind = |grant: &String| grant.parse().map_or(grant.clone(), |_: u64| "ours".to_owned());
        let kinds: Vec<_> = self.grants.iter().map(kind).collect();
        kinds.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    /// No update was lost, the kinds of client contended, and the tokens of fencepost rose.
    pub(crate) fn assert_excluded(&self) {
        assert_eq!(self.lost(), 0, "updates were lost");
        assert_eq!(self.grants.len() as u64, self.rounds);
        assert!(self.changes() >= 4, "they did not contend: {:?}", self.grants);
        let tokens: Vec<u64> = self.grants.iter().filter_map(|grant| grant.parse().ok()).collect();
        assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    }

    pub(crate) fn report(&self, servers: &str) {
        let at = |percent: usize| self.waits[(self.waits.len() - 1) * percent / 100];
        println!(
            "{servers}: {} grants, {} changes of client kind; fencepost waited p50 {:.1?}, p90 {:.1?}, p99 {:.1?}, \
             max {:.1?}",
            self.rounds,
            self.changes(),
            at(50),
            at(90),
            at(99),
            at(100)
        );
    }
}
