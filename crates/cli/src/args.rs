//! The command line and its help texts.

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
use self::elect::{ELECT_HELP, Elect, LEADER_HELP};
use self::fence::{FENCE_HELP, Fence};
use self::lab::{LAB_HELP, Lab};
use self::once::{ONCE_HELP, ONCE_USAGE, Once};
use crate::duration;
use crate::exit::{Failure, exit_codes};

/// Locks that stay safe when a process pauses.
#[derive(Debug, Parser)]
#[command(
    name = "fencepost",
    version,
    about = "Locks that stay safe when a process pauses",
    long_about = "Locks that stay safe when a process pauses.\n\n\
        Needs nothing installed: without --on the locks live in a file under your state directory, \
        shared by your processes on this host. Several users of a host share sqlite:PATH?shared=group, \
        several hosts a server (--on URL on each of them). Every grant carries a fencing token that only \
        rises; pass it to the resource with each write, so that it can refuse a stale one.",
    after_long_help = TOP_EXAMPLES,
    after_help = TOP_EXAMPLES,
    subcommand_required = true,
    arg_required_else_help = false,
)]
pub(crate) struct Cli {
    /// The store, such as sqlite:PATH or `redis://HOST` [default: `FENCEPOST_URL`, else a file in your state
    /// directory, for your processes on this host]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) on: Option<String>,
    /// Print JSON: one object, or one per line
    #[arg(long, global = true)]
    pub(crate) json: bool,
    /// Print only errors and warnings on stderr: no progress of waits, near misses or store names
    #[arg(short, long, global = true)]
    pub(crate) quiet: bool,
    #[command(subcommand)]
    pub(crate) command: Command,
}

/// The commands.
#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    /// Hold a lock while a command runs
    #[command(after_help = RUN_HELP, after_long_help = RUN_HELP)]
    Run(Run),
    /// Run a command while this candidate is the leader
    #[command(after_help = ELECT_HELP, after_long_help = ELECT_HELP)]
    Elect(Elect),
    /// Print the value that the leader publishes
    #[command(after_help = LEADER_HELP, after_long_help = LEADER_HELP)]
    Leader {
        /// The election
        name: String,
    },
    /// Run a command once per key, across all hosts that share the store
    #[command(after_help = ONCE_HELP, after_long_help = ONCE_HELP, disable_help_subcommand = true,
              override_usage = ONCE_USAGE)]
    Once(Once),
    /// Acquire a lock for a script, which renews and releases it itself
    #[command(after_help = ACQUIRE_HELP, after_long_help = ACQUIRE_HELP)]
    Acquire(Acquire),
    /// Renew a lock that was acquired with `acquire`
    #[command(after_help = RENEW_HELP, after_long_help = RENEW_HELP)]
    Renew(Renew),
    /// Release a lock that was acquired with `acquire`
    #[command(after_help = RELEASE_HELP, after_long_help = RELEASE_HELP)]
    Release(OwnerArgs),
    /// List the locks that have a holder or waiters
    #[command(after_help = LS_HELP, after_long_help = LS_HELP)]
    Ls(Ls),
    /// Show the holder and the waiters of a lock
    #[command(after_help = SHOW_HELP, after_long_help = SHOW_HELP)]
    Show {
        /// The lock
        name: String,
    },
    /// Print a line whenever a lock changes
    #[command(after_help = WATCH_HELP, after_long_help = WATCH_HELP)]
    Watch(Watch),
    /// End a grant, whoever holds it
    #[command(after_help = BREAK_HELP, after_long_help = BREAK_HELP)]
    Break(Break),
    /// Print what a store guarantees under which fault
    #[command(after_help = EXPLAIN_HELP, after_long_help = EXPLAIN_HELP)]
    Explain {
        /// The store [default: that of --on]
        url: Option<String>,
    },
    /// Recommend a mechanism, and say whether you need a lock at all
    #[command(after_help = ADVISE_HELP, after_long_help = ADVISE_HELP)]
    Advise(Advise),
    /// Fence a resource: install, enter, write, show and reset marks
    #[command(after_help = FENCE_HELP, after_long_help = FENCE_HELP, disable_help_subcommand = true)]
    Fence(Fence),
    /// Watch a holder freeze or die, with real processes
    #[command(subcommand, after_help = LAB_HELP, after_long_help = LAB_HELP)]
    Lab(Lab),
    /// Manage what a store needs on its server
    #[command(subcommand, disable_help_subcommand = true)]
    Backend(Backend),
    /// Print a completion script for a shell
    #[command(after_help = COMPLETIONS_HELP, after_long_help = COMPLETIONS_HELP)]
    Completions {
        /// Which shell
        shell: Shell,
    },
    /// Print the manual page
    #[command(after_help = MAN_HELP, after_long_help = MAN_HELP)]
    Man,
}

/// How `run` and `acquire` acquire a lock.
#[derive(Args, Debug)]
pub(crate) struct LockArgs {
    /// How long the store keeps the lock without a renewal: 100ms to 24h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) limit: WaitLimit,
    /// What others see as the holder [default: host:pid]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// What two holders at once would cause: wasted work, or corruption. `correctness` refuses an unfit store
    #[arg(long = "for", value_name = "CLASS", default_value = "efficiency")]
    pub(crate) class: Class,
}

/// How long to wait. The short options are those of `flock`.
#[derive(Args, Debug)]
pub(crate) struct WaitLimit {
    /// Give up after this long: a duration, or seconds as in `flock -w 5` [default: no limit]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse_wait, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Give up at once if another client holds it
    #[arg(short, long)]
    pub(crate) no_wait: bool,
    /// Exit with this code instead of 75 if it was not acquired
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,
}

impl WaitLimit {
    /// Replaces the exit code by that of `-E`, if another client holds the lock.
    pub(crate) fn with_conflict_code(&self, mut failure: Failure) -> Failure {
        if let ("held", Some(code)) = (failure.kind, self.conflict_exit_code) {
            failure.code = code;
        }
        failure
    }
}

/// What the lock is for. Not doc comments on the values: clap would show those in the help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Class {
    // A double run wastes work.
    Efficiency,
    // A double run corrupts data.
    Correctness,
}

/// `fencepost run`
#[derive(Args, Debug)]
pub(crate) struct Run {
    /// What to lock: 1 to 512 bytes, such as invoice/42
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) lock: LockArgs,
    /// Stop the command after this long, even if it is healthy: TERM, then KILL up to 5s later
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
    pub(crate) lock: LockArgs,
}

/// `fencepost renew`
#[derive(Args, Debug)]
pub(crate) struct Renew {
    #[command(flatten)]
    pub(crate) grant: OwnerArgs,
    /// The new TTL [default: the present one]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_ttl)]
    pub(crate) ttl: Option<Duration>,
}

/// `fencepost release`, and the grant that `renew` renews.
#[derive(Args, Debug)]
pub(crate) struct OwnerArgs {
    /// The lock
    pub(crate) name: String,
    /// The owner that `acquire` printed [default: `FENCEPOST_OWNER`, which `ps` does not show to others]
    #[arg(long, value_name = "OWNER")]
    pub(crate) owner: Option<String>,
}

/// `fencepost ls`
#[derive(Args, Debug)]
pub(crate) struct Ls {
    /// Only names with this prefix
    pub(crate) prefix: Option<String>,
    /// Only locks with waiters or changing holders, the most contended first
    #[arg(long)]
    pub(crate) hot: bool,
    /// With --hot, sample for this long [default: one sample]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_above_zero, requires = "hot")]
    pub(crate) over: Option<Duration>,
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
    /// Break only the grant that has this token
    #[arg(long, value_name = "N")]
    pub(crate) token: Option<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `fencepost backend`
#[derive(Debug, Subcommand)]
pub(crate) enum Backend {
    /// Create or upgrade the schema that the store needs on its server (PostgreSQL)
    #[command(after_help = BACKEND_INSTALL_HELP, after_long_help = BACKEND_INSTALL_HELP)]
    Install,
}

const TOP_EXAMPLES: &str = concat!(
    "\
Examples:
  fencepost run nightly -- ./backup.sh     hold \"nightly\" while backup.sh runs
  fencepost run -n nightly -- ./backup.sh  exit 75 if it is held
  fencepost run --on etcd://a,b,c nightly -- ./backup.sh
                                           the same across several hosts
  fencepost once --on postgres://db/app \"job/$(date +%F)\" -- ./job
                                           one run a day, on whichever host is first
  fencepost elect --on etcd://a,b,c scheduler -- ./schedule
                                           run it while leader
  fencepost ls                             list locks and their holders
  fencepost advise                         choose a mechanism
  fencepost lab pause                      see why a lock needs a fence
  fencepost COMMAND --help                 more examples

Without --on or FENCEPOST_URL, a lock excludes only your own processes on this host.
Durations: 500ms, 30s, 2m, 1h30m, 7d.
FENCEPOST_LOG=debug logs what the library does on stderr.

",
    exit_codes!()
);

const RUN_HELP: &str = concat!(
    "\
Examples:
  fencepost run nightly -- ./backup.sh
  fencepost run --wait 5s invoice/42 -- sh -c 'echo token $FENCEPOST_TOKEN'
  fencepost run -n -E 0 nightly -- ./backup.sh      exit 0 if it is held
  fencepost run --on sqlite:/srv/app/locks.db?shared=group nightly -- ./backup.sh
  fencepost run --on postgres://db/app --for correctness --max-hold 1h ledger -- ./close-the-books

The command gets FENCEPOST_TOKEN (send it with every write), FENCEPOST_NAME and
FENCEPOST_URL. It uses fencepost's stdin, stdout and stderr, and its exit code is
passed on. Signals are forwarded to it.

If the store becomes unreachable, a wait reports it and continues. If the store
cannot be reached at the start, fencepost exits with 69.

The lock is renewed while the command runs. If renewals fail, the command's
process group gets TERM shortly before the lease ends (5s, at most a quarter of
the TTL), and KILL before another client can acquire the lock. The exit code is
then 76. If fencepost itself is killed or frozen, a watchdog process does the
same, unless it is killed or stopped as well. Processes that the command leaves
running in its group are ended too. A process that leaves the group (setsid, a
daemon, timeout, a shell with set -m) cannot be ended: only the token stops it.

",
    exit_codes!()
);

const ACQUIRE_HELP: &str = "\
Examples:
  grant=$(fencepost acquire --ttl 1m deploy) || exit; eval \"$grant\"
  ./step-one && fencepost renew deploy && ./step-two
  fencepost release deploy

Prints assignments for a POSIX shell: FENCEPOST_NAME, FENCEPOST_OWNER,
FENCEPOST_TOKEN, FENCEPOST_TTL_MS and FENCEPOST_URL, exported so that `renew` and
`release` find the owner and the store. With --json, prints one object with name,
owner, token, ttl_ms and url. The owner is a secret: whoever has it can release
the lock. The URL includes the password that you gave. Others see your shell as
the holder, because it is the process that ran this.

Nothing renews the lock for you. It does not end with your script, only by
`release` or at the end of its TTL. Prefer `fencepost run`, which renews and
releases it.

Exit codes: 0 acquired, 64 bad usage, 69 store unreachable, 75 held by another
client, 78 refused.";

const RENEW_HELP: &str = "\
Example:
  fencepost renew deploy --ttl 2m

Exit codes: 0 renewed, 64 bad usage, 69 store unreachable, 76 this owner does not
hold the lock, or no longer does: stop the work.";

const RELEASE_HELP: &str = "\
Example:
  fencepost release deploy

Exit codes: 0 released, 64 bad usage, 69 store unreachable, 76 this owner does
not hold the lock: nothing was changed.";

const LS_HELP: &str = "\
Examples:
  fencepost ls
  fencepost ls invoice/                    names with this prefix
  fencepost ls --hot --over 5s             the most contended names

The store is named on stderr, and in \"store\" with --json. A store that does not
exist yet is shown as empty, and is not created.

HELD is how long the lock has been held. LEFT is how long its lease runs unless it
is renewed.

With --hot: WAITING is the number of waiters now, MOST the highest number in any
sample, HANDOFFS how often the grant differed from that of the sample before
(grants between two samples are missed), HELD how long the present grant has
lasted. Hot names are listed below the table, with what to do about them.";

const SHOW_HELP: &str = "\
Example:
  fencepost show --on etcd://a,b,c nightly

A lock without a holder is free, even in a store that does not exist yet: exit 0.";

const WATCH_HELP: &str = "\
Example:
  fencepost watch --json nightly | jq .token

The first line is the present state. Each line has the time at which it was read,
in UTC; with --json it is in \"time\". A state that lasted only a moment may be
missing. Stop it with ^C.";

const BREAK_HELP: &str = "\
Examples:
  fencepost break nightly
  fencepost break --yes --token 42 nightly

The holder is notified (`fencepost run` then kills its command), and has up to a
second to confirm. A holder that does not confirm is frozen, disconnected, a
script or a third-party client. It may keep working until its own deadline, at
most until its lease would have ended, while the next holder already works. To
shut it out at once, enter the floor that is printed at the resource
(`fencepost fence enter NAME --token FLOOR --resource URL`). The floor is above
the broken token, and not above any later one.

On a terminal it asks first, and breaks only the grant that it showed. Elsewhere
it needs --yes.

Exit codes: 0 broken, or not held; 64 bad usage, or you answered no; 69 store
unreachable; 75 the present grant is not that of --token: nothing was broken.";

const EXPLAIN_HELP: &str = "\
Example:
  fencepost explain sqlite:/var/lib/app/locks.db";

const BACKEND_INSTALL_HELP: &str = "\
Example:
  fencepost backend install --on postgres://admin@db.example.com/shop

Creates the schema \"fencepost\" with its tables and functions. A program whose
role can create a schema does this when it connects. If your program's role
cannot, run this as an admin, and again after each update. For the privileges that
the program's role needs, see docs/backends/postgres.md. Components that are up to
date are not changed.

Exit codes: 0 done, 64 bad usage or nothing to install there, 69 store
unreachable, 78 refused: this role lacks privileges, or the schema is newer than
this program.";

const COMPLETIONS_HELP: &str = "\
Examples:
  fencepost completions bash > ~/.local/share/bash-completion/completions/fencepost
  fencepost completions fish > ~/.config/fish/completions/fencepost.fish";

const MAN_HELP: &str = "\
Example:
  fencepost man > ~/.local/share/man/man1/fencepost.1";
