//! The command line: what it takes and how `--help` teaches it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use crate::duration;
use crate::exit::exit_codes;

/// Locks that stay safe when a process pauses.
#[derive(Debug, Parser)]
#[command(
    name = "fencepost",
    version,
    about = "Locks that stay safe when a process pauses",
    long_about = "Locks that stay safe when a process pauses.\n\n\
        Needs nothing installed: without --on the locks live in a file under your state directory, \
        shared by all processes of this host. Every grant carries a fencing token that only rises; \
        hand it to the resource with each write, so that it can refuse a stale one.",
    after_long_help = TOP_EXAMPLES,
    after_help = TOP_EXAMPLES,
    disable_help_subcommand = true,
    subcommand_required = true,
    arg_required_else_help = false,
)]
pub(crate) struct Cli {
    #[command(flatten)]
    pub(crate) common: Common,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// What every command takes.
#[derive(Args, Debug)]
pub(crate) struct Common {
    /// The store, such as sqlite:PATH or `redis://HOST` [default: `FENCEPOST_URL`, else a file in your state directory]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) on: Option<String>,
    /// Print JSON: one object, or one per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lock while a command runs
    #[command(after_help = RUN_HELP, after_long_help = RUN_HELP)]
    Run(Run),
    /// Take a lock for a script, which renews and releases it itself
    #[command(after_help = ACQUIRE_HELP, after_long_help = ACQUIRE_HELP)]
    Acquire(Acquire),
    /// Renew a lock that `acquire` took
    #[command(after_help = RENEW_HELP, after_long_help = RENEW_HELP)]
    Renew(Renew),
    /// Release a lock that `acquire` took
    #[command(after_help = RELEASE_HELP, after_long_help = RELEASE_HELP)]
    Release(Release),
    /// List the locks that are held or waited for
    #[command(after_help = LS_HELP, after_long_help = LS_HELP)]
    Ls,
    /// Show who holds a lock and who waits for it
    Show(Show),
    /// Follow a lock as it changes hands, a line per change
    #[command(after_help = WATCH_HELP, after_long_help = WATCH_HELP)]
    Watch(Watch),
    /// End a grant, whoever holds it
    #[command(after_help = BREAK_HELP, after_long_help = BREAK_HELP)]
    Break(Break),
    /// Print what a store guarantees under which fault
    #[command(after_help = EXPLAIN_HELP, after_long_help = EXPLAIN_HELP)]
    Explain(Explain),
    /// The resource's side: install a fence, enter, see and reset its marks
    #[command(after_help = FENCE_HELP, after_long_help = FENCE_HELP, disable_help_subcommand = true)]
    Fence(Fence),
    /// See what happens when a holder freezes or dies, with real processes
    #[command(subcommand, after_help = LAB_HELP, after_long_help = LAB_HELP)]
    Lab(Lab),
    /// What a store keeps on a server
    #[command(disable_help_subcommand = true)]
    Backend(Backend),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_HELP, after_long_help = COMPLETIONS_HELP)]
    Completions(Completions),
    /// Print the manual page
    #[command(after_help = MAN_HELP, after_long_help = MAN_HELP)]
    Man,
}

/// How a lock is taken.
#[derive(Args, Debug)]
pub(crate) struct Taking {
    /// How long the store keeps the lock without a renewal: 100ms to 24h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    /// Give up after this long [default: wait for ever]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Give up at once if somebody else has it
    #[arg(long)]
    pub(crate) no_wait: bool,
    /// What others see as the holder [default: host:pid]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// What a double run would do: waste work, or corrupt. `correctness` refuses an unfit store
    #[arg(long = "for", value_name = "CLASS", default_value = "efficiency")]
    pub(crate) class: Class,
}

/// What is at stake.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Class {
    // A double run wastes work.
    Efficiency,
    // A double run corrupts.
    Correctness,
}

/// `fencepost run`
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// What to lock: 1 to 512 bytes, such as invoice/42
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) taking: Taking,
    /// End the command after this long, however well it seems to be
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_above_zero)]
    pub(crate) max_hold: Option<Duration>,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
}

/// `fencepost acquire`
#[derive(Args, Debug)]
pub(crate) struct Acquire {
    /// What to lock: 1 to 512 bytes, such as invoice/42
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) taking: Taking,
}

/// `fencepost renew`
#[derive(Args, Debug)]
pub(crate) struct Renew {
    /// The lock
    pub(crate) name: String,
    /// What `acquire` printed [default: `FENCEPOST_OWNER`, which `ps` does not show to others]
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: Option<String>,
    /// A new TTL [default: the one it has]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_ttl)]
    pub(crate) ttl: Option<Duration>,
}

/// `fencepost release`
#[derive(Args, Debug)]
pub(crate) struct Release {
    /// The lock
    pub(crate) name: String,
    /// What `acquire` printed [default: `FENCEPOST_OWNER`, which `ps` does not show to others]
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: Option<String>,
}

/// `fencepost show`
#[derive(Args, Debug)]
pub(crate) struct Show {
    /// The lock
    pub(crate) name: String,
}

/// `fencepost watch`
#[derive(Args, Debug)]
pub(crate) struct Watch {
    /// The lock
    pub(crate) name: String,
    /// Stop after this many lines
    #[arg(long, value_name = "N")]
    pub(crate) count: Option<u64>,
}

/// `fencepost break`
#[derive(Args, Debug)]
pub(crate) struct Break {
    /// The lock
    pub(crate) name: String,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `fencepost explain`
#[derive(Args, Debug)]
pub(crate) struct Explain {
    /// The store; else that of --on
    pub(crate) url: Option<String>,
}

/// `fencepost fence`
#[derive(Args, Debug)]
pub(crate) struct Fence {
    /// What is protected: sqlite:PATH or `postgres://USER@HOST/DATABASE` [default: `FENCEPOST_RESOURCE`]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) resource: Option<String>,
    #[command(subcommand)]
    pub(crate) command: FenceCommand,
}

/// The commands of `fencepost fence`.
#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    /// Put the fence's tables and functions into the database
    #[command(after_help = FENCE_INSTALL_HELP, after_long_help = FENCE_INSTALL_HELP)]
    Install,
    /// Raise the mark of a lock to a token, in a transaction of its own
    #[command(after_help = FENCE_ENTER_HELP, after_long_help = FENCE_ENTER_HELP)]
    Enter(FenceEnter),
    /// Show the marks, or what was reset
    #[command(after_help = FENCE_SHOW_HELP, after_long_help = FENCE_SHOW_HELP)]
    Show(FenceShow),
    /// Set a mark by hand, or forget it; a record is kept
    #[command(after_help = FENCE_RESET_HELP, after_long_help = FENCE_RESET_HELP)]
    Reset(FenceReset),
    /// Make a table refuse every write by a transaction that has not entered (PostgreSQL)
    #[command(after_help = FENCE_PROTECT_HELP, after_long_help = FENCE_PROTECT_HELP)]
    Protect(FenceProtect),
    /// Take a table's protection off (PostgreSQL)
    Unprotect(FenceUnprotect),
}

/// `fencepost fence enter`
#[derive(Args, Debug)]
pub(crate) struct FenceEnter {
    /// The lock
    pub(crate) name: String,
    /// The token of the lock [default: `FENCEPOST_TOKEN`, which `fencepost run` sets]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) token: Option<String>,
}

/// `fencepost fence show`
#[derive(Args, Debug)]
pub(crate) struct FenceShow {
    /// The lock [default: all]
    pub(crate) name: Option<String>,
    /// Show the records of resets instead
    #[arg(long)]
    pub(crate) resets: bool,
}

/// `fencepost fence reset`
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("becomes").required(true).args(["to", "forget"]))]
pub(crate) struct FenceReset {
    /// The lock
    pub(crate) name: String,
    /// The new mark: lower tokens are refused, this one and higher ones are not
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) to: Option<String>,
    /// Forget the mark: any token may enter
    #[arg(long)]
    pub(crate) forget: bool,
    /// Why, for those who will ask
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: String,
    /// Who does it [default: your user's name]
    #[arg(long, value_name = "TEXT")]
    pub(crate) by: Option<String>,
}

/// `fencepost fence protect`
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("lock").required(true).args(["name_from", "name"]))]
pub(crate) struct FenceProtect {
    /// The table, as SQL writes it: orders, shop.orders, '"Shop"."Orders"'
    pub(crate) table: String,
    /// Each row names its lock in this column
    #[arg(long, value_name = "COLUMN")]
    pub(crate) name_from: Option<String>,
    /// All rows belong to this lock
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

/// `fencepost fence unprotect`
#[derive(Args, Debug)]
pub(crate) struct FenceUnprotect {
    /// The table, as SQL writes it
    pub(crate) table: String,
}

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

/// `fencepost backend`
#[derive(Args, Debug)]
pub(crate) struct Backend {
    #[command(subcommand)]
    pub(crate) command: BackendCommand,
}

/// The commands of `fencepost backend`.
#[derive(Debug, Subcommand)]
pub(crate) enum BackendCommand {
    /// Make what a store needs on its server, or bring it up to date (PostgreSQL)
    #[command(after_help = BACKEND_INSTALL_HELP, after_long_help = BACKEND_INSTALL_HELP)]
    Install,
}

/// `fencepost completions`
#[derive(Args, Debug)]
pub(crate) struct Completions {
    /// Which shell
    pub(crate) shell: Shell,
}

const TOP_EXAMPLES: &str = concat!(
    "\
Examples:
  fencepost run nightly -- ./backup.sh     hold \"nightly\" while backup.sh runs
  fencepost run --no-wait nightly -- true  exit 75 if somebody has it
  fencepost ls                             who holds what
  fencepost lab pause                      see why a lock needs a fence
  fencepost COMMAND --help                 more examples

Durations: 500ms, 30s, 2m, 1h30m.
FENCEPOST_LOG=debug prints what the library does on stderr.

",
    exit_codes!()
);

const RUN_HELP: &str = concat!(
    "\
Examples:
  fencepost run nightly -- ./backup.sh
  fencepost run --wait 5s invoice/42 -- sh -c 'echo token $FENCEPOST_TOKEN'
  fencepost run --for correctness --max-hold 1h ledger -- ./close-the-books

The command gets FENCEPOST_TOKEN (send it along with every write), FENCEPOST_NAME
and FENCEPOST_URL. Its input, output and exit code are its own; signals are
passed on to it.

The lock is renewed while the command runs. If that fails, the command's
process group gets TERM shortly before the lease ends (5s, at most a quarter
of the TTL) and KILL before anybody else can have the lock; then the exit code
is 76. That holds too if fencepost itself is killed or frozen: a watchdog
process sees to it, unless that is killed or stopped as well. What the command
leaves running in its group when it ends is ended, too. A process that leaves
the group (setsid, a daemon, timeout, a shell with set -m) is beyond reach:
only the token stops that one.

",
    exit_codes!()
);

const ACQUIRE_HELP: &str = "\
Examples:
  grant=$(fencepost acquire --ttl 1m deploy) || exit; eval \"$grant\"
  ./step-one && fencepost renew deploy && ./step-two
  fencepost release deploy

Prints assignments for a POSIX shell: FENCEPOST_NAME, FENCEPOST_OWNER,
FENCEPOST_TOKEN and FENCEPOST_TTL_MS, exported so that `renew` and `release`
find the owner. With --json one object with name, owner, token, ttl_ms. The
owner is a secret: whoever has it can release the lock.

Nothing renews the lock for you, and it does not end with your script, only by
`release` or with its TTL. Prefer `fencepost run`, which sees to all of that.

Exit codes: 0 acquired, 64 bad usage, 69 store out of reach, 75 somebody else
has it, 78 refused.";

const RENEW_HELP: &str = "\
Example:
  fencepost renew deploy --ttl 2m

Exit codes: 0 renewed, 64 bad usage, 69 store out of reach, 76 this owner does
not hold the lock (any more): stop the work.";

const RELEASE_HELP: &str = "\
Example:
  fencepost release deploy

Exit codes: 0 released, 64 bad usage, 69 store out of reach, 76 this owner does
not hold the lock: nothing was changed.";

const LS_HELP: &str = "\
HELD is how long the lock has been held, LEFT how long its lease runs unless it
is renewed.";

const WATCH_HELP: &str = "\
Example:
  fencepost watch --json nightly | jq .token

The first line is the present state. States that came and went between two looks
may be left out.";

const BREAK_HELP: &str = "\
Example:
  fencepost break --yes nightly

The holder learns of it with its next renewal at the latest (`fencepost run`
then kills its command). It may still be writing until then. The floor that is
printed lies above the broken token and below every later one: enter it at the
resource to shut the old holder out at once.

Asks first on a terminal; anywhere else it needs --yes. Nobody holds it: exit 0,
nothing changed.";

const EXPLAIN_HELP: &str = "\
Example:
  fencepost explain sqlite:/var/lib/app/locks.db";

const FENCE_HELP: &str = "\
A lock alone can not stop a holder that was paused past its lease. The resource
can: it keeps a mark per lock, the highest token that has entered, and refuses a
lower one. Each transaction of a holder enters first, also one that only reads:

  BEGIN;
  SELECT fencepost.enter('invoice/42', 33);   -- PostgreSQL, in any language
  SELECT ... ; UPDATE ... ;
  COMMIT;

In Rust: fencepost::fences::postgres::begin, fencepost::fences::sqlite::begin.

Examples:
  export FENCEPOST_RESOURCE=postgres://app@db/shop
  fencepost fence install
  fencepost fence protect invoice --name-from lock_name
  fencepost fence show

Exit codes: 0 done, 64 bad usage, 69 resource out of reach, 77 the token is
stale, 78 refused.";

const FENCE_INSTALL_HELP: &str = "\
Needs, on PostgreSQL 13 or later, a role that may create a schema. Then let the
application in:

  GRANT USAGE ON SCHEMA fencepost TO app;
  GRANT EXECUTE ON FUNCTION fencepost.enter TO app;

In a SQLite database it makes the tables fencepost_marks and fencepost_resets;
entering makes them as well. To install twice changes nothing.";

const FENCE_ENTER_HELP: &str = "\
Examples:
  fencepost run invoice/42 -- sh -c 'fencepost fence enter invoice/42 && ./work'
  fencepost fence enter invoice/42 --token 35    shut out a holder that you broke

From here on lower tokens are refused. It does not replace entering in the
transaction that writes: only that one is checked and written in one step.

Exit codes: 0 entered, 64 bad usage, 69 resource out of reach, 77 the token is
stale: a later holder has entered, 78 refused.";

const FENCE_SHOW_HELP: &str = "\
SET BY and SET AT tell who brought the token, and when by the resource's clock.";

const FENCE_RESET_HELP: &str = "\
Examples:
  fencepost fence reset ledger --to 1 --why 'lock store restored, tokens restart'
  fencepost fence reset ledger --forget --why 'the lock is not used any more'

A lower mark lets in who had been shut out: see that no old holder is left.
`fencepost fence show --resets` lists what was reset, by whom and why.";

const FENCE_PROTECT_HELP: &str = "\
Examples:
  fencepost fence protect invoice --name-from lock_name
  fencepost fence protect shop.ledger --name ledger

INSERT, UPDATE, DELETE and TRUNCATE are then refused unless the transaction has
entered with the lock of the row, the old one and the new one: for the table's
owner, for superusers, and for replicas. With --name-from, TRUNCATE and rows
without a name are always refused. Protect partitions one by one; a new
partition, or table that inherits, is not protected by itself. What is no write
of rows (DROP, ALTER TABLE) is not stopped.";

const LAB_HELP: &str = "\
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
const BACKEND_INSTALL_HELP: &str = "\
Example:
  fencepost backend install --on postgres://admin@db.example.com/shop

Makes the schema \"fencepost\" with its tables and functions. A program whose role
may create a schema does so itself when it connects; run this, and run it again
after an update, where that role may not. What to grant such a role then is in
docs/backends/postgres.md. Whatever is up to date is left alone.

Exit codes: 0 done, 64 bad usage or nothing to install there, 69 store out of
reach, 78 refused: this role may not, or the schema is newer than this program.";

const COMPLETIONS_HELP: &str = "\
Examples:
  fencepost completions bash > ~/.local/share/bash-completion/completions/fencepost
  fencepost completions fish > ~/.config/fish/completions/fencepost.fish";

const MAN_HELP: &str = "\
Example:
  fencepost man > ~/.local/share/man/man1/fencepost.1";
