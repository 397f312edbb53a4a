//! Processes of several clients do a read, a pause and a write on one file, which loses updates unless they exclude each
//! other. Each appends a line with its token when it begins and when it ends. The kernel orders these lines, so no
//! clock is needed.

use std::fs::{OpenOptions, read_to_string, write};
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::thread::{ScopedJoinHandle, sleep};
use std::time::Duration;

use super::contender::Contender;
use super::site::Site;
use super::worker::Worker;

/// A pause that costs little.
pub const SHORT: Duration = Duration::from_millis(2);
/// A pause in which clients without a lock collide.
pub const LONG: Duration = Duration::from_millis(30);

/// How often each of our loops counts. The others continue until ours end, so that they collide throughout.
const ROUNDS: u64 = 6;

/// The command to run under the lock, in the directory of the files, with `who`, `token` and `pause` set.
/// The workers do the same.
pub const INCREMENT: &str = "echo $who $token in >> record; value=$(cat counter); sleep $pause; \
                                    echo $((value + 1)) > counter; echo $who $token out >> record";

/// One loop.
pub struct Party<'a> {
    /// Its name in the record.
    pub who: String,
    /// How it counts.
    pub kind: PartyKind<'a>,
}

/// How a party counts.
pub enum PartyKind<'a> {
    /// A command that takes the lock, runs [`INCREMENT`] and releases it. It sets the pace.
    Ours(Box<dyn Fn() -> Command + Send + 'a>),
    /// The same for a third-party client, or without a lock.
    Command(Box<dyn Fn() -> Command + Send + 'a>),
    /// It only holds the lock; the test does the work.
    Holder(Box<dyn Fn() -> Contender + Send + 'a>),
    /// A worker that counts by itself.
    Worker(Worker),
}

impl Party<'_> {
    /// A party without a lock.
    pub fn unlocked() -> Self {
        let kind = PartyKind::Command(Box::new(|| {
            let mut command = Command::new("sh");
            command.args(["-c", INCREMENT]).env("token", "0");
            command
        }));
        Self { who: "unlocked".into(), kind }
    }
}

impl Site {
    /// One of our clients that counts under a lock.
    pub fn our_party_kind<'a>(&'a self, name: &'a str) -> PartyKind<'a> {
        PartyKind::Ours(Box::new(move || {
            let script = format!("token=$FENCEPOST_TOKEN; {INCREMENT}");
            self.fencepost(&["run", "--wait", "30s", name, "--", "sh", "-c", &script])
        }))
    }
}

/// The result.
pub struct CountResult {
    rounds: u64,
    counted: u64,
    /// Who, token, `in` or `out`.
    record: Vec<(String, u64, bool)>,
}

/// Runs these parties together in a directory.
pub fn count(directory: &Path, pause: Duration, parties: Vec<Party<'_>>) -> CountResult {
    write(directory.join("counter"), "0\n").unwrap();
    let enough = &directory.join("enough");
    let until_enough = |once: &dyn Fn()| {
        let mut rounds = 0;
        while !enough.exists() {
            once();
            rounds += 1;
        }
        rounds
    };
    let mut rounds = 0;
    std::thread::scope(|scope| {
        let (mut ours, mut others, mut workers) = (Vec::new(), Vec::new(), Vec::new());
        for Party { who, kind } in parties {
            match kind {
                PartyKind::Ours(command) => ours.push(scope.spawn(move || {
                    for _ in 0..ROUNDS {
                        increment(command(), &who, pause, directory);
                    }
                })),
                PartyKind::Command(command) => {
                    others.push(scope.spawn(move || {
                        until_enough(&|| increment(command(), &who, pause, directory))
                    }));
                }
                PartyKind::Holder(hold) => others.push(scope.spawn(move || {
                    until_enough(&|| increment_under(hold(), &who, pause, directory))
                })),
                PartyKind::Worker(mut worker) => {
                    let pause = pause.as_millis();
                    worker.send(&format!("count {} {who} {pause}", directory.display()));
                    workers.push(worker);
                }
            }
        }
        // If one of ours fails, the others must end too.
        let ours: Vec<_> = ours.into_iter().map(ScopedJoinHandle::join).collect();
        write(enough, "").unwrap();
        for ours in ours {
            ours.unwrap();
            rounds += ROUNDS;
        }
        rounds += others.into_iter().map(|other| other.join().unwrap()).sum::<u64>();
        for worker in &mut workers {
            let answer = worker.answer();
            rounds += answer.parse::<u64>().expect(&answer);
        }
    });
    let counted = read_to_string(directory.join("counter")).unwrap().trim().parse().unwrap();
    let record = read_to_string(directory.join("record")).unwrap();
    let record = record.lines().map(|line| {
        let words: Vec<_> = line.split(' ').collect();
        let [who, token, moment] = words[..] else { unreachable!("{line}") };
        (who.to_owned(), token.parse().expect(line), moment == "in")
    });
    CountResult { rounds, counted, record: record.collect() }
}

fn increment(mut command: Command, who: &str, pause: Duration, directory: &Path) {
    command.current_dir(directory);
    command.env("who", who).env("pause", pause.as_secs_f64().to_string());
    let output = command.output().unwrap();
    assert!(output.status.success(), "{who}: {output:?}");
}

#[expect(clippy::disallowed_methods, reason = "no other party may enter during this pause")]
fn increment_under(mut holder: Contender, who: &str, pause: Duration, directory: &Path) {
    let token = holder.granted();
    let record = |moment| {
        let mut file =
            OpenOptions::new().create(true).append(true).open(directory.join("record")).unwrap();
        file.write_all(format!("{who} {token} {moment}\n").as_bytes()).unwrap();
    };
    let counter = directory.join("counter");
    record("in");
    let value: u64 = read_to_string(&counter).unwrap().trim().parse().unwrap_or(0);
    sleep(pause);
    write(&counter, format!("{}\n", value + 1)).unwrap();
    record("out");
    holder.release();
}

impl CountResult {
    fn lost(&self) -> u64 {
        self.rounds - self.counted
    }

    /// How often a party entered while another was inside.
    fn overlaps(&self) -> usize {
        let mut inside: Vec<(&str, u64)> = Vec::new();
        let mut overlaps = 0;
        for (who, token, comes) in &self.record {
            if *comes {
                overlaps += usize::from(!inside.is_empty());
                inside.push((who, *token));
            } else {
                inside.retain(|one| *one != (who, *token));
            }
        }
        overlaps
    }

    /// The parties that entered, in order.
    fn grants(&self) -> Vec<(&str, u64)> {
        let came = self.record.iter().filter(|(_, _, comes)| *comes);
        came.map(|(who, token, _)| (&**who, *token)).collect()
    }

    /// How often the lock went from one party to another.
    fn changes(&self) -> usize {
        self.grants().windows(2).filter(|pair| pair[0].0 != pair[1].0).count()
    }

    /// No update was lost and no party entered while another was inside, though all ran at the same time, and the tokens of all
    /// clients rose together.
    pub fn assert_excluded(&self) {
        assert_eq!(self.lost(), 0, "updates were lost");
        assert_eq!(self.overlaps(), 0, "{:?}", self.record);
        let grants = self.grants();
        assert_eq!(grants.len() as u64, self.rounds);
        assert!(self.changes() >= 10, "they did not contend: {grants:?}");
        assert!(grants.is_sorted_by(|earlier, later| earlier.1 < later.1), "{grants:?}");
    }

    /// The control: here the checks above would fail.
    pub fn assert_not_excluded(&self) {
        assert!(self.lost() > 0 && self.overlaps() > 0, "the check proves nothing");
    }

    /// Prints it.
    pub fn report(&self, place: &str) {
        println!(
            "{place}: {} grants, {} lost, {} overlaps, {} changes of party",
            self.rounds,
            self.lost(),
            self.overlaps(),
            self.changes()
        );
    }
}
