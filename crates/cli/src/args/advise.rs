//! What `fencepost advise` can be told.

use clap::Args;

use crate::advise::cases;

/// `fencepost advise`
#[derive(Args, Debug)]
pub(crate) struct Advise {
    /// The case that is most like yours
    #[arg(long, value_name = "CASE", value_parser = cases::names())]
    pub(crate) case: Option<String>,
}

pub(crate) const ADVISE_HELP: &str = "\
Examples:
  fencepost advise                          asks at most four questions
  fencepost advise --case nightly-billing
  fencepost advise --case counter --json

Answers with the mechanism, why it fits, what it does not give, and what to start
from. Often that is no lock at all. The same cases are in docs/which-lock.md.

Exit codes: 0 answered, 64 no case is given and there is no terminal to ask on.";
