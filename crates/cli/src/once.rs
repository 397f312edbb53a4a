//! `once`: runs a command once per key, over all clients of the store.
//!
//! What must hold: KEY is recorded as done only after the command has exited with 0 and no process of its group is
//! left, and only if no later runner has claimed it meanwhile (the library's `once` ensures that). A run whose command
//! was ended because its lock was lost is not done, whatever its exit code.

mod output_recorder;
mod records;

use std::time::Duration;

use fencepost::ledger::{RecordInfo, State};
use fencepost::{ErrorKind, Fencepost, RunGuard, Start};

use self::output_recorder::OutputRecorder;
use crate::acquire;
use crate::args::once::{Once, Records};
use crate::exit::{self, Failure, note, say};
use crate::out;
use crate::run::supervise::Outcome;
use crate::run::{self, Events, Job};
use crate::store::{self, Target};
use crate::waiting::Wait;

pub(crate) async fn once(args: &Once, at: &Target, json: bool) -> Result<u8, Failure> {
    let key = args.key.as_deref().or(args.key_given.as_deref());
    match (&args.records, key) {
        (None, Some(key)) => run_once(args, key, at, json).await,
        (Some(_), Some(_)) => Err(Failure::usage(
            "a key and one of ls, show and forget are given: give only one; for a key with such a name use --key",
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
        Ok(Start::Finished(record)) => print_finished(key, &record, json),
        Ok(Start::Claimed(run_guard)) => {
            run_claimed(args, run_guard, &at.url_for_child(), &mut events).await
        }
        Err(failure) => Err(args.limit.with_conflict_code(failure)),
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
) -> Result<Start, Failure> {
    let label = args.label.clone().unwrap_or_else(acquire::default_label);
    let mut once = fp.once(key).retain_for(args.retain_for).ttl(args.ttl).label(&label);
    if let Some(limit) = args.limit.wait.or(args.limit.no_wait.then_some(Duration::ZERO)) {
        once = once.wait_timeout(limit);
    }
    if args.may_repeat {
        once = once.may_repeat();
    }
    let begun = async {
        once.begin().await.map_err(|error| match error.kind() {
            // Overtaken between the grant and the claim: the command has not run here.
            ErrorKind::Lost => Failure::held(format!(
                "another runner has claimed \"{key}\"; wait for it (--wait 10s), or retry later"
            )),
            _ => error.into(),
        })
    };
    let wait = Wait { at, fp, name: &records::lock_of(key), label: &label };
    acquire::wait_for(wait, &mut events.signals, begun).await
}

/// Prints the result of an earlier run.
fn print_finished(key: &str, record: &RecordInfo, json: bool) -> Result<u8, Failure> {
    let done = record.state == State::Done;
    if json {
        out::json(&records::as_json_with_result(key, record, false))?;
    }
    let who = records::who(record);
    if done {
        note(&format!("\"{key}\" is already done: {who}"));
        if records::is_truncated(record) {
            say(&format!(
                "the recorded output has the maximum of {} bytes: the command may have printed more",
                RecordInfo::MAX_RESULT
            ));
        }
        if !json {
            out::bytes(&record.result)?;
        }
        return Ok(exit::OK);
    }
    let how = out::line(&String::from_utf8_lossy(&record.result));
    let failure = Failure::new(
        code_in(&record.result).unwrap_or(exit::FAILED_BEFORE),
        "failed",
        format!(
            "\"{key}\" has failed before: {how}, {who}; to run it again: fencepost once forget {}",
            records::as_argument(key)
        ),
    );
    Err(failure.off_stdout())
}

async fn run_claimed(
    args: &Once,
    run_guard: RunGuard,
    url: &str,
    events: &mut Events,
) -> Result<u8, Failure> {
    let (recorder, stdout) = args.keep_output.then(OutputRecorder::start).transpose()?.unzip();
    let key = run_guard.key().to_owned();
    let job = Job { command: &args.command, url, key: Some(&key), max_hold: None, stdout };
    let outcome = match run::under(run_guard.guard(), job, events).await {
        Ok(outcome) => outcome,
        Err(failure) => {
            // The command was not started: let the next caller try.
            let _ = run_guard.give_up().await;
            return Err(failure);
        }
    };
    let result = match recorder {
        Some(recorder) => recorder.end(&mut events.signals).await,
        None => Vec::new(),
    };
    record(args, run_guard, &outcome, result).await.map_err(Failure::off_stdout)
}

/// Records the outcome, and returns the exit code.
async fn record(
    args: &Once,
    run_guard: RunGuard,
    outcome: &Outcome,
    result: Vec<u8>,
) -> Result<u8, Failure> {
    let key = run_guard.key().to_owned();
    if let Some(lost) = &outcome.lost {
        // The record still says running, with this token: the next holder takes over.
        return Err(Failure::lost(lost));
    }
    let code = outcome.ended.code();
    let recorded = match code {
        _ if outcome.unwatched => run_guard.give_up().await,
        // A command that exits with 0 after a signal may have left work undone.
        exit::OK if outcome.asked_to_end => {
            run_guard.give_up().await?;
            let message = format!(
                "the command of \"{key}\" was asked to end, so it is not recorded as done: the next caller runs it"
            );
            return Err(Failure::new(exit::HELD, "terminated", message));
        }
        exit::OK => run_guard.done(result).await,
        _ if args.record_failure && !outcome.asked_to_end => {
            run_guard.failed(&exit_code_text(code)).await
        }
        _ => run_guard.give_up().await,
    };
    if outcome.unwatched {
        return Err(run::unwatched());
    }
    match recorded {
        Ok(()) => outcome.passed_on(),
        Err(error) if matches!(error.kind(), ErrorKind::Lost) => Err(Failure::lost(format!(
            "the command exited with {code}, but another runner has claimed \"{key}\" meanwhile: \
                 this run was not recorded"
        ))),
        Err(error) if code == exit::OK => {
            let mut failure = Failure::from(error);
            failure.message = format!(
                "the command exited with 0, but \"{key}\" could not be recorded as done, so the next \
                 caller may run it again: {}",
                failure.message
            );
            Err(failure)
        }
        Err(error) => {
            say(&format!(
                "the command failed, and the failure could not be recorded: {}",
                error.one_line()
            ));
            outcome.passed_on()
        }
    }
}

/// The result in the record of a failed command, for [`code_in`].
fn exit_code_text(code: u8) -> String {
    format!("exit code {code}")
}

/// The exit code in such a record. Another client may have written something else.
fn code_in(result: &[u8]) -> Option<u8> {
    let code = std::str::from_utf8(result).ok()?.strip_prefix("exit code ")?.parse().ok()?;
    (code != exit::OK).then_some(code)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_in_a_record_round_trips() {
        for code in 1..=u8::MAX {
            assert_eq!(code_in(exit_code_text(code).as_bytes()), Some(code));
        }
        for other in ["", "exit code 0", "exit code 256", "exit code", "disk full", "\u{fffd}"] {
            assert_eq!(code_in(other.as_bytes()), None, "{other}");
        }
        assert_eq!(code_in(b"\xff"), None);
    }
}
