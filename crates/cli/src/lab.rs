//! `lab`: shows what the library's promises are for. What it prints is made here, what happens in `fencepost_lab`.

use std::fmt::Write as _;
use std::future::Future;
use std::path::Path;
use std::time::Duration;

use fencepost_lab::lanes::svg::svg;
use fencepost_lab::lanes::text::Style;
use fencepost_lab::verdict::Verdict;
use fencepost_lab::{Fault, Setting, crash, nolock, pause};

use crate::args::lab::{FencedHalves, Lab, LabCrash, LabNolock, LabPause, LabSite};
use crate::exit::{self, Failure};
use crate::out;
use crate::signals::Signals;

/// Carries out a lab. A signal ends it, and its workers with it.
pub(crate) async fn lab(lab: &Lab, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    match lab {
        Lab::Pause(args) => lab_pause(args, on, json).await,
        Lab::Crash(args) => lab_crash(args, on, json).await,
        Lab::Nolock(args) => lab_nolock(args, on, json).await,
    }
}

fn setting(
    site: &LabSite,
    on: Option<&str>,
    resource: Option<&String>,
) -> Result<Setting, Failure> {
    Ok(Setting {
        program: crate::run::leash::own_program()?,
        on: on.map(str::to_owned),
        resource: resource.cloned(),
        keep: site.keep,
    })
}

/// Waits for a lab, or for a signal that ends it: dropped, it kills its workers and removes its files.
async fn attended<T>(lab: impl Future<Output = Result<T, Fault>>) -> Result<T, Failure> {
    let mut signals = Signals::listen()?;
    tokio::select! {
        biased;
        signal = signals.next_ending() => Err(Failure::signal(
            signal.as_raw(),
            format!("the lab was ended by signal {}", signal.as_raw()),
        )),
        done = lab => done.map_err(|fault| match fault {
            Fault::Lock(error) => error.into(),
            Fault::System(message) => Failure::internal(message),
        }),
    }
}

/// The lines of a lab as it goes on. Nobody has to read them.
fn tell(json: bool, line: &str) {
    if !json {
        let _ = out::print(&format!("{line}\n"));
    }
}

async fn lab_pause(args: &LabPause, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    let setting = setting(&args.site, on, args.resource.as_ref())?;
    let fenced = match args.fenced {
        FencedHalves::Second => [false, true],
        FencedHalves::Both => [true, true],
        FencedHalves::Neither => [false, false],
    };
    let options = pause::Options { ttl: args.ttl, work: args.work, freeze: !args.no_pause, fenced };
    // Now, and not after the whole show: it may be a bad path.
    args.svg.as_deref().map_or(Ok(()), |file| write(file, ""))?;
    let mut say = |progress: pause::Progress<'_>| match progress {
        pause::Progress::Half { fence } => {
            let which = if fence { "With" } else { "Without" };
            tell(json, &format!("{which} the fence: A adds 30 to a balance of 100, B adds 50."));
        }
        pause::Progress::Event(event) => tell(json, &event.to_string()),
    };
    let account = attended(pause::pause(&setting, &options, &mut say)).await?;
    let pictures = account.halves.each_ref().map(pause::Half::picture);
    if let Some(file) = &args.svg {
        let title = "A holder that freezes past its lease, without and with the fence";
        write(file, &svg(title, PAUSE_DESCRIPTION, &pictures))?;
    }
    if json {
        out::json(&account.as_json())?;
    } else {
        let style = Style::of_stdout();
        let mut text = String::new();
        for picture in &pictures {
            text.push('\n');
            text.push_str(&picture.text(style));
        }
        let (store, resource, verdict) = (&account.store, account.resource, &account.verdict);
        let kept = kept(account.kept.as_deref());
        // Writing to a string can not fail.
        let _ = write!(text, "\nOn {store}, resource {resource}.\n{verdict}{kept}{PAUSE_WORDS}");
        out::print(&text)?;
    }
    judged(&account.verdict)
}

const PAUSE_DESCRIPTION: &str = "Time runs down. A takes the lock, reads the balance and is frozen. Its lease ends, \
    B is granted the lock with a higher token, reads, writes and releases. A wakes and writes. Without the fence \
    A overwrites what B wrote; with the fence A is refused.";

const PAUSE_WORDS: &str = "
The workers do not look at their guards before they write, on purpose. A's guard
tells on waking that the lock is lost, and a program that looks would stop. But
a process can freeze between that look and its write as well, and then only the
resource can refuse. Read on: docs/fencing.md, docs/fence-your-database.md.
";

async fn lab_crash(args: &LabCrash, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    let setting = setting(&args.site, on, None)?;
    let options = crash::Options { ttl: args.ttl, rounds: args.rounds, kill: !args.no_kill };
    let mut say = |progress: crash::Progress<'_>| match progress {
        crash::Progress::Round(number) => tell(json, &format!("Round {number}.")),
        crash::Progress::Event(event) => tell(json, &event.to_string()),
    };
    let account = attended(crash::crash(&setting, &options, &mut say)).await?;
    if json {
        out::json(&account.as_json())?;
        return judged(&account.verdict);
    }
    let mut text = String::new();
    if let Some(round) = account.rounds.first() {
        text.push('\n');
        text.push_str(&round.picture().text(Style::of_stdout()));
    }
    let mut rows = vec![["ROUND", "FREE AFTER", "LEASE LEFT"].map(str::to_owned).to_vec()];
    for (number, round) in account.rounds.iter().enumerate() {
        let free = round.free_after.map_or_else(|| "never".to_owned(), in_millis);
        rows.push(vec![(number + 1).to_string(), free, in_millis(round.lease_left)]);
    }
    let (store, table, verdict) = (&account.store, out::table(&rows), &account.verdict);
    let kept = kept(account.kept.as_deref());
    let _ = write!(text, "\nOn {store}, from the kill to the next grant:\n{table}{verdict}{kept}");
    text.push_str(if account.presence {
        "\nThis store sees the holder's process: the kernel unlocks a file when it ends. So\n\
         the next one need not wait for the lease.\n"
    } else {
        "\nThis store can not tell a dead holder from a slow one: the lease decides. A\n\
         shorter TTL frees sooner; it is renewed in the background every third of it.\n"
    });
    out::print(&text)?;
    judged(&account.verdict)
}

async fn lab_nolock(args: &LabNolock, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    let setting = setting(&args.site, on, args.resource.as_ref())?;
    let options =
        nolock::Options { copies: args.copies, ticks: args.ticks, unique: !args.no_unique_key };
    let (copies, ticks) = (options.copies, options.ticks);
    let mut say = |way: &str| {
        tell(json, &format!("{copies} copies of a job, {ticks} times, by {way} ..."));
    };
    let account = attended(nolock::nolock(&setting, &options, &mut say)).await?;
    if json {
        out::json(&account.as_json())?;
        return judged(&account.verdict);
    }
    let head = ["BY", "RUNS PER TICK", "CALLS PER TICK", "A COPY P50", "MAX", "ALL DONE P50"];
    let mut rows = vec![head.map(str::to_owned).to_vec()];
    for (words, way) in [("insert-if-absent", &account.key), ("lock", &account.lock)] {
        let (least, most) = (way.runs.iter().min(), way.runs.iter().max());
        let runs = match (least, most) {
            (Some(least), Some(most)) if least != most => format!("{least} to {most}"),
            (Some(runs), _) => runs.to_string(),
            _ => "-".to_owned(),
        };
        let (p50, max) = way.copy_times();
        rows.push(vec![
            words.to_owned(),
            runs,
            format!("{:.1}", way.steps_per_tick()),
            in_millis(p50),
            in_millis(max),
            in_millis(way.tick_time()),
        ]);
    }
    let text = format!(
        "\nLock on {}, ledger on {}.\n{}{}{}{NOLOCK_WORDS}",
        account.store,
        account.resource,
        out::table(&rows),
        account.verdict,
        kept(account.kept.as_deref()),
    );
    out::print(&text)?;
    judged(&account.verdict)
}

const NOLOCK_WORDS: &str = "
You need no lock when one statement of the database can say who does the work,
and the work lies in the same transaction: insert a key that is unique per run,
and whoever inserted it runs. The lock needs that look too, because one who
comes after the release must find that the job is done.

You need the lock when the work leaves the database (mails, files, calls to
others), takes longer than a transaction should, or when others shall wait for
it. Then send the token along, so that the resource can refuse a stale one.
";

fn in_millis(span: Duration) -> String {
    format!("{:.1} ms", span.as_secs_f64() * 1e3)
}

fn kept(path: Option<&Path>) -> String {
    path.map_or_else(String::new, |path| format!("The files are in {}.\n", path.display()))
}

fn write(file: &Path, text: &str) -> Result<(), Failure> {
    std::fs::write(file, text).map_err(|error| {
        Failure::usage(format!(
            "--svg: can not write \"{}\": {error}",
            file.display().to_string().escape_debug()
        ))
    })
}

/// A lab that did not show what it should is a failure of its own kind.
fn judged(verdict: &Verdict) -> Result<u8, Failure> {
    if verdict.holds() {
        return Ok(exit::OK);
    }
    let mut failure = Failure::new(exit::NOT_SHOWN, "not_shown", verdict.complaint());
    // The account has been printed, with the checks that failed.
    failure.on_stdout = false;
    Err(failure)
}
