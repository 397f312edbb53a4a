//! What `fencepost lab` can be told.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Subcommand, ValueEnum};

use crate::duration;

/// `fencepost lab`
#[derive(Debug, Subcommand)]
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
    /// The lease
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    /// How long each worker works between its read and its write
    #[arg(long, value_name = "DURATION", default_value = "4s", value_parser = duration::parse_work)]
    pub(crate) work: Duration,
    /// Where the balance is kept: sqlite:PATH or `postgres://HOST/DATABASE` [default: a file of its own]
    #[arg(long, value_name = "URL")]
    pub(crate) resource: Option<String>,
    /// Write the picture to this file
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
    /// The lease
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    /// How often
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
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
    /// How many copies of the job
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=200))]
    pub(crate) copies: u32,
    /// How often the job is due
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub(crate) ticks: u32,
    /// Where the runs are recorded: sqlite:PATH or `postgres://HOST/DATABASE` [default: a file of its own]
    #[arg(long, value_name = "URL")]
    pub(crate) resource: Option<String>,
    // The key is not unique: every copy runs the job. For checks that the lab can fail.
    #[arg(long, hide = true)]
    pub(crate) no_unique_key: bool,
    #[command(flatten)]
    pub(crate) site: LabSite,
}

pub(super) const LAB_HELP: &str = "\
Without --on a lab has an embedded store of its own, which goes with it;
FENCEPOST_URL is not used. On a store that others use it has lock names of its
own, fencepost-lab/..., and leaves none behind.

Exit codes: 0 it happened, 1 what the lab shows did not happen, 64 bad usage,
69 store out of reach, 78 refused.";

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

Exit codes: 0 it happened, 1 it did not, 64 bad usage, 69 store out of reach,
78 refused.";

const LAB_CRASH_HELP: &str = "\
Examples:
  fencepost lab crash
  fencepost lab crash --on etcd://127.0.0.1 --ttl 3s

The embedded store sees the end of the holder's process, and the next one has
the lock at once. On others it waits for the end of the lease.

Exit codes: 0 it happened, 1 it did not, 64 bad usage, 69 store out of reach,
78 refused.";

const LAB_NOLOCK_HELP: &str = "\
Examples:
  fencepost lab nolock
  fencepost lab nolock --copies 30 --ticks 5

All copies are started at once, again and again. First each inserts a key that
is unique per run, and whoever inserted it runs the job. Then each tries to take
a lock, and looks whether the job is done.

Exit codes: 0 the job ran once each time, 1 it did not, 64 bad usage, 69 store
out of reach, 78 refused.";
