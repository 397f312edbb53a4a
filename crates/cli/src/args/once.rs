//! What `fencepost once` can be told.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::WaitLimit;
use crate::duration;

/// `fencepost once`
#[derive(Args, Debug)]
#[command(subcommand_negates_reqs = true)]
pub(crate) struct Once {
    /// What is done once: up to 507 bytes, such as billing/2026-11-16
    #[arg(conflicts_with = "key_given", required_unless_present = "key_given")]
    pub(crate) key: Option<String>,
    /// The same, for a key that is called ls, show or forget
    #[arg(long = "key", id = "key_given", value_name = "KEY")]
    pub(crate) key_given: Option<String>,
    /// How long it is remembered: 1s to ten years
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = duration::parse)]
    pub(crate) keep: Duration,
    /// After how long a runner that is not heard of is taken over: 100ms to 24h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) limit: WaitLimit,
    /// What others see as the runner [default: host:pid]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// If the command fails, remember that too: nobody tries again
    #[arg(long)]
    pub(crate) record_failure: bool,
    /// Keep what the command prints on stdout, the first 64 KiB, for those who come later
    #[arg(long)]
    pub(crate) keep_output: bool,
    /// Take a store that may forget: to run once more then is a waste, and no harm
    #[arg(long)]
    pub(crate) may_repeat: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
    #[command(subcommand)]
    pub(crate) records: Option<Records>,
}

/// What can be done with the records.
#[derive(Debug, Subcommand)]
pub(crate) enum Records {
    /// List what is recorded
    #[command(after_help = ONCE_LS_HELP, after_long_help = ONCE_LS_HELP)]
    Ls,
    /// Show one record, with what the run printed
    #[command(after_help = ONCE_SHOW_HELP, after_long_help = ONCE_SHOW_HELP)]
    Show {
        /// The key
        key: String,
    },
    /// Remove a record, so that the work can be done again
    #[command(after_help = ONCE_FORGET_HELP, after_long_help = ONCE_FORGET_HELP)]
    Forget(OnceForget),
}

/// `fencepost once forget`
#[derive(Args, Debug)]
pub(crate) struct OnceForget {
    /// The key
    pub(crate) key: String,
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
}

pub(crate) const ONCE_USAGE: &str = "\
fencepost once [OPTIONS] <KEY> -- <CMD>...
       fencepost once <ls|show|forget> ...";

pub(crate) const ONCE_HELP: &str = "\
Examples:
  fencepost once --on postgres://db/app \"billing/$(date +%F)\" -- ./billing
                                         on twelve machines, one runs it
  fencepost once --keep-output --keep 1h prices -- ./fetch-prices
  fencepost once --record-failure migrate/42 -- ./migrate
  fencepost once ls                      what is recorded
  fencepost once --key ls -- true        a key that is called ls

All hosts must name the same store: without --on or FENCEPOST_URL each host has its
own file, and twelve hosts run it twelve times.

The command runs if nobody has done KEY yet, as under `fencepost run`, with
FENCEPOST_KEY besides the other variables. Exit 0: KEY is recorded as done, for
--keep. Whoever comes later runs nothing: exit 0, a line on stderr that says who
did it, and on stdout what was kept of the output. Whoever comes meanwhile waits.

The command fails: its code is passed on, and the next one to come tries again.
With --record-failure nobody does: all exit with that code, until the record is
forgotten. A command that was ended by a signal sent to us, or by ^C, did not fail.

The runner dies: the next one takes over when its lease ends, at once on an
embedded store. So a crash after the work and before the record repeats the work.
Where that must not be: docs/once.md, effect and mark in one transaction.

Exit codes: 0 done, now or before; the command's own, now or recorded (1 if the
record names none); 64 bad usage; 69 store out of reach; 75 somebody is at it and
we were not to wait (longer; -E gives another code); 76 lost or overtaken: the record is left to who has
it now; 78 the store keeps no records, or may lose them and --may-repeat is not
given.";

const ONCE_LS_HELP: &str = "\
AGE is how long it stands so, KEPT how long it will be remembered. A run whose
runner is gone is shown as interrupted: the next one to come takes it over.";

const ONCE_SHOW_HELP: &str = "\
Exit codes: 0 shown, 64 bad usage, 69 store out of reach, 75 nothing is recorded
under this key, 78 the store keeps no records.";

const ONCE_FORGET_HELP: &str = "\
Example:
  fencepost once forget --yes billing/2026-11-16

Asks first on a terminal; anywhere else it needs --yes.

Exit codes: 0 forgotten, 64 bad usage, 69 store out of reach, 75 nothing is
recorded under this key, or somebody is running it, 78 the store keeps no records.";
