//! `lab`: prints the labs, which run in `fencepost_lab`.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use fencepost_lab::timeline::file::PictureFile;
use fencepost_lab::timeline::svg::svg;
use fencepost_lab::timeline::text::Style;
use fencepost_lab::verdict::Verdict;
use fencepost_lab::{Leftovers, ResourceLocation, crash, nolock, pause};
use serde_json::{Value, json};

use crate::args::lab::{FencedHalves, Lab, LabCrash, LabNolock, LabPause};
use crate::exit::{self, Failure};
use crate::out;

mod runner;

use runner::resource;

pub(crate) async fn lab(lab: &Lab, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    match lab {
        Lab::Pause(args) => lab_pause(args, on, json).await,
        Lab::Crash(args) => lab_crash(args, on, json).await,
        Lab::Nolock(args) => lab_nolock(args, on, json).await,
    }
}

/// Prints a line of progress. A closed stdout is not an error.
fn progress(json: bool, line: &str) {
    if !json {
        let _ = out::print(&format!("{line}\n"));
    }
}

async fn lab_pause(args: &LabPause, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    let fenced = match args.fenced {
        FencedHalves::Second => [false, true],
        FencedHalves::Both => [true, true],
        FencedHalves::Neither => [false, false],
    };
    let options = pause::Options { ttl: args.ttl, work: args.work, freeze: !args.no_pause, fenced };
    // Check the path before the lab runs.
    let svg_failed = |error: std::io::Error| {
        let file = args.svg.as_deref().unwrap_or(Path::new("")).display().to_string();
        Failure::usage(format!("--svg: cannot write \"{}\": {error}", file.escape_debug()))
    };
    let file = args.svg.as_deref().map(PictureFile::at).transpose().map_err(svg_failed)?;
    let mut print = |step: pause::Progress<'_>| match step {
        pause::Progress::Installed => {
            progress(
                json,
                "The database had no fence: the lab has installed it, and leaves it installed.",
            );
        }
        pause::Progress::Half { fence } => {
            let which = if fence { "With" } else { "Without" };
            progress(
                json,
                &format!("{which} the fence: A adds 30 to a balance of 100, B adds 50."),
            );
        }
        pause::Progress::Event(event) => progress(json, &event.to_string()),
    };
    let (outcome, leftovers) =
        runner::run(&args.files, on, resource(args.resource.as_ref()), async |environment| {
            pause::pause(environment, &options, &mut print).await
        })
        .await?;
    let pictures = outcome.halves.each_ref().map(pause::Half::picture);
    let drawn =
        file.map(|file| file.write(&svg(&outcome.title(), &outcome.description(), &pictures)));
    // Print the outcome even if the picture could not be written.
    let drawn = drawn.transpose().map_err(|error| svg_failed(error).off_stdout());
    if json {
        let mut value = with_leftovers(outcome.as_json(), &leftovers);
        let svg = args.svg.as_deref().filter(|_| drawn.is_ok());
        value["svg"] = json!(svg.map(|file| file.display().to_string()));
        out::json(&value)?;
    } else {
        let style = Style::of_stdout();
        let mut text = String::new();
        for picture in &pictures {
            text.extend(["\n", &picture.text(style)]);
        }
        let (store, resource, verdict) = (&outcome.store, outcome.resource, &outcome.verdict);
        let (ttl, files) = (ttl(options.ttl, outcome.ttl), files(args.files.keep, &leftovers));
        let late: Vec<String> = outcome
            .halves
            .iter()
            .filter_map(pause::Half::grant_after_lease)
            .map(in_millis)
            .collect();
        // Writing to a string cannot fail.
        let _ = writeln!(text, "\nOn {store}, {ttl}, resource {resource}.");
        if let (Some(frees), false) = (outcome.frees_late, late.is_empty()) {
            let late = late.join(", then ");
            let why = format!("B had the lock {late} after the end of A's lease. Here {frees}.");
            text.push_str(&out::wrapped(&why, 0));
        }
        let _ = write!(text, "{verdict}{files}");
        if let (Some(file), Ok(Some(()))) = (&args.svg, &drawn) {
            let _ = writeln!(text, "The picture is in {}.", file.display());
        }
        text.push_str(if outcome.froze() { PAUSE_EXPLAINED } else { NO_PAUSE_EXPLAINED });
        out::print(&text)?;
    }
    drawn?;
    judge(&outcome.verdict)
}

const NO_PAUSE_EXPLAINED: &str = "
Nobody was frozen: each worker wrote while it held the lock, and nothing was lost,
with or without the fence. Without --no-pause you see what the fence is for.
";

const PAUSE_EXPLAINED: &str = "
The workers deliberately do not check their guards before they write. When A wakes,
its guard is lost, and a program that checks it would stop. But a process can also
freeze between that check and its write, and then only the resource can refuse.
Read on: docs/fencing.md, docs/fence-your-database.md.
";

async fn lab_crash(args: &LabCrash, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    let options = crash::Options { ttl: args.ttl, rounds: args.rounds, kill: !args.no_kill };
    let mut print = |step: crash::Progress<'_>| match step {
        crash::Progress::Round(number) => progress(json, &format!("Round {number}.")),
        crash::Progress::Event(event) => progress(json, &event.to_string()),
    };
    let (outcome, leftovers) =
        runner::run(&args.files, on, ResourceLocation::Nowhere, async |environment| {
            crash::crash(environment, &options, &mut print).await
        })
        .await?;
    if json {
        out::json(&with_leftovers(outcome.as_json(), &leftovers))?;
        return judge(&outcome.verdict);
    }
    let mut text = String::new();
    if let Some(round) = outcome.rounds.first() {
        text.extend(["\n", &round.picture().text(Style::of_stdout())]);
    }
    let mut rows = out::header(["ROUND", "FREE AFTER", "LEASE LEFT"]);
    for (number, round) in (1..).zip(&outcome.rounds) {
        let free = round
            .free_after
            .map_or_else(|| format!("not in {}", in_millis(round.waited)), in_millis);
        rows.push(vec![format!("{number}"), free, in_millis(round.lease_left)]);
    }
    let (store, table, verdict) = (&outcome.store, out::table(&rows), &outcome.verdict);
    let (ttl, files) = (ttl(options.ttl, outcome.ttl), files(args.files.keep, &leftovers));
    let from = if options.kill { "from the kill to the next grant" } else { "nobody was killed" };
    let _ = write!(text, "\nOn {store}, {ttl}, {from}:\n{table}{verdict}{files}\n");
    let why = if !options.kill {
        "The holder is alive and renews its lease, so the next waiter is not granted the lock. Without --no-kill you \
         see when the lock of a dead holder is granted."
            .to_owned()
    } else if outcome.presence {
        "This store detects the end of the holder's process, because the kernel then unlocks its presence file. So \
         the next waiter does not wait for the lease."
            .to_owned()
    } else {
        let shorter = if outcome.ttl == options.ttl {
            "With a shorter TTL the lock is free sooner"
        } else {
            "This store raises a TTL as short as the requested one"
        };
        format!(
            "This store cannot tell a dead holder from a slow one: {}. {shorter}; the lease is renewed in the \
             background every third of the TTL.",
            outcome.frees
        )
    };
    text.push_str(&out::wrapped(&why, 0));
    out::print(&text)?;
    judge(&outcome.verdict)
}

async fn lab_nolock(args: &LabNolock, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    let options = nolock::Options {
        copies: args.copies,
        ticks: args.ticks,
        unique: !args.no_unique_key,
        lock: !args.no_lock,
    };
    let (copies, ticks) = (options.copies, options.ticks);
    let mut print = |method: &str| {
        progress(json, &format!("{copies} copies of a job, {ticks} times, by {method} ..."));
    };
    let (outcome, leftovers) =
        runner::run(&args.files, on, resource(args.resource.as_ref()), async |environment| {
            nolock::nolock(environment, &options, &mut print).await
        })
        .await?;
    if json {
        out::json(&with_leftovers(outcome.as_json(), &leftovers))?;
        return judge(&outcome.verdict);
    }
    let head = ["BY", "RUNS PER TICK", "CALLS PER TICK", "A COPY P50", "MAX", "ALL DONE P50"];
    let mut rows = out::header(head);
    for (name, method) in [("insert-if-absent", &outcome.key), ("lock", &outcome.lock)] {
        let (least, most) = (method.runs.iter().min(), method.runs.iter().max());
        let runs = match (least, most) {
            (Some(least), Some(most)) if least != most => format!("{least} to {most}"),
            (Some(runs), _) => runs.to_string(),
            _ => "-".to_owned(),
        };
        let (p50, max) = method.copy_times();
        rows.push(vec![
            name.to_owned(),
            runs,
            format!("{:.1}", method.steps_per_tick()),
            in_millis(p50),
            in_millis(max),
            in_millis(method.tick_time()),
        ]);
    }
    let text = format!(
        "\nLock on {}, ledger on {}.\n{}{}{}{NOLOCK_EXPLAINED}",
        outcome.store,
        outcome.resource,
        out::table(&rows),
        outcome.verdict,
        files(args.files.keep, &leftovers),
    );
    out::print(&text)?;
    judge(&outcome.verdict)
}

const NOLOCK_EXPLAINED: &str = "
You need no lock if one statement of the database can decide who does the work,
and the work is in the same transaction: insert a key that is unique per run, and
the copy that inserted it runs the job. With the lock you must check as well,
because a copy that acquires it later must find that the job is done.

You need the lock if the work leaves the database (mails, files, calls to other
services), takes longer than a transaction should, or if other workers must wait
for it. Then send the token with each write, so that the resource can refuse a
stale one.
";

fn in_millis(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1e3)
}

/// The granted TTL, and the requested one if the store raised it.
fn ttl(requested: Duration, granted: Duration) -> String {
    if requested == granted {
        return format!("TTL {granted:?}");
    }
    format!("TTL {granted:?} (requested {requested:?})")
}

fn files(keep: bool, leftovers: &Leftovers) -> String {
    match &leftovers.files {
        Some(path) => format!("The files are in {}.\n", path.display()),
        None if keep => "This lab had no files of its own to keep.\n".into(),
        None => String::new(),
    }
}

fn with_leftovers(mut outcome: Value, leftovers: &Leftovers) -> Value {
    outcome["files"] = json!(leftovers.files.as_ref().map(|path| path.display().to_string()));
    outcome["not_removed"] = json!(leftovers.not_removed);
    outcome
}

/// Fails if the lab did not show what it should.
fn judge(verdict: &Verdict) -> Result<u8, Failure> {
    if verdict.holds() {
        return Ok(exit::OK);
    }
    // The outcome is already printed, with the checks that failed.
    Err(Failure::new(exit::NOT_SHOWN, "not_shown", verdict.failure()).off_stdout())
}
