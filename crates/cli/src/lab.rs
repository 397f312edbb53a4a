//! `lab`: shows what the library's promises are for. What it prints is made here, what happens in `fencepost_lab`.

use std::fmt::Write as _;
use std::path::Path;
use std::time::Duration;

use fencepost_lab::lanes::file::PictureFile;
use fencepost_lab::lanes::svg::svg;
use fencepost_lab::lanes::text::Style;
use fencepost_lab::verdict::Verdict;
use fencepost_lab::{At, Left, crash, nolock, pause};
use serde_json::{Value, json};

use crate::args::lab::{FencedHalves, Lab, LabCrash, LabNolock, LabPause};
use crate::exit::{self, Failure};
use crate::out;

mod attended;

use attended::{at, attended, setting};

/// Carries out a lab. A signal ends it, and its workers with it; what it made is cleared away in any case.
pub(crate) async fn lab(lab: &Lab, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    match lab {
        Lab::Pause(args) => lab_pause(args, on, json).await,
        Lab::Crash(args) => lab_crash(args, on, json).await,
        Lab::Nolock(args) => lab_nolock(args, on, json).await,
    }
}

/// The lines of a lab as it goes on. Nobody has to read them.
fn tell(json: bool, line: &str) {
    if !json {
        let _ = out::print(&format!("{line}\n"));
    }
}

async fn lab_pause(args: &LabPause, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    let setting = setting(&args.site, on, at(args.resource.as_ref()))?;
    let fenced = match args.fenced {
        FencedHalves::Second => [false, true],
        FencedHalves::Both => [true, true],
        FencedHalves::Neither => [false, false],
    };
    let options = pause::Options { ttl: args.ttl, work: args.work, freeze: !args.no_pause, fenced };
    // Now, and not after the whole show: it may be a bad path.
    let svg_failed = |error: std::io::Error| {
        let file = args.svg.as_deref().unwrap_or(Path::new("")).display().to_string();
        Failure::usage(format!("--svg: can not write \"{}\": {error}", file.escape_debug()))
    };
    let file = args.svg.as_deref().map(PictureFile::at).transpose().map_err(svg_failed)?;
    let mut say = |progress: pause::Progress<'_>| match progress {
        pause::Progress::Installed => {
            tell(
                json,
                "The fence was not in this database. The lab has installed it, and it stays.",
            );
        }
        pause::Progress::Half { fence } => {
            let which = if fence { "With" } else { "Without" };
            tell(json, &format!("{which} the fence: A adds 30 to a balance of 100, B adds 50."));
        }
        pause::Progress::Event(event) => tell(json, &event.to_string()),
    };
    let (account, left) =
        attended(&setting, async |scene| pause::pause(scene, &options, &mut say).await).await?;
    let pictures = account.halves.each_ref().map(pause::Half::picture);
    let drawn =
        file.map(|file| file.write(&svg(&account.title(), &account.description(), &pictures)));
    // If that failed, what the show was is told all the same.
    let drawn = drawn.transpose().map_err(|error| svg_failed(error).off_stdout());
    if json {
        let mut account = with_left(account.as_json(), &left);
        let svg = args.svg.as_deref().filter(|_| drawn.is_ok());
        account["svg"] = json!(svg.map(|file| file.display().to_string()));
        out::json(&account)?;
    } else {
        let style = Style::of_stdout();
        let mut text = String::new();
        for picture in &pictures {
            text.extend(["\n", &picture.text(style)]);
        }
        let (store, resource, verdict) = (&account.store, account.resource, &account.verdict);
        let (ttl, kept) = (ttl(options.ttl, account.ttl), kept(args.site.keep, &left));
        let late: Vec<String> =
            account.halves.iter().filter_map(pause::Half::waited_on).map(in_millis).collect();
        // Writing to a string can not fail.
        let _ = writeln!(text, "\nOn {store}, {ttl}, resource {resource}.");
        if let (Some(frees), false) = (account.late, late.is_empty()) {
            let late = late.join(", then ");
            let why = format!("B had the lock {late} after the end of A's lease. Here {frees}.");
            text.push_str(&out::filled(&why, 0));
        }
        let _ = write!(text, "{verdict}{kept}");
        if let (Some(file), Ok(Some(()))) = (&args.svg, &drawn) {
            let _ = writeln!(text, "The picture is in {}.", file.display());
        }
        text.push_str(if account.froze() { PAUSE_WORDS } else { NO_PAUSE_WORDS });
        out::print(&text)?;
    }
    drawn?;
    judged(&account.verdict)
}

const NO_PAUSE_WORDS: &str = "
Nobody was frozen: each wrote while the lock was its own, and nothing was lost,
fence or not. Without --no-pause you see what the fence is for.
";

const PAUSE_WORDS: &str = "
The workers do not look at their guards before they write, on purpose. A's guard
tells on waking that the lock is lost, and a program that looks would stop. But
a process can freeze between that look and its write as well, and then only the
resource can refuse. Read on: docs/fencing.md, docs/fence-your-database.md.
";

async fn lab_crash(args: &LabCrash, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    let setting = setting(&args.site, on, At::Nowhere)?;
    let options = crash::Options { ttl: args.ttl, rounds: args.rounds, kill: !args.no_kill };
    let mut say = |progress: crash::Progress<'_>| match progress {
        crash::Progress::Round(number) => tell(json, &format!("Round {number}.")),
        crash::Progress::Event(event) => tell(json, &event.to_string()),
    };
    let (account, left) =
        attended(&setting, async |scene| crash::crash(scene, &options, &mut say).await).await?;
    if json {
        out::json(&with_left(account.as_json(), &left))?;
        return judged(&account.verdict);
    }
    let mut text = String::new();
    if let Some(round) = account.rounds.first() {
        text.extend(["\n", &round.picture().text(Style::of_stdout())]);
    }
    let mut rows = out::titles(["ROUND", "FREE AFTER", "LEASE LEFT"]);
    for (number, round) in account.rounds.iter().enumerate() {
        let free = round
            .free_after
            .map_or_else(|| format!("not in {}", in_millis(round.waited)), in_millis);
        rows.push(vec![(number + 1).to_string(), free, in_millis(round.lease_left)]);
    }
    let (store, table, verdict) = (&account.store, out::table(&rows), &account.verdict);
    let (ttl, kept) = (ttl(options.ttl, account.ttl), kept(args.site.keep, &left));
    let from = if options.kill { "from the kill to the next grant" } else { "nobody was killed" };
    let _ = write!(text, "\nOn {store}, {ttl}, {from}:\n{table}{verdict}{kept}\n");
    let why = if !options.kill {
        "The holder lives and renews its lease, so nobody else has the lock. Without --no-kill you see when a dead \
         one's comes free."
            .to_owned()
    } else if account.presence {
        "This store sees the holder's process: the kernel unlocks a file when it ends. So the next one need not \
         wait for the lease."
            .to_owned()
    } else {
        let shorter = if account.ttl == options.ttl {
            "A shorter TTL frees sooner"
        } else {
            "This store keeps no TTL as short as the one asked for"
        };
        format!(
            "This store can not tell a dead holder from a slow one: {}. {shorter}; it is renewed in the background \
             every third of it.",
            account.frees
        )
    };
    text.push_str(&out::filled(&why, 0));
    out::print(&text)?;
    judged(&account.verdict)
}

async fn lab_nolock(args: &LabNolock, on: Option<&str>, json: bool) -> Result<u8, Failure> {
    let setting = setting(&args.site, on, at(args.resource.as_ref()))?;
    let options = nolock::Options {
        copies: args.copies,
        ticks: args.ticks,
        unique: !args.no_unique_key,
        lock: !args.no_lock,
    };
    let (copies, ticks) = (options.copies, options.ticks);
    let mut say = |way: &str| {
        tell(json, &format!("{copies} copies of a job, {ticks} times, by {way} ..."));
    };
    let (account, left) =
        attended(&setting, async |scene| nolock::nolock(scene, &options, &mut say).await).await?;
    if json {
        out::json(&with_left(account.as_json(), &left))?;
        return judged(&account.verdict);
    }
    let head = ["BY", "RUNS PER TICK", "CALLS PER TICK", "A COPY P50", "MAX", "ALL DONE P50"];
    let mut rows = out::titles(head);
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
        kept(args.site.keep, &left),
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

/// The TTL that the store kept, and the one that it was asked for if that is another.
fn ttl(asked: Duration, kept: Duration) -> String {
    if asked == kept {
        return format!("TTL {kept:?}");
    }
    format!("TTL {kept:?} (asked for {asked:?})")
}

fn kept(wanted: bool, left: &Left) -> String {
    match &left.kept {
        Some(path) => format!("The files are in {}.\n", path.display()),
        None if wanted => {
            "There are no files to keep: nothing of this lab lay in one of its own.\n".into()
        }
        None => String::new(),
    }
}

fn with_left(mut account: Value, left: &Left) -> Value {
    account["kept"] = json!(left.kept.as_ref().map(|path| path.display().to_string()));
    account["left_behind"] = json!(left.behind);
    account
}

/// A lab that did not show what it should is a failure of its own kind.
fn judged(verdict: &Verdict) -> Result<u8, Failure> {
    if verdict.holds() {
        return Ok(exit::OK);
    }
    // The account has been printed, with the checks that failed.
    Err(Failure::new(exit::NOT_SHOWN, "not_shown", verdict.complaint()).off_stdout())
}
