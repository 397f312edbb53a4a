//! `once`: runs a command once per key, over all who use the store.
//!
//! What must hold: KEY is recorded as done only after the command has ended with 0 and nothing of its group
//! runs, and only if no later runner has claimed it meanwhile (the library's `once` sees to that). A run that
//! was ended by us, because its lock could not be kept, is not done, whatever it exited with.

mod keep;
mod records;

use std::time::Duration;

use fencepost::ledger::{Entry, State};
use fencepost::{Begun, ErrorKind, Fencepost, Turn};

use self::keep::Keeper;
use crate::args::once::{Once, Records};
use crate::exit::{self, Failure, note, say};
use crate::out;
use crate::run::supervise::Outcome;
use crate::run::{self, Events, Job};
use crate::store::{self, Target};
use crate::take;
use crate::waiting::Wait;

/// Runs the command unless it was done, or sees to the records.
pub(crate) async fn once(args: &Once, at: &Target, json: bool) -> Result<u8, Failure> {
    let key = args.key.as_deref().or(args.key_given.as_deref());
    match (&args.records, key) {
        (None, Some(key)) => run_once(args, key, at, json).await,
        (Some(_), Some(_)) => Err(Failure::usage(
            "a key to run and a command for the records are given: give one of them; a key that is \
             called ls, show or forget stands behind --key",
        )),
        (Some(Records::Ls), _) => records::ls(at, json).await,
        (Some(Records::Show { key }), _) => records::show(key, at, json).await,
        (Some(Records::Forget(args)), _) => records::forget(args, at, json).await,
        (None, None) => Err(Failure::usage("no key is given; see `fencepost once --help`")),
    }
}

async fn run_once(args: &Once, key: &str, at: &Target, json: bool) -> Result<u8, Failure> {
    let mut events = Events::listen()?;
    let fp = at.open_shared().await?;
    let result = match begin(args, key, at, &fp, &mut events).await {
        Ok(Begun::Settled(entry)) => late(key, &entry, json),
        Ok(Begun::Ours(turn)) => do_it(args, turn, &at.for_the_command(), &mut events).await,
        Err(failure) => Err(args.limit.with_its_code(failure)),
    };
    store::close(&fp).await;
    result
}

async fn begin(
    args: &Once,
    key: &str,
    at: &Target,
    fp: &Fencepost,
    events: &mut Events,
) -> Result<Begun, Failure> {
    let label = args.label.clone().unwrap_or_else(take::default_label);
    let mut once = fp.once(key).keep(args.keep).ttl(args.ttl).label(&label);
    if let Some(limit) = args.limit.wait.or(args.limit.no_wait.then_some(Duration::ZERO)) {
        once = once.wait_at_most(limit);
    }
    if args.may_repeat {
        once = once.may_repeat();
    }
    let begun = async {
        once.begin().await.map_err(|error| match error.kind() {
            // Overtaken between the grant and the claim: nothing of ours has run.
            ErrorKind::Lost(_) => Failure::new(
                exit::HELD,
                "held",
                format!("somebody else has begun \"{key}\"; wait for it (--wait 10s) or try later"),
            ),
            _ => error.into(),
        })
    };
    let wait = Wait { at, fp, name: &records::lock_of(key), label: &label };
    take::attended(wait, &mut events.signals, begun).await
}

/// Somebody else has done it.
fn late(key: &str, entry: &Entry, json: bool) -> Result<u8, Failure> {
    let done = entry.state == State::Done;
    if json {
        out::json(&records::as_json_with_result(key, entry, false))?;
    }
    let who = records::who(entry);
    if done {
        note(&format!("\"{key}\" is done already: {who}"));
        if records::is_cut(entry) {
            say(&format!(
                "what it printed fills the {} bytes that are kept: there may have been more",
                Entry::MAX_RESULT
            ));
        }
        if !json {
            out::bytes(&entry.result)?;
        }
        return Ok(exit::OK);
    }
    let how = out::line(&String::from_utf8_lossy(&entry.result));
    let failure = Failure::new(
        code_in(&entry.result).unwrap_or(exit::FAILED_BEFORE),
        "failed",
        format!(
            "\"{key}\" has failed before: {how}, {who}; to let it run again: fencepost once forget {}",
            records::as_argument(key)
        ),
    );
    Err(failure.off_stdout())
}

async fn do_it(args: &Once, turn: Turn, url: &str, events: &mut Events) -> Result<u8, Failure> {
    let (keeper, stdout) = args.keep_output.then(Keeper::start).transpose()?.unzip();
    let key = turn.key().to_owned();
    let job = Job { command: &args.command, url, key: Some(&key), max_hold: None, stdout };
    let outcome = match run::under(turn.guard(), job, events).await {
        Ok(outcome) => outcome,
        Err(failure) => {
            // It was not even started: the next one may try.
            let _ = turn.give_up().await;
            return Err(failure);
        }
    };
    let result = match keeper {
        Some(keeper) => keeper.end(&mut events.signals).await,
        None => Vec::new(),
    };
    settle(args, turn, &outcome, result).await.map_err(Failure::off_stdout)
}

/// Records how it came out.
async fn settle(
    args: &Once,
    turn: Turn,
    outcome: &Outcome,
    result: Vec<u8>,
) -> Result<u8, Failure> {
    let key = turn.key().to_owned();
    if let Some(lost) = &outcome.lost {
        // The record still says that it runs, under our token: whoever has the lock next takes it over.
        return Err(Failure::new(exit::LOST, "lost", lost));
    }
    let code = outcome.ended.code();
    let recorded = match code {
        _ if outcome.unwatched => turn.give_up().await,
        // Whoever is told to end and ends well may have left the rest for later.
        exit::OK if outcome.told_to_end => {
            let said =
                "it was told to end, and is not recorded as done: the next one to come runs it";
            turn.give_up().await?;
            return Err(Failure::new(exit::HELD, "told_to_end", format!("\"{key}\": {said}")));
        }
        exit::OK => turn.done(result).await,
        _ if args.record_failure && !outcome.told_to_end => turn.failed(&words_for(code)).await,
        _ => turn.give_up().await,
    };
    if outcome.unwatched {
        return Err(run::unwatched());
    }
    match recorded {
        Ok(()) => outcome.passed_on(),
        Err(error) if matches!(error.kind(), ErrorKind::Lost(_)) => Err(Failure::new(
            exit::LOST,
            "lost",
            format!(
                "the command ended with {code}, but somebody else has claimed \"{key}\" meanwhile: \
                 nothing was recorded of this run"
            ),
        )),
        Err(error) if code == exit::OK => {
            let mut failure = Failure::from(error);
            failure.message = format!(
                "the command ended with 0, but \"{key}\" could not be recorded as done, so the next \
                 one to come may repeat it: {}",
                failure.message
            );
            Err(failure)
        }
        Err(error) => {
            say(&format!("the command failed, and that could not be recorded: {error}"));
            outcome.passed_on()
        }
    }
}

/// What the record of a failed command says. Read again by [`code_in`].
fn words_for(code: u8) -> String {
    format!("exit code {code}")
}

/// The code in such a record, unless somebody else wrote it.
fn code_in(result: &[u8]) -> Option<u8> {
    let code = std::str::from_utf8(result).ok()?.strip_prefix("exit code ")?.parse().ok()?;
    (code != exit::OK).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_recorded_code_comes_back_and_nothing_else_is_one() {
        for code in 1..=u8::MAX {
            assert_eq!(code_in(words_for(code).as_bytes()), Some(code));
        }
        for other in ["", "exit code 0", "exit code 256", "exit code", "disk full", "\u{fffd}"] {
            assert_eq!(code_in(other.as_bytes()), None, "{other}");
        }
        assert_eq!(code_in(b"\xff"), None);
    }
}
