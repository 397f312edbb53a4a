//! The checks of a lab: what it should show, and whether it happened.

use std::fmt;

use serde::Serialize;

/// One check.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What should have happened.
    pub what: String,
    /// Whether it did.
    pub holds: bool,
    /// What was observed.
    pub seen: String,
}

/// All checks of a lab.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Verdict(Vec<Check>);

impl Verdict {
    pub(crate) fn check(&mut self, what: impl Into<String>, holds: bool, seen: impl Into<String>) {
        self.0.push(Check { what: what.into(), holds, seen: seen.into() });
    }

    /// Whether all checks hold.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0.iter().all(|check| check.holds)
    }

    /// One line with the checks that failed.
    #[must_use]
    pub fn failure(&self) -> String {
        let failed: Vec<String> = self
            .0
            .iter()
            .filter(|check| !check.holds)
            .map(|check| format!("{} ({})", check.what, check.seen))
            .collect();
        format!("the expected result did not happen: {}", failed.join("; "))
    }
}

impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for check in &self.0 {
            let word = if check.holds { "yes" } else { "NO" };
            writeln!(f, "  {word:<4} {}: {}", check.what, check.seen)?;
        }
        Ok(())
    }
}
