//! Arguments of `fencepost lab`.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Arg, Args, Subcommand, ValueEnum};

use crate::duration;

/// `fencepost lab`
#[derive(Debug, Subcommand)]
#[command(arg = on())]
pub(crate) enum Lab {
    /// Freeze the holder past its lease: without the fence an update is lost, with it none
    #[command(after_help = LAB_PAUSE_HELP, after_long_help = LAB_PAUSE_HELP)]
    Pause(LabPause),
    /// Kill the holder, and measure when the next one is granted the lock
    #[command(after_help = LAB_CRASH_HELP, after_long_help = LAB_CRASH_HELP)]
    Crash(LabCrash),
    /// Run a job once per tick on many copies, without a lock and with one, and compare
    #[command(after_help = LAB_NOLOCK_HELP, after_long_help = LAB_NOLOCK_HELP)]
    Nolock(LabNolock),
}

/// Replaces the help of the global option `--on`, whose default is different here.
fn on() -> Arg {
    Arg::new("on")
        .long("on")
        .value_name("URL")
        .global(true)
        .help("The lock store, such as redis://HOST [default: a temporary embedded store]")
}

/// What all labs take.
#[derive(Args, Debug)]
pub(crate) struct LabFiles {
    /// Keep the lab's files, and print where they are
    #[arg(long)]
    pub(crate) keep: bool,
}

/// `fencepost lab pause`
#[derive(Args, Debug)]
pub(crate) struct LabPause {
    /// The TTL: 100ms to 24h; a store may raise it
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = duration::parse_ttl,
          allow_hyphen_values = true)]
    pub(crate) ttl: Duration,
    /// How long each worker works between its read and its write: up to 24h
    #[arg(long, value_name = "DURATION", default_value = "4s", value_parser = duration::parse_work,
          allow_hyphen_values = true)]
    pub(crate) work: Duration,
    /// The database of the balance: sqlite:PATH or `postgres://HOST/DATABASE` [default: a temporary file]
    #[arg(long, value_name = "URL")]
    pub(crate) resource: Option<String>,
    /// Write the picture to this file when it is complete
    #[arg(long, value_name = "FILE")]
    pub(crate) svg: Option<PathBuf>,
    /// Do not freeze the holder: nothing is lost, and the lab exits with 1
    #[arg(long)]
    pub(crate) no_pause: bool,
    // Which halves use the fence. For tests that the lab can fail.
    #[arg(long, hide = true, value_name = "HALVES", default_value = "second")]
    pub(crate) fenced: FencedHalves,
    #[command(flatten)]
    pub(crate) files: LabFiles,
}

/// Which halves of `lab pause` use the fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum FencedHalves {
    Second,
    Both,
    Neither,
}

/// `fencepost lab crash`
#[derive(Args, Debug)]
pub(crate) struct LabCrash {
    /// The TTL: 100ms to 24h; a store may raise it
    #[arg(long, value_name = "DURATION", default_value = "5s", value_parser = duration::parse_ttl,
          allow_hyphen_values = true)]
    pub(crate) ttl: Duration,
    /// The number of rounds: 1 to 1000
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000),
          allow_hyphen_values = true)]
    pub(crate) rounds: u32,
    /// Do not kill the holder: the lock stays held, and the lab exits with 1
    #[arg(long)]
    pub(crate) no_kill: bool,
    #[command(flatten)]
    pub(crate) files: LabFiles,
}

/// `fencepost lab nolock`
#[derive(Args, Debug)]
pub(crate) struct LabNolock {
    /// The number of copies of the job: 2 to 200
    #[arg(long, value_name = "N", default_value_t = 12, value_parser = clap::value_parser!(u32).range(2..=200),
          allow_hyphen_values = true)]
    pub(crate) copies: u32,
    /// The number of ticks at which the job is due: 1 to 10000
    #[arg(long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000),
          allow_hyphen_values = true)]
    pub(crate) ticks: u32,
    /// The database of the runs: sqlite:PATH or `postgres://HOST/DATABASE` [default: a temporary file]
    #[arg(long, value_name = "URL")]
    pub(crate) resource: Option<String>,
    // Without a unique key every copy runs the job. For tests that the lab can fail.
    #[arg(long, hide = true)]
    pub(crate) no_unique_key: bool,
    // The copies check without the lock: some ticks run the job twice. For tests that the lab can fail.
    #[arg(long, hide = true)]
    pub(crate) no_lock: bool,
    #[command(flatten)]
    pub(crate) files: LabFiles,
}

/// The end of all help texts here. A macro, so that `concat!` accepts it.
macro_rules! lab_exit_codes {
    () => {
        "\
Exit codes: 0 as expected, 1 not (\"shown\" is false in JSON), 64 bad usage,
69 store or resource unreachable, 70 a system error, 78 refused, 130 interrupted
(SIGINT), 143 ended (SIGTERM)."
    };
}

pub(super) const LAB_HELP: &str = concat!(
    "\
Without --on, a lab uses a temporary embedded store; FENCEPOST_URL is not used. On
a shared store it uses lock names of its own, fencepost-lab/..., and releases them
when it ends. The locks of an interrupted lab end with their leases. As for every
name that was used, the store keeps the last token of these names for a while.

In a database that you name with --resource, it drops its tables,
fencepost_lab_..., and forgets its mark when it ends, even if interrupted. It
reports what it could not remove. `lab pause` installs the fence in that database
if it is missing, reports that, and leaves it installed.

With --json, the last line is the result. Its \"shown\" is false if the lab exits
with 1.

",
    lab_exit_codes!()
);

const LAB_PAUSE_HELP: &str = concat!(
    "\
Examples:
  fencepost lab pause
  fencepost lab pause --svg pause.svg
  fencepost lab pause --on redis://127.0.0.1 --ttl 5s
  fencepost lab pause --resource postgres://me@127.0.0.1/test

Two processes add to a balance under one lock. A reads it and is frozen (SIGSTOP)
until its lease has ended and B has read, written and released. Then A wakes and
writes. Without the fence, B's write is lost. With it, A's write is refused.

The workers do not check their guards before they write: a process can also freeze
between that check and its write.

",
    lab_exit_codes!()
);

const LAB_CRASH_HELP: &str = concat!(
    "\
Examples:
  fencepost lab crash
  fencepost lab crash --on etcd://127.0.0.1 --ttl 3s

The embedded store detects the end of the holder's process, and grants the lock to
the next waiter at once. On other stores the next waiter waits for the end of the
lease, or of the session that carries it (ZooKeeper: one and a half times the TTL).

",
    lab_exit_codes!()
);

const LAB_NOLOCK_HELP: &str = concat!(
    "\
Examples:
  fencepost lab nolock
  fencepost lab nolock --copies 30 --ticks 5

At each tick all copies start at once. In the first series each copy inserts a key
that is unique per tick, and the one that inserted it runs the job. In the second
series each copy tries to acquire a lock, and checks whether the job is done.

",
    lab_exit_codes!()
);
