//! Arguments of `fencepost elect` and `fencepost leader`.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::Class;
use crate::duration;

/// `fencepost elect`
#[derive(Args, Debug)]
pub(crate) struct Elect {
    /// The election: 1 to 512 bytes, such as scheduler
    pub(crate) name: String,
    /// The value to publish while leading, for `leader` and `--observe`: at most 4096 bytes [default: the label]
    #[arg(long, value_name = "TEXT", conflicts_with = "observe")]
    pub(crate) value: Option<String>,
    /// Replace a leader that has not renewed for this long: 100ms to 24h [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_ttl, conflicts_with = "observe")]
    pub(crate) ttl: Option<Duration>,
    /// What others see as the candidate [default: host:pid]
    #[arg(long, value_name = "TEXT", conflicts_with = "observe")]
    pub(crate) label: Option<String>,
    /// What two leaders at once would cause: wasted work, or corruption. `correctness` refuses an unfit store
    /// [default: efficiency]
    #[arg(long = "for", value_name = "CLASS", conflicts_with = "observe")]
    pub(crate) class: Option<Class>,
    /// End the term after this long: stop the command and campaign again
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_above_zero, conflicts_with = "observe")]
    pub(crate) max_hold: Option<Duration>,
    /// Only observe: print a line whenever the leader or its value changes
    #[arg(long)]
    pub(crate) observe: bool,
    /// With --observe, stop after this many lines
    #[arg(long, value_name = "N", conflicts_with = "command")]
    pub(crate) count: Option<u64>,
    /// The command to run while leading, and its arguments
    #[arg(
        last = true,
        value_name = "CMD",
        required_unless_present = "observe",
        conflicts_with = "observe"
    )]
    pub(crate) command: Vec<OsString>,
}

pub(crate) const ELECT_HELP: &str = "\
Examples:
  fencepost elect --on etcd://a,b,c scheduler -- ./scheduler
  fencepost elect --on etcd://a,b,c web --value 10.0.0.7:8080 --ttl 5s -- ./primary
  fencepost elect --on etcd://a,b,c web --observe --json | jq .value

All candidates must name the same store: without --on or FENCEPOST_URL, each host
has its own file, and a leader of its own.

Waits until this candidate leads, then runs the command as `fencepost run` does,
with the same watchdog. FENCEPOST_TOKEN is the term: it is higher than that of
every earlier leader. Send it with every write.

If the leadership is lost, the command is ended before another candidate can
lead, and this one campaigns again. After `fencepost break` the next candidate
leads at once; this one is notified, and learns of it at its next renewal at the
latest, a third of the TTL later. While the store is unreachable, it keeps trying.
If the command ends by itself, this candidate resigns, and exits with its code.

TERM, INT and HUP are forwarded to the command. This candidate leads until the
command has ended, so the command can finish its work before the next one leads.
If the leadership is lost meanwhile, the exit code is 76.

Events are reported on stderr. With --json, each is one object per line, with the
field \"event\": leading, lost, campaigning, unreachable or near_miss. Lines that begin
with `fencepost: ` are for people. stdout belongs to the command.

With --observe, prints one line per change: the term, the value and the label, or
`nobody leads`. Terms only rise. A term that lasted only a moment may be missing,
but never the last one.

Exit codes: the command's own; 64 bad usage, 69 the store is unreachable at the
start, 76 lost while the command was ending, 78 refused. If a signal ends the wait
to lead, fencepost dies by that signal (128+N in a shell).";

pub(crate) const LEADER_HELP: &str = "\
Examples:
  curl \"http://$(fencepost leader --on etcd://a,b,c web)/\"
  fencepost leader --json web

Prints the value that the leader publishes (`elect --value`), and nothing else.

Exit codes: 0 printed, 64 bad usage, 69 store unreachable, 75 nobody leads, or the
name is held as a plain lock, which has no value.";
