//! What `fencepost lab` can be told.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, Subcommand, ValueEnum};

use crate::duration;

/// `fencepost lab`
#[derive(Debug, Subcommand)]
#[command(arg = on())]
pub(crate) enum Lab {
    /// Freeze the holder past its lease: an update is lost; with the fence, none is
    #[command(after_help = LAB_PAUSE_HELP, after_long_help = LAB_PAUSE_HELP)]
    Pause(LabPause),
    /// Kill the holder, and measure when the lock comes free
    #[command(after_help = LAB_CRASH_HELP, after_long_help = LAB_CRASH_HELP)]
    Crash(LabCrash),
    /// Run a job once per tick on many copies without a lock, measured against the lock
    #[command(after_help = LAB_NOLOCK_HELP, after_long_help = LAB_NOLOCK_HELP)]
    Nolock(LabNolock),
}

/// Stands for the option that all commands have, and comes out as that one: its default is another here.
fn on() -> Arg {
    Arg::new("on")
        .long("on")
        .value_name("URL")
        .global(true)
        .help("The lock store, such as redis://HOST [default: an embedded one of the lab's own]")
}

/// Where a lab takes place.
#[derive(Args, Debug)]
pub(crate) struct LabSite {
    /// Leave the lab's files where they are, and say where
    #[arg(long)]
    pub(crate) keep: bool,
}

/// `fencepost lab pause`
#[derive(Args, Debug)]
pub(crate) struct LabPause {
    /// The lease: 100ms to 24h; a store may keep a longer one
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse_ttl,
          allow_hyphen_values = true)]
    pub(crate) ttl: Duration,
    /// How long each worker works between its read and its write: at most 24h
    #[arg(long, value_name = "DURATION", default_value = "4s", value_parser = duration::parse_work,
          allow_hyphen_values = true)]
    pub(crate) work: Duration,
    /// Where the balance is kept: sqlite:PATH or `postgres://HOST/DATABASE` [default: a file of its own]
    #[arg(long, value_name = "URL")]
    pub(crate) resource: Option<String>,
    /// Write the picture to this file, once it is whole
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Freeze nobody: nothing is lost then, and the lab exits with 1
    #[arg(long)]
    pub(crate) no_pause: bool,
    // Which halves have the fence; for checks that the lab can fail.
    #[arg(long, hide = true, value_name = "HALVES", default_value = "second")]
    pub(crate) fenced: FencedHalves,
    #[command(flatten)]
    pub(crate) site: LabSite,
}

/// Which halves of `lab pause` have the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FencedHalves {
    Second,
    Both,
    Neither,
}

/// `fencepost lab crash`
#[derive(Args, Debug)]
pub(crate) struct LabCrash {
    /// The lease: 100ms to 24h; a store may keep a longer one
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse_ttl,
          allow_hyphen_values = true)]
    pub(crate) ttl: Duration,
    /// How often: 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000),
          allow_hyphen_values = true)]
    pub(crate) rounds: u32,
    /// Kill nobody: the lock does not come free then, and the lab exits with 1
    #[arg(long)]
    pub(crate) no_kill: bool,
    #[command(flatten)]
    pub(crate) site: LabSite,
}

/// `fencepost lab nolock`
#[derive(Args, Debug)]
pub(crate) struct LabNolock {
    /// How many copies of the job: 2 to 200
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=200),
          allow_hyphen_values = true)]
    pub(crate) copies: u32,
    /// How often the job is due: 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000),
          allow_hyphen_values = true)]
    pub(crate) ticks: u32,
    /// Where the runs are recorded: sqlite:PATH or `postgres://HOST/DATABASE` [default: a file of its own]
    #[arg(long, value_name = "URL")]
    pub(crate) resource: Option<String>,
    // The key is not unique: every copy runs the job. For checks that the lab can fail.
    #[arg(long, hide = true)]
    pub(crate) no_unique_key: bool,
    // The copies look without the lock: some run the job twice. For checks that the lab can fail.
    #[arg(long, hide = true)]
    pub(crate) no_lock: bool,
    #[command(flatten)]
    pub(crate) site: LabSite,
}

pub(super) const LAB_HELP: &str = "\
Without --on a lab has an embedded store of its own, which goes with it;
FENCEPOST_URL is not used. On a store that others use it has lock names of its
own, fencepost-lab/..., and none is held when it ends. A lab that was interrupted
leaves its locks to the end of their leases; what a store keeps of any name that
was used, it keeps of these.

In a database that you name with --resource its tables, fencepost_lab_..., and
its mark are gone when it ends, interrupted or not; what it could not clear away
it names. `lab pause` installs the fence there if it is missing, and says so: the
fence stays.

With --json the last line is the account; its \"shown\" is false when the lab
exits with 1.

Exit codes: 0 it happened, 1 what the lab shows did not happen, 64 bad usage,
69 store or resource out of reach, 70 a fault of the system, 78 refused, 130
interrupted (SIGINT), 143 ended (SIGTERM).";

const LAB_PAUSE_HELP: &str = "\
Examples:
  fencepost lab pause
  fencepost lab pause --svg pause.svg
  fencepost lab pause --on redis://127.0.0.1 --ttl 5s
  fencepost lab pause --resource postgres://me@127.0.0.1/test

Two processes add to a balance under one lock. A reads it and is frozen
(SIGSTOP) until its lease has ended and B has had its turn; then A wakes and
writes. Without the fence, what B wrote is lost. With it, A is refused.

The workers do not look at their guards before they write: a process can freeze
between that look and its write as well.

Exit codes: 0 it happened, 1 it did not (\"shown\" is false in JSON), 64 bad
usage, 69 store or resource out of reach, 70 a fault of the system, 78 refused,
130 interrupted (SIGINT), 143 ended (SIGTERM).";

const LAB_CRASH_HELP: &str = "\
Examples:
  fencepost lab crash
  fencepost lab crash --on etcd://127.0.0.1 --ttl 3s

The embedded store sees the end of the holder's process, and the next one has
the lock at once. On others it waits for the end of the lease, or of the session
that carries it (ZooKeeper: one and a half times the TTL).

Exit codes: 0 it happened, 1 it did not (\"shown\" is false in JSON), 64 bad
usage, 69 store out of reach, 70 a fault of the system, 78 refused, 130
interrupted (SIGINT), 143 ended (SIGTERM).";

const LAB_NOLOCK_HELP: &str = "\
Examples:
  fencepost lab nolock
  fencepost lab nolock --copies 30 --ticks 5

All copies are started at once, again and again. First each inserts a key that
is unique per run, and whoever inserted it runs the job. Then each tries to take
a lock, and looks whether the job is done.

Exit codes: 0 the job ran once each time, 1 it did not (\"shown\" is false in
JSON), 64 bad usage, 69 store or resource out of reach, 70 a fault of the
system, 78 refused, 130 interrupted (SIGINT), 143 ended (SIGTERM).";
