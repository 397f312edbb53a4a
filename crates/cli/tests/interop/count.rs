//! Processes of several makes do a read, a pause and a write on one file, which loses updates unless they
//! exclude each other.

use std::process::Stdio;
use std::sync::Mutex;
use std::time::Duration;

use fencepost_testkit::command::{Running, now};

use crate::scene::{Make, Scene};

/// How often each of our loops counts. The others go on until ours are through, so that they meet all along.
const ROUNDS: u64 = 10;

/// Says that it has the lock; reads the counter, dawdles, writes it back; then says who did, and under which
/// token. The workers do the same.
const INCREMENT: &str = "echo granted; value=$(cat counter); sleep 0.002; \
                         echo $((value + 1)) > counter; echo $FENCEPOST_TOKEN >> grants";

/// How it went.
pub(crate) struct Tally {
    pub(crate) rounds: u64,
    counted: u64,
    /// In their order: the token of a grant of ours, else the make.
    grants: Vec<String>,
    /// From the start of a command of ours to its grant, in rising order.
    waits: Vec<Duration>,
}

/// Has these count together, on one key but for the outsider's.
pub(crate) fn count(scene: &Scene, crew: &[Make], outsider: Option<Make>) -> Tally {
    let key = |make: Make| if Some(make) == outsider { "other" } else { "counter" };
    let (counter, grants) = (scene.store.path("counter"), scene.store.path("grants"));
    std::fs::write(&counter, "0\n").unwrap();
    let others = crew.iter().filter(|make| **make != Make::Fencepost);
    let mut workers: Vec<_> = others.map(|make| scene.worker(*make, key(*make), 10_000)).collect();
    for worker in &mut workers {
        worker.tell(&format!("count {}", scene.store.dir.path().display()));
    }
    let waits = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for _ in crew.iter().filter(|make| **make == Make::Fencepost) {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let wait = increment(scene, key(Make::Fencepost));
                    waits.lock().unwrap().push(wait);
                }
            });
        }
    });
    std::fs::write(scene.store.path("enough"), "").unwrap();
    let mut waits = waits.into_inner().unwrap();
    waits.sort();
    let mut rounds = waits.len() as u64;
    for worker in &mut workers {
        let answer = worker.answer();
        rounds += answer.parse::<u64>().expect(&answer);
    }
    let read = |path| std::fs::read_to_string(path).unwrap();
    let grants = read(grants).lines().map(str::to_owned).collect();
    Tally { rounds, counted: read(counter).trim().parse().unwrap(), grants, waits }
}

/// One round of ours; how long it took to the grant.
fn increment(scene: &Scene, key: &str) -> Duration {
    let before = now();
    let mut command = scene.fencepost(&["run", "--wait", "30s", key, "--", "sh", "-c", INCREMENT]);
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut running = Running::new(command);
    let said = running.lines().next().unwrap().unwrap();
    let wait = now().since(before);
    let (code, _, err) = running.end();
    assert_eq!((said.as_str(), code), ("granted", Some(0)), "{err}");
    wait
}

impl Tally {
    pub(crate) fn lost(&self) -> u64 {
        self.rounds - self.counted
    }

    /// How often the lock went from one make to another.
    fn changes(&self) -> usize {
        let make = |grant: &String| grant.parse().map_or(grant.clone(), |_: u64| "ours".to_owned());
        let makes: Vec<_> = self.grants.iter().map(make).collect();
        makes.windows(2).filter(|pair| pair[0] != pair[1]).count()
    }

    /// No update was lost, though the makes were at it at the same time; and our tokens rose all along.
    pub(crate) fn assert_excluded(&self) {
        assert_eq!(self.lost(), 0, "updates were lost");
        assert_eq!(self.grants.len() as u64, self.rounds);
        assert!(self.changes() >= 4, "they did not meet: {:?}", self.grants);
        let tokens: Vec<u64> = self.grants.iter().filter_map(|grant| grant.parse().ok()).collect();
        assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    }

    pub(crate) fn report(&self, place: &str) {
        let at = |percent: usize| self.waits[(self.waits.len() - 1) * percent / 100];
        println!(
            "{place}: {} grants, {} changes of make; ours waited p50 {:.1?}, p90 {:.1?}, p99 {:.1?}, \
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
