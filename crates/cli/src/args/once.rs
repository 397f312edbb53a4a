//! Arguments of `fencepost once`.

use std::ffi::OsString;
use std::time::Duration;

use clap::{Args, Subcommand};

use super::WaitLimit;
use crate::duration;

/// `fencepost once`
#[derive(Args, Debug)]
#[command(subcommand_negates_reqs = true)]
pub(crate) struct Once {
    /// What to run once: up to 507 bytes, such as billing/2026-11-16
    #[arg(conflicts_with = "key_given", required_unless_present = "key_given")]
    pub(crate) key: Option<String>,
    /// The key, if it is called ls, show or forget
    #[arg(long = "key", id = "key_given", value_name = "KEY")]
    pub(crate) key_given: Option<String>,
    /// Retain the record for this long: 1s to ten years
    #[arg(long, value_name = "DURATION", default_value = "7d", value_parser = duration::parse)]
    pub(crate) retain_for: Duration,
    /// Take over from a runner that has not renewed for this long: 100ms to 24h
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = duration::parse_ttl)]
    pub(crate) ttl: Duration,
    #[command(flatten)]
    pub(crate) limit: WaitLimit,
    /// What others see as the runner [default: host:pid]
    #[arg(long, value_name = "TEXT")]
    pub(crate) label: Option<String>,
    /// If the command fails, record the failure: nobody retries
    #[arg(long)]
    pub(crate) record_failure: bool,
    /// Record the first 64 KiB of the command's stdout, for later callers
    #[arg(long)]
    pub(crate) keep_output: bool,
    /// Accept a store that can lose records: the command must be safe to run twice
    #[arg(long)]
    pub(crate) may_repeat: bool,
    /// The command and its arguments
    #[arg(last = true, required = true, value_name = "CMD")]
    pub(crate) command: Vec<OsString>,
    #[command(subcommand)]
    pub(crate) records: Option<Records>,
}

/// The commands for records.
#[derive(Debug, Subcommand)]
pub(crate) enum Records {
    /// List the records
    #[command(after_help = ONCE_LS_HELP, after_long_help = ONCE_LS_HELP)]
    Ls,
    /// Show a record, with the recorded output
    #[command(after_help = ONCE_SHOW_HELP, after_long_help = ONCE_SHOW_HELP)]
    Show {
        /// The key
        key: String,
    },
    /// Remove a record, so that the command can run again
    #[command(after_help = ONCE_FORGET_HELP, after_long_help = ONCE_FORGET_HELP)]
    Forget(OnceForget),
}

/// `fencepost once forget`
#[derive(Args, Debug)]
pub(crate) struct OnceForget {
    /// The key
    pub(crate) key: String,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
}

pub(crate) const ONCE_USAGE: &str = "\
fencepost once [OPTIONS] <KEY> -- <CMD>...
       fencepost once <ls|show|forget> ...";

pub(crate) const ONCE_HELP: &str = "\
Examples:
  fencepost once --on postgres://db/app \"billing/$(date +%F)\" -- ./billing
                                         runs on one of twelve hosts
  fencepost once --on postgres://db/app --keep-output --retain-for 1h prices \\
    -- ./fetch-prices
  fencepost once --on postgres://db/app --record-failure migrate/42 -- ./migrate
  fencepost once ls                      list the records
  fencepost once --key ls -- true        a key that is called ls

All hosts must name the same store: without --on or FENCEPOST_URL, each host has
its own file, and twelve hosts run the command twelve times.

If KEY is not done yet, the command runs as under `fencepost run`, with
FENCEPOST_KEY as a further variable. If it exits with 0, KEY is recorded as done.
Callers that come meanwhile wait. Later callers do not run the command: they exit
with 0, say on stderr who ran it, and print the recorded output.

If the command fails, its exit code is passed on, and the next caller retries.
With --record-failure nobody retries: all callers exit with that code until the
record is forgotten. A command that was ended by ^C, or by a signal to fencepost,
has not failed.

If the runner dies, the next caller takes over when the lease ends; on an embedded
store, at once. So a crash after the work and before the record repeats the work.
To prevent that, record the run in the transaction of its effect: docs/once.md.

Exit codes: 0 done, now or earlier; the command's own, now or recorded (1 if the
record names none); 64 bad usage; 69 store unreachable; 75 another runner is
active and the wait is over (-E gives another code); 76 lost or overtaken: the
record was left unchanged; 78 the store keeps no records, or can lose them and
--may-repeat is not given.";

const ONCE_LS_HELP: &str = "\
AGE is how long the record has been in this state, EXPIRES IN how long it will be
retained. A run whose runner is gone is shown as interrupted: the next caller takes
it over.";

const ONCE_SHOW_HELP: &str = "\
Exit codes: 0 shown, 64 bad usage, 69 store unreachable, 75 no record of this key,
78 the store keeps no records.";

const ONCE_FORGET_HELP: &str = "\
Example:
  fencepost once forget --yes billing/2026-11-16

On a terminal it asks first. Elsewhere it needs --yes.

Exit codes: 0 forgotten, 64 bad usage, 69 store unreachable, 75 no record of this
key, or it is running, 78 the store keeps no records.";
