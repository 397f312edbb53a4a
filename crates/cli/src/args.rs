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
        rises; hand it to the resource with each write, so that it can refuse a stale one.",
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
    /// Leave out of stderr who is waited for, near misses and the store of a listing; errors stay
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
    /// Run a command on one of many at a time: while it leads
    #[command(after_help = ELECT_HELP, after_long_help = ELECT_HELP)]
    Elect(Elect),
    /// Print what the leader says of itself
    #[command(after_help = LEADER_HELP, after_long_help = LEADER_HELP)]
    Leader {
        /// What is led
        name: String,
    },
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
    #[command(after_help = SHOW_HELP, after_long_help = SHOW_HELP)]
    Show {
        /// The lock
        name: String,
    },
    /// Follow a lock as it changes hands, a line per change
    #[command(after_help = WATCH_HELP, after_long_help = WATCH_HELP)]
    Watch(Watch),
    /// End a grant, whoever holds it
    #[command(after_help = BREAK_HELP, after_long_help = BREAK_HELP)]
    Break(Break),
    /// Print what a store guarantees under which fault
    #[command(after_help = EXPLAIN_HELP, after_long_help = EXPLAIN_HELP)]
    Explain {
        /// The store; else that of --on
        url: Option<String>,
    },
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

/// How a lock is taken.
#[derive(Args, Debug)]
pub(crate) struct Taking {
    /// How long the store keeps the lock without a renewal: 100ms to 24h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) limit: WaitLimit,
    /// What others see as the holder [default: host:pid]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// What a double run would do: waste work, or corrupt. `correctness` refuses an unfit store
    #[arg(long = "for", value_name = "CLASS", default_value = "efficiency")]
    pub(crate) class: Class,
}

/// How long to wait, with the short options of `flock`.
#[derive(Args, Debug)]
pub(crate) struct WaitLimit {
    /// Give up after this long: a duration, or seconds as in `flock -w 5` [default: wait for ever]
    #[arg(short, long, value_name = "DURATION", value_parser = duration::parse_wait, conflicts_with = "no_wait")]
    pub(crate) wait: Option<Duration>,
    /// Give up at once if somebody else has it
    #[arg(short, long)]
    pub(crate) no_wait: bool,
    /// The exit code if it was not acquired, instead of 75
    #[arg(short = 'E', long, value_name = "CODE")]
    pub(crate) conflict_exit_code: Option<u8>,
}

impl WaitLimit {
    /// The same failure; if somebody else has the lock, with the code that was asked for.
    pub(crate) fn with_its_code(&self, mut failure: Failure) -> Failure {
        if let ("held", Some(code)) = (failure.kind, self.conflict_exit_code) {
            failure.code = code;
        }
        failure
    }
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
    /// End the command after this long, however well it seems to be: TERM then, KILL up to 5s later
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
    /// Only names that begin so
    pub(crate) prefix: Option<String>,
    /// Only what is waited for or changes hands, the most wanted first
    #[arg(long)]
    pub(crate) hot: bool,
    /// With --hot, look again and again for this long [default: one look]
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
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `fencepost backend`
#[derive(Debug, Subcommand)]
pub(crate) enum Backend {
    /// Make what a store needs on its server, or bring it up to date (PostgreSQL)
    #[command(after_help = BACKEND_INSTALL_HELP, after_long_help = BACKEND_INSTALL_HELP)]
    Install,
}

const TOP_EXAMPLES: &str = concat!(
    "\
Examples:
  fencepost run nightly -- ./backup.sh     hold \"nightly\" while backup.sh runs
  fencepost run -n nightly -- ./backup.sh  exit 75 if somebody has it
  fencepost run --on etcd://a,b,c nightly -- ./backup.sh
                                           the same over several hosts
  fencepost once --on postgres://db/app \"job/$(date +%F)\" -- ./job
                                           one run a day, on whichever host comes first
  fencepost elect --on etcd://a,b,c scheduler -- ./schedule
                                           run it while leader
  fencepost ls                             who holds what
  fencepost advise                         which mechanism fits, if any
  fencepost lab pause                      see why a lock needs a fence
  fencepost COMMAND --help                 more examples

Without --on or FENCEPOST_URL a lock excludes only your own processes on this host.
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
  fencepost run -n -E 0 nightly -- ./backup.sh      somebody has it: exit 0
  fencepost run --on sqlite:/srv/app/locks.db?shared=group nightly -- ./backup.sh
  fencepost run --on postgres://db/app --for correctness --max-hold 1h ledger -- ./close-the-books

The command gets FENCEPOST_TOKEN (send it along with every write), FENCEPOST_NAME
and FENCEPOST_URL. Its input, output and exit code are its own; signals are
passed on to it.

A wait goes on while the store is out of reach, and says so. Only a store that
cannot be reached at the start ends it at once (69).

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
FENCEPOST_TOKEN, FENCEPOST_TTL_MS and FENCEPOST_URL, exported so that `renew` and
`release` find the owner and the store. With --json one object with name, owner,
token, ttl_ms, url. The owner is a secret: whoever has it can release the lock;
the URL has the password that it was given with. The holder that others see is
the process that ran this, your shell.

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
  fencepost ls invoice/                    names that begin so
  fencepost ls --hot --over 5s             which name is everybody waiting for?

The store that it is of stands on stderr, and in \"store\" with --json. A store that
is not there yet is empty, and is not created.

HELD is how long the lock has been held, LEFT how long its lease runs unless it
is renewed.

With --hot: WAITING is how many wait now, MOST how many waited in any look, HANDED
ON how often another grant was seen than in the look before (those between two
looks are missed), HELD how long the present one is held. Says which names are
hot, and what to do.";

const SHOW_HELP: &str = "\
Example:
  fencepost show --on etcd://a,b,c nightly

A lock that nobody holds, in a store that is not there yet too, is free: exit 0.";

const WATCH_HELP: &str = "\
Example:
  fencepost watch --json nightly | jq .token

The first line is the present state. Each has the time when it was seen, in UTC;
with --json in \"time\". States that came and went between two looks may be left out.
Ends with ^C, by that signal.";

const BREAK_HELP: &str = "\
Examples:
  fencepost break nightly
  fencepost break --yes --token 42 nightly

The holder is notified (`fencepost run` then kills its command), and this waits up to
a second for it to confirm. A holder that has not confirmed is frozen, cut off, a
script or another client: it may go on until its own deadline, at most as long as
its lease runs, while the next one works already. The floor that is printed lies
above the broken token and above no later one: enter it at the resource
(`fencepost fence enter NAME --token FLOOR --resource URL`) to shut the old
holder out at once.

Asks first on a terminal, and breaks only the grant that it showed; anywhere else
it needs --yes.

Exit codes: 0 broken, or nobody holds it; 64 bad usage, or you said no; 69 store
out of reach; 75 another grant than that of --token is there: nothing was broken.";

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
