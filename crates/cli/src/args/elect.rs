//! What `fencepost elect` and `fencepost leader` can be told.

use std::ffi::OsString;
use std::time::Duration;

use clap::Args;

use super::Class;
use crate::duration;

/// `fencepost elect`
#[derive(Args, Debug)]
pub(crate) struct Elect {
    /// What to lead: 1 to 512 bytes, such as scheduler
    pub(crate) name: String,
    /// What the leader says of itself, for `leader` and `--observe`: at most 4096 bytes [default: the label]
    #[arg(long, value_name = "TEXT", conflicts_with = "observe")]
    pub(crate) value: Option<String>,
    /// How long a leader that is not heard of stays leader: 100ms to 24h [default: 30s]
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_ttl, conflicts_with = "observe")]
    pub(crate) ttl: Option<Duration>,
    /// What others see as the candidate [default: host:pid]
    #[arg(long, value_name = "TEXT", conflicts_with = "observe")]
    pub(crate) label: Option<String>,
    /// What two leaders would do: waste work, or corrupt. `correctness` refuses an unfit store [default:
    /// efficiency]
    #[arg(long = "for", value_name = "CLASS", conflicts_with = "observe")]
    pub(crate) class: Option<Class>,
    /// Lead no longer than this at a stretch; then the command is ended, and others have their turn
    #[arg(long, value_name = "DURATION", value_parser = duration::parse_above_zero, conflicts_with = "observe")]
    pub(crate) max_hold: Option<Duration>,
    /// Take no part: print a line whenever the leader, or what it says, changes
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

All candidates must name the same store: without --on or FENCEPOST_URL each host
has its own file, and a leader of its own.

Waits until it is our turn to lead, then runs the command as `fencepost run`
does, with the same watchdog. FENCEPOST_TOKEN is the term: higher than that of
every leader before. Send it along with every write.

Leadership lost: the command is ended before anybody else can lead, and we stand
for election again. Not so after `fencepost break`: the next one leads at once;
we are notified, and at worst hear of it when we renew, a third of the TTL later. A
wait goes on while the store is out of reach.
The command ends by itself: we resign, and its exit code is ours.

TERM, INT and HUP are passed on to the command, and we go on leading until it
has ended: it can finish what it has begun, and only then the next one leads.
If the leadership is lost meanwhile, the exit code is 76.

What happens is told on stderr; with --json as one object per line, with the
field \"event\": leading, lost, campaigning, unreachable or near_miss. Lines that begin
with `fencepost: ` are for people. stdout is the command's.

With --observe, a line per change: the term, the value, the label; `nobody leads`
when that is so. Terms only rise. Those that came and went between two looks may
be left out, the last one never is.

Exit codes: the command's own; 64 bad usage, 69 the store cannot be reached at
the start, 76 lost while it was ending, 78 refused. A signal that ends it while it
waits to lead ends it by that signal (128+N in a shell).";

pub(crate) const LEADER_HELP: &str = "\
Examples:
  curl \"http://$(fencepost leader --on etcd://a,b,c web)/\"
  fencepost leader --json web

Prints what the leader said of itself (`elect --value`), and nothing else.

Exit codes: 0 printed, 64 bad usage, 69 store out of reach, 75 nobody leads, or
the name is held as a plain lock, which says nothing.";
