//! Marks never fall, whenever a writer is killed.
//!
//! Processes write one file as fast as they can, each with its own rising tokens, and are all killed (SIGKILL) after
//! a random number of acknowledged writes. During the writes, and after the kill, must hold:
//!
//! - the file is complete: one write, from its first byte to its last;
//! - its token never falls.
//!
//! And after the kill:
//!
//! - highest acknowledged token <= token of the file <= mark;
//! - a token below the mark is refused, and changes nothing.
//!
//! Three controls show that the test can fail: writers that raise the mark after the rename, that release the lock
//! file before the rename, and that write in place. `FENCEPOST_KILL_ROUNDS=200 cargo test --test fence_file
//! killed_writers` runs 200 rounds.
//!
//! A killed process loses nothing that it gave to the kernel. This test does not cover a crash of the machine, nor
//! whether a sync precedes the rename.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use fencepost::ErrorKind;
use fencepost::fences::file::FileFence;
use fencepost_testkit::Process;
use fencepost_testkit::wait::until;

use super::common::*;

/// The orders of a writer process: variant, number of the writer, path.
const WRITER: &str = "FENCEPOST_TEST_WRITER";
const ROUNDS: &str = "FENCEPOST_KILL_ROUNDS";
const SEED: &str = "FENCEPOST_KILL_SEED";
const WRITERS: u64 = 3;
/// Longer than any step takes on a busy machine.
const LIMIT: Duration = Duration::from_mins(1);

/// The contents of a write with this token: more than the kernel takes at once.
fn payload(token: u64) -> String {
    let mut text = String::new();
    for line in 0..4000 {
        let _ = writeln!(text, "token {token} line {line}");
    }
    text
}

/// The token of a complete file.
fn token_of(text: &str) -> Result<u64, String> {
    let token = text.split(' ').nth(1).and_then(|word| word.parse().ok());
    let token = token.ok_or_else(|| format!("torn: {} bytes", text.len()))?;
    if text == payload(token) { Ok(token) } else { Err(format!("torn: token {token}")) }
}

/// Writes as the fence does, or in a wrong way that must be caught.
fn write(way: &str, file: &FileFence, number: u64) -> fencepost::Result<()> {
    let (lock, data) = (lock(), payload(number));
    let replace = || {
        let new = file.path().with_file_name(format!("new-{number}"));
        let mut open = std::fs::File::create(&new).unwrap();
        open.write_all(data.as_bytes()).and_then(|()| open.sync_all()).unwrap();
        std::fs::rename(&new, file.path()).unwrap();
    };
    match way {
        "fenced" => file.write(&fencing(&lock, number), data.as_bytes()).map(|_| ()),
        // Check, rename and mark under one lock: only their order is wrong.
        "mark after the rename" => {
            let outer = std::fs::File::create(file.path().with_file_name("outer")).unwrap();
            outer.lock().unwrap();
            let mark = file.show(Some(&lock))?.first().map_or(0, |mark| mark.token.get());
            if number >= mark {
                replace();
            }
            file.enter(&fencing(&lock, number))
        }
        // One writer pauses in between until a later token has written.
        "check and rename in two steps" => {
            file.enter(&fencing(&lock, number))?;
            if number.is_multiple_of(WRITERS) {
                let later = || {
                    let text = std::fs::read_to_string(file.path()).unwrap_or_default();
                    Ok(token_of(&text).is_ok_and(|written| written > number))
                };
                until(LIMIT, "a later token has written", later).unwrap();
            }
            replace();
            Ok(())
        }
        "in place" => {
            file.enter(&fencing(&lock, number))?;
            let mut open = std::fs::File::create(file.path()).unwrap();
            for part in data.as_bytes().chunks(512) {
                open.write_all(part).unwrap();
            }
            Ok(())
        }
        other => panic!("no such way: {other}"),
    }
}

/// The writer process: writes until it is killed.
#[test]
fn writer() {
    let Ok(order) = std::env::var(WRITER) else { return };
    let [way, which, path] = order.splitn(3, ';').collect::<Vec<_>>()[..] else {
        panic!("{order}")
    };
    let (which, file): (u64, _) = (which.parse().unwrap(), FileFence::at(path).unwrap());
    loop {
        let mark = file.show(None).unwrap().first().map_or(0, |mark| mark.token.get());
        // One of its own tokens, above the mark.
        let number = (mark / WRITERS + 1) * WRITERS + which;
        match write(way, &file, number) {
            // One write, bypassing the test harness: acknowledged writes are known after the kill.
            Ok(()) => {
                std::io::stdout()
                    .write_all(format!("acknowledged {number}.\n").as_bytes())
                    .unwrap();
            }
            Err(error) if error.kind() == ErrorKind::Stale => {}
            Err(error) => panic!("{error}"),
        }
    }
}

fn acknowledged(log: &str) -> Vec<u64> {
    let lines =
        log.lines().filter_map(|line| line.split_once("acknowledged ")?.1.strip_suffix('.'));
    lines.map(|number| number.parse().unwrap()).collect()
}

/// One round: the writers are killed after this many acknowledged writes. Returns the highest acknowledged token and
/// the number of writes, or the violation that was seen.
fn round(way: &str, path: &Path, logs: &Path, kills_after: usize) -> Result<(u64, usize), String> {
    let mut writers: Vec<_> = (0..WRITERS)
        .map(|which| {
            let mut command = Command::new(std::env::current_exe().unwrap());
            command.args(["killed_writers::writer", "--exact", "--nocapture"]);
            command.env(WRITER, format!("{way};{which};{}", path.display()));
            Process::spawn(&command, &logs.join(format!("{which}.log"))).unwrap()
        })
        .collect();
    let written_tokens = |writers: &[Process]| -> Vec<u64> {
        writers.iter().flat_map(|writer| acknowledged(&writer.log())).collect()
    };
    let (mut last, mut wrong) = (0, None);
    until(LIMIT, "enough was written", || {
        if let Some(ended) = writers.iter().find(|writer| !writer.is_running()) {
            panic!("a writer ended: {}", ended.log());
        }
        match std::fs::read_to_string(path).map(|text| token_of(&text)) {
            Ok(Ok(token)) if token < last => wrong = Some(format!("{token} came after {last}")),
            Ok(Ok(token)) => last = token,
            Ok(Err(torn)) => wrong = Some(torn),
            // Nothing was written yet.
            Err(_) => {}
        }
        Ok(wrong.is_some() || written_tokens(&writers).len() >= kills_after)
    })
    .unwrap();
    for writer in &mut writers {
        writer.kill().unwrap();
    }
    let written_tokens = written_tokens(&writers);
    match wrong {
        Some(wrong) => Err(wrong),
        None => Ok((written_tokens.iter().copied().max().unwrap(), written_tokens.len())),
    }
}

/// Checks what must hold after a kill.
fn check_after_kill(fixture: &Fixture, highest: u64) -> Result<(), String> {
    let (file, lock) = (fixture.fence(), lock());
    let mark = file.show(Some(&lock)).map_err(|error| error.one_line())?;
    let mark = mark.first().map_or(0, |mark| mark.token.get());
    if mark < highest {
        return Err(format!("the mark is {mark}, and {highest} was acknowledged"));
    }
    let before = fixture.contents();
    let written = token_of(&before)?;
    if written < highest || written > mark {
        return Err(format!(
            "{highest} was acknowledged, the file is {written}'s, the mark is {mark}"
        ));
    }
    let late = file.write(&fencing(&lock, mark - 1), &b"late"[..]);
    if late.is_ok() || fixture.contents() != before {
        return Err(format!("{} was let in below {mark}", mark - 1));
    }
    Ok(())
}

struct Rng(u64);

impl Rng {
    fn next(&mut self) -> u64 {
        // SplitMix64.
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }
}

fn number_in(variable: &str) -> Option<u64> {
    std::env::var(variable).ok()?.parse().ok()
}

/// Runs rounds until one fails. Returns the failure and its round.
fn run_rounds(way: &str, rounds: u64) -> Option<(u64, String)> {
    let fixture = Fixture::new();
    let logs = tempfile::tempdir().unwrap();
    let seed = number_in(SEED).unwrap_or_else(|| u64::from(std::process::id()));
    eprintln!("{way}: seed {seed}: {SEED}={seed} kills after the same numbers of writes again");
    let (mut rng, mut all) = (Rng(seed), 0);
    for number in 1..=rounds {
        let kills_after = 1 + rng.next() % 12;
        let kills_after = usize::try_from(kills_after).unwrap();
        let result = round(way, &fixture.target(), logs.path(), kills_after);
        let checked = result.and_then(|(highest, count)| {
            all += count;
            check_after_kill(&fixture, highest)
        });
        if let Err(wrong) = checked {
            eprintln!("{way}: round {number} of {rounds}, {all} acknowledged writes: {wrong}");
            return Some((number, wrong));
        }
    }
    eprintln!("{way}: {rounds} rounds, {all} acknowledged writes, nothing wrong");
    fixture.fence().write(&fencing(&lock(), 1 << 50), &b"the last"[..]).unwrap();
    assert_eq!(fixture.fence_files(), ["lock", "marks"], "what the killed left is deleted");
    None
}

#[test]
fn marks_never_fall_and_the_file_is_complete() {
    assert_eq!(run_rounds("fenced", number_in(ROUNDS).unwrap_or(20)), None);
}

#[test]
fn control_mark_after_the_rename_is_caught() {
    let (_, wrong) = run_rounds("mark after the rename", 200).expect("it was not caught");
    assert!(wrong.contains("the mark is"), "{wrong}");
}

#[test]
fn control_unlock_before_the_rename_is_caught() {
    run_rounds("check and rename in two steps", 200).expect("it was not caught");
}

#[test]
fn control_writing_in_place_is_caught() {
    let (_, wrong) = run_rounds("in place", 200).expect("it was not caught");
    assert!(wrong.contains("torn"), "{wrong}");
}
