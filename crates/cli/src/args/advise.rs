//! Arguments of `fencepost advise`.

use clap::Args;

use crate::advise::cases;

/// `fencepost advise`
#[derive(Args, Debug)]
pub(crate) struct Advise {
    /// The case that is closest to yours
    #[arg(long, value_name = "CASE", value_parser = cases::names())]
    pub(crate) case: Option<String>,
}

pub(crate) const ADVISE_HELP: &str = "\
Examples:
  fencepost advise                          asks at most four questions
  fencepost advise --case nightly-billing
  fencepost advise --case counter --json

Prints the mechanism, why it fits, what it does not give, and code or commands to
start from. Often you need no lock at all. docs/which-lock.md has the same cases.

Exit codes: 0 answered, 64 no case is given and there is no terminal to ask on.";
