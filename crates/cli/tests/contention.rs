//! Many processes read a counter, pause and write it back, which loses updates unless they exclude each other. `FENCEPOST_PROCESSES` and `FENCEPOST_ROUNDS` make it longer: the full measure is 8 x 200.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::process::Command;

use fencepost_testkit::command::{Store, now};

/// Reads the counter, pauses, writes it back, and logs its token.
const INCREMENT: &str = "value=$(cat counter); sleep 0.002; echo $((value + 1)) > counter; \
                         echo ${FENCEPOST_TOKEN:-0} >> tokens";

fn number(variable: &str, default: u64) -> u64 {
    std::env::var(variable).map_or(default, |value| value.parse().expect("a number"))
}

/// Runs the increment on `processes` threads, `rounds` times each. Returns the counter.
fn count(store: &Store, processes: u64, rounds: u64, command: impl Fn() -> Command + Sync) -> u64 {
    std::fs::write(store.path("counter"), "0\n").unwrap();
    std::thread::scope(|scope| {
        for _ in 0..processes {
            scope.spawn(|| {
                for _ in 0..rounds {
                    let output = command().output().unwrap();
                    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
                }
            });
        }
    });
    std::fs::read_to_string(store.path("counter")).unwrap().trim().parse().unwrap()
}

#[test]
fn no_update_is_lost_and_tokens_rise() {
    let (processes, rounds) = (number("FENCEPOST_PROCESSES", 8), number("FENCEPOST_ROUNDS", 10));
    let store = Store::new();
    let before = now();
    let counted = count(&store, processes, rounds, || {
        store.fencepost(&["run", "counter", "--", "sh", "-c", INCREMENT])
    });
    let took = now().since(before);
    println!("{processes} processes x {rounds} rounds: {took:.2?}");
    assert_eq!(counted, processes * rounds, "updates were lost");
    let tokens = std::fs::read_to_string(store.path("tokens")).unwrap();
    let tokens: Vec<u64> = tokens.lines().map(|token| token.parse().unwrap()).collect();
    assert_eq!(tokens.len() as u64, processes * rounds);
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    store.assert_empty();
}

/// Control: the check above fails without the lock.
#[test]
fn without_the_lock_updates_are_lost() {
    let (processes, rounds) = (number("FENCEPOST_PROCESSES", 8), number("FENCEPOST_ROUNDS", 10));
    let store = Store::new();
    let counted = count(&store, processes, rounds, || {
        let mut command = Command::new("sh");
        command.args(["-c", INCREMENT]).current_dir(store.dir.path());
        command
    });
    println!(
        "without the lock {} of {} updates were lost",
        processes * rounds - counted,
        processes * rounds
    );
    assert!(counted < processes * rounds, "nothing was lost: the check proves nothing");
}
