//! What a lab set out to show, point by point, and whether it happened.

use std::fmt;

use serde::Serialize;

/// One point.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What should have happened.
    pub what: String,
    /// Whether it did.
    pub holds: bool,
    /// The figures.
    pub seen: String,
}

/// All points of a lab.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Verdict(Vec<Check>);

impl Verdict {
    pub(crate) fn check(&mut self, what: impl Into<String>, holds: bool, seen: impl Into<String>) {
        self.0.push(Check { what: what.into(), holds, seen: seen.into() });
    }

    /// Whether everything happened.
    #[must_use]
    pub fn holds(&self) -> bool {
        self.0.iter().all(|check| check.holds)
    }

    /// The points.
    #[must_use]
    pub fn checks(&self) -> &[Check] {
        &self.0
    }

    /// One line that names what did not happen.
    #[must_use]
    pub fn complaint(&self) -> String {
        let missing: Vec<String> = self
            .0
            .iter()
            .filter(|check| !check.holds)
            .map(|check| format!("{} ({})", check.what, check.seen))
            .collect();
        format!("what this lab shows did not happen: {}", missing.join("; "))
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
