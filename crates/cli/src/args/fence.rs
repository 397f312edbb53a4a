//! What `fencepost fence` can be told.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::proxy::{FenceProxy, PROXY_HELP};

/// `fencepost fence`
#[derive(Args, Debug)]
pub(crate) struct Fence {
    /// What is protected: sqlite:PATH, `postgres://USER@HOST/DATABASE`, `redis://HOST` or `file:PATH` [default:
    /// `FENCEPOST_RESOURCE`]
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
    /// Replace a file by standard input, if the token may
    #[command(after_help = FENCE_WRITE_HELP, after_long_help = FENCE_WRITE_HELP)]
    Write(FenceWrite),
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
    Unprotect {
        /// The table, as SQL writes it
        table: String,
    },
    /// Stand in front of an HTTP service, and refuse stale tokens there
    #[command(after_help = PROXY_HELP, after_long_help = PROXY_HELP)]
    Proxy(Box<FenceProxy>),
}

/// `fencepost fence enter`
#[derive(Args, Debug)]
pub(crate) struct FenceEnter {
    /// The lock; with --name, the file that it protects
    #[arg(value_name = "NAME|PATH")]
    pub(crate) what: String,
    /// The lock, if it is a file that is entered
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    /// The token of the lock [default: `FENCEPOST_TOKEN`, which `fencepost run` sets]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) token: Option<String>,
}

/// `fencepost fence write`
#[derive(Args, Debug)]
pub(crate) struct FenceWrite {
    /// The file, on a disk of this host
    pub(crate) path: PathBuf,
    /// The lock that protects it
    #[arg(long, value_name = "NAME")]
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
    /// Do not ask
    #[arg(long)]
    pub(crate) yes: bool,
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

pub(super) const FENCE_HELP: &str = "\
A lock alone can not stop a holder that was paused past its lease. The resource
can: it keeps a mark per lock, the highest token that has entered, and refuses a
lower one. Each transaction of a holder enters first, also one that only reads:

  BEGIN;
  SELECT fencepost.enter('invoice/42', 33);   -- PostgreSQL, in any language
  SELECT ... ; UPDATE ... ;
  COMMIT;

In Rust: fencepost::fences::postgres::begin, fencepost::fences::sqlite::begin,
fencepost::fences::redis::Fence, fencepost::fences::file::FileFence. A file on this
host: fencepost fence write.

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
entering makes them as well. On a Redis and for a file there is nothing to
install. To install twice changes nothing.";

const FENCE_ENTER_HELP: &str = "\
Examples:
  fencepost run invoice/42 -- sh -c 'fencepost fence enter invoice/42 && ./work'
  fencepost fence enter invoice/42 --token 35    shut out a holder that you broke
  fencepost fence enter report.json --name report && jq .sum report.json

From here on lower tokens are refused. It does not replace entering in the
transaction that writes: only that one is checked and written in one step. For a
file that is `fencepost fence write`; enter before you read it.

Exit codes: 0 entered, 64 bad usage, 69 resource out of reach, 77 the token is
stale: a later holder has entered, 78 refused.";

const FENCE_WRITE_HELP: &str = "\
Examples:
  fencepost run report -- sh -c './report > new && fencepost fence write r.json --name report < new'
  fencepost fence write r.json --name report --token 35 < new

The input is read to its end first, beside the file (.r.json.fence), so a slow
or frozen writer holds nobody up. Then the token is checked and the file replaced
in one step, all of it or nothing. In a pipe, a program that fails half-way looks
like one that is done: let it write a file first, as above.

Who writes the file in another way is not stopped. Files on a network file
system are refused: another machine would not see the lock.

Exit codes: 0 written, 64 bad usage, 69 disk full or out of reach, 77 the token is
stale: a later holder has entered and the file is as it was, 78 refused.";

const FENCE_SHOW_HELP: &str = "\
SET BY and SET AT tell who brought the token, and when by the resource's clock.";

const FENCE_RESET_HELP: &str = "\
Examples:
  fencepost fence reset ledger --to 1 --why 'lock store restored, tokens restart'
  fencepost fence reset ledger --forget --yes --why 'the lock is not used any more'

A lower mark lets in who had been shut out: see that no old holder is left.
Lowering or forgetting one asks first on a terminal; anywhere else it needs
--yes.
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
