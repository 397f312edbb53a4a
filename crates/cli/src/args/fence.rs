//! Arguments of `fencepost fence`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use super::proxy::{FenceProxy, PROXY_HELP};

/// `fencepost fence`
#[derive(Args, Debug)]
pub(crate) struct Fence {
    /// The resource to protect: sqlite:PATH, `postgres://USER@HOST/DATABASE`, `redis://HOST` or `file:PATH` [default:
    /// `FENCEPOST_RESOURCE`]
    #[arg(long, global = true, value_name = "URL")]
    pub(crate) resource: Option<String>,
    #[command(subcommand)]
    pub(crate) command: FenceCommand,
}

#[derive(Debug, Subcommand)]
pub(crate) enum FenceCommand {
    /// Create the fence's tables and functions in the database
    #[command(after_help = FENCE_INSTALL_HELP, after_long_help = FENCE_INSTALL_HELP)]
    Install,
    /// Raise the mark of a lock to a token, in a transaction of its own
    #[command(after_help = FENCE_ENTER_HELP, after_long_help = FENCE_ENTER_HELP)]
    Enter(FenceEnter),
    /// Replace a file with standard input, unless the token is stale
    #[command(after_help = FENCE_WRITE_HELP, after_long_help = FENCE_WRITE_HELP)]
    Write(FenceWrite),
    /// Show the marks, or the log of resets
    #[command(after_help = FENCE_SHOW_HELP, after_long_help = FENCE_SHOW_HELP)]
    Show(FenceShow),
    /// Set or delete a mark, and log the reset
    #[command(after_help = FENCE_RESET_HELP, after_long_help = FENCE_RESET_HELP)]
    Reset(FenceReset),
    /// Make a table refuse writes by transactions that have not entered (PostgreSQL)
    #[command(after_help = FENCE_PROTECT_HELP, after_long_help = FENCE_PROTECT_HELP)]
    Protect(FenceProtect),
    /// Remove the protection of a table (PostgreSQL)
    Unprotect {
        /// The table, as SQL writes it
        table: String,
    },
    /// Run a gateway that refuses stale tokens in front of an HTTP service
    #[command(after_help = PROXY_HELP, after_long_help = PROXY_HELP)]
    Proxy(Box<FenceProxy>),
}

/// `fencepost fence enter`
#[derive(Args, Debug)]
pub(crate) struct FenceEnter {
    /// The lock; with --name, the file that it protects
    #[arg(value_name = "NAME|PATH")]
    pub(crate) name_or_path: String,
    /// The lock, if the resource is a file
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
    #[command(flatten)]
    pub(crate) token: TokenArgs,
}

/// The token of a holder.
#[derive(Args, Debug)]
pub(crate) struct TokenArgs {
    /// The token of the grant [default: `FENCEPOST_TOKEN`, which `fencepost run` sets]
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) token: Option<String>,
}

/// `fencepost fence write`
#[derive(Args, Debug)]
pub(crate) struct FenceWrite {
    /// The file, on a local disk
    pub(crate) path: PathBuf,
    /// The lock that protects it
    #[arg(long, value_name = "NAME")]
    pub(crate) name: String,
    #[command(flatten)]
    pub(crate) token: TokenArgs,
}

/// `fencepost fence show`
#[derive(Args, Debug)]
pub(crate) struct FenceShow {
    /// The lock [default: all]
    pub(crate) name: Option<String>,
    /// Show the log of resets instead
    #[arg(long)]
    pub(crate) resets: bool,
}

/// `fencepost fence reset`
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("new_mark").required(true).args(["to", "forget"]))]
pub(crate) struct FenceReset {
    /// The lock
    pub(crate) name: String,
    /// The new mark: lower tokens are refused
    #[arg(long, value_name = "N", allow_hyphen_values = true)]
    pub(crate) to: Option<String>,
    /// Delete the mark: any token may enter
    #[arg(long)]
    pub(crate) forget: bool,
    /// The reason, for the log
    #[arg(long, value_name = "TEXT")]
    pub(crate) why: String,
    /// Who resets it [default: your user name]
    #[arg(long, value_name = "TEXT")]
    pub(crate) by: Option<String>,
    /// Do not ask for confirmation
    #[arg(long)]
    pub(crate) yes: bool,
}

/// `fencepost fence protect`
#[derive(Args, Debug)]
#[command(group = clap::ArgGroup::new("lock").required(true).args(["name_from", "name"]))]
pub(crate) struct FenceProtect {
    /// The table, as SQL writes it: orders, shop.orders, '"Shop"."Orders"'
    pub(crate) table: String,
    /// The column in which each row names its lock
    #[arg(long, value_name = "COLUMN")]
    pub(crate) name_from: Option<String>,
    /// The lock of all rows
    #[arg(long, value_name = "NAME")]
    pub(crate) name: Option<String>,
}

pub(super) const FENCE_HELP: &str = "\
A lock alone cannot stop a holder that was paused past its lease. The resource
can: it keeps a mark per lock, the highest token that has entered, and refuses
lower tokens. Each transaction of a holder enters first, even if it only reads:

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

Exit codes: 0 done, 64 bad usage, 69 resource unreachable, 77 the token is stale,
78 refused.";

const FENCE_INSTALL_HELP: &str = "\
On PostgreSQL (13 or later) this needs a role that can create a schema. Then grant
the application access:

  GRANT USAGE ON SCHEMA fencepost TO app;
  GRANT EXECUTE ON FUNCTION fencepost.enter TO app;

In a SQLite database it creates the tables fencepost_marks and fencepost_resets;
the first enter creates them as well. For Redis and files there is nothing to
install. Installing again changes nothing.";

const FENCE_ENTER_HELP: &str = "\
Examples:
  fencepost run invoice/42 -- sh -c 'fencepost fence enter invoice/42 && ./work'
  fencepost fence enter invoice/42 --token 35    shut out a broken holder
  fencepost fence enter report.json --name report && jq .sum report.json

Raises the mark, so lower tokens are refused from now on. The transaction that
writes must still enter itself: only then are check and write one step. For a
file, `fencepost fence write` does both; enter before you read the file.

Exit codes: 0 entered, 64 bad usage, 69 resource unreachable, 77 the token is
stale: a later holder has entered, 78 refused.";

const FENCE_WRITE_HELP: &str = "\
Examples:
  fencepost run report -- sh -c './report > new && fencepost fence write r.json --name report < new'
  fencepost fence write r.json --name report --token 35 < new

The input is first read to its end into the directory .r.json.fence beside the
file, so a slow or frozen writer blocks nobody. Then the token is checked and the
whole file is replaced in one step. If a program in a pipe fails half-way, its
input still ends normally: let it write a file first, as above.

Programs that write the file in another way are not stopped. Files on a network
file system are refused, because other hosts would not see the lock.

Exit codes: 0 written, 64 bad usage, 69 disk full or unreachable, 77 the token is
stale: a later holder has entered and the file is unchanged, 78 refused.";

const FENCE_SHOW_HELP: &str = "\
SET BY is who entered with the token, SET AT when, by the resource's clock.";

const FENCE_RESET_HELP: &str = "\
Examples:
  fencepost fence reset ledger --to 1 --why 'lock store restored, tokens restart'
  fencepost fence reset ledger --forget --yes --why 'the lock is not used any more'

Lowering a mark admits tokens that were refused: make sure that no earlier holder
still runs. Before it lowers or deletes a mark, it asks on a terminal; elsewhere
it needs --yes. `fencepost fence show --resets` lists who reset what, and why.";

const FENCE_PROTECT_HELP: &str = "\
Examples:
  fencepost fence protect invoice --name-from lock_name
  fencepost fence protect shop.ledger --name ledger

INSERT, UPDATE, DELETE and TRUNCATE are refused unless the transaction has entered
with the lock of the row, before and after the change. This holds for the table's
owner, superusers and replicas too. With --name-from, TRUNCATE and rows without a
name are always refused. Protect each partition: a new partition, or a table that
inherits, is not protected by itself. DROP and ALTER TABLE are not stopped,
because they do not write rows.";
