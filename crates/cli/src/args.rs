//! The command line: what it takes and how `--help` teaches it.

pub(crate) mod advise;
pub(crate) mod elect;
pub(crate) mod fence;
pub(crate) mod lab;
pub(crate) mod once;
pub(crate) mod proxy;

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Parser, Subcommand, ValueEnum};
use clap_complete::Shell;

use self::advise::{ADVISE_HELP, Advise};
use self::elect::{ELECT_HELP, Elect, LEADER_HELP, Leader};
use self::fence::{FENCE_HELP, Fence};
use self::lab::{LAB_HELP, Lab};
use self::once::{ONCE_HELP, ONCE_USAGE, Once};
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
    /// Run a command on one of many at a time: while it leads
    #[command(after_help = ELECT_HELP, after_long_help = ELECT_HELP)]
    Elect(Elect),
    /// Print what the leader says of itself
    #[command(after_help = LEADER_HELP, after_long_help = LEADER_HELP)]
    Leader(Leader),
    /// Run a command once per key, whoever comes first
    #[command(after_help = ONCE_HELP, after_long_help = ONCE_HELP, disable_help_subcommand = true,
              override_usage = ONCE_USAGE)]
    Once(Once),
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
    Ls(Ls),
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
    /// Say which mechanism fits, and whether a lock is needed at all
    #[command(after_help = ADVISE_HELP, after_long_help = ADVISE_HELP)]
    Advise(Advise),
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

/// `fencepost ls`
#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only what is waited for or changes hands, the most wanted first
    #[arg(long)]
    pub(crate) hot: bool,
    /// With --hot, look again and again for this long [default: one look]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_above_zero, requires = "hot")]
    pub(crate) over: Option<Duration>,
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
  fencepost once job/$(date +%F) -- ./job  one run a day, on whichever host comes first
  fencepost elect scheduler -- ./schedule  run it while leader
  fencepost ls                             who holds what
  fencepost advise                         which mechanism fits, if any
  fencepost lab pause                      see why a lock needs a fence
  fencepost COMMAND --help                 more examples

Durations: 500ms, 30s, 2m, 1h30m, 7d.
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
Examples:
  fencepost ls
  fencepost ls --hot --over 5s             which name is everybody waiting for?

HELD is how long the lock has been held, LEFT how long its lease runs unless it
is renewed.

With --hot: WAITING is how many wait now, MOST how many waited in any look, HANDED
ON how often another grant was seen than in the look before (those between two
looks are missed), HELD how long the present one is held. Says which names are
hot, and what to do.";

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
