//! Responses that leave the outcome of a request unknown.
//!
//! A reverse proxy, load balancer or CDN between the gateway and the service sends its own response when it gives up on a
//! request: 408, 502, 503, 504, 520 to 529. The service may still be working on it.

use std::fmt;
use std::ops::RangeInclusive;
use std::str::FromStr;

use fencepost_base::{Error, Result};

/// Status codes of final responses.
const FINAL: RangeInclusive<u16> = 200..=599;

/// Status codes after which the outcome of a request is unknown: `408,502-504,520-529`, or `none`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StatusList(Vec<RangeInclusive<u16>>);

impl StatusList {
    /// Whether it is `none`: every response is the service's own, and ends its request.
    #[must_use]
    pub fn is_none(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether this status is on the list.
    #[must_use]
    pub fn contains(&self, status: u16) -> bool {
        self.0.iter().any(|range| range.contains(&status))
    }
}

impl Default for StatusList {
    /// What intermediaries send on their own.
    fn default() -> Self {
        Self(vec![408..=408, 502..=504, 520..=529])
    }
}

impl FromStr for StatusList {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        if text == "none" {
            return Ok(Self(Vec::new()));
        }
        let code = |text: &str| {
            let digits = text.len() == 3 && text.bytes().all(|byte| byte.is_ascii_digit());
            text.parse().ok().filter(|code| digits && FINAL.contains(code))
        };
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            let (first, last) = (code(first)?, code(last)?);
            (first <= last).then_some(first..=last)
        };
        let ranges = text.split(',').map(str::trim).map(|part| {
            range(part).ok_or_else(|| {
                Error::invalid(format!(
                    "\"{}\" is not a list of status codes: write 200 to 599 such as 408,502-504, or none",
                    text.escape_debug()
                ))
            })
        });
        Ok(Self(ranges.collect::<Result<_>>()?))
    }
}

impl fmt::Display for StatusList {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_none() {
            return f.write_str("none");
        }
        let ranges = self.0.iter().map(|range| match (range.start(), range.end()) {
            (first, last) if first == last => first.to_string(),
            (first, last) => format!("{first}-{last}"),
        });
        f.write_str(&ranges.collect::<Vec<_>>().join(","))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_are_parsed_and_shown() {
        for text in ["408,502-504,520-529", "202", "200-599", "none"] {
            assert_eq!(text.parse::<StatusList>().unwrap().to_string(), text);
        }
        assert_eq!(" 504, 408 ".parse::<StatusList>().unwrap().to_string(), "504,408");
        assert_eq!(StatusList::default().to_string(), "408,502-504,520-529");
        let list = StatusList::default();
        for (status, unknown) in
            [(200, false), (408, true), (500, false), (501, false), (502, true), (504, true)]
        {
            assert_eq!(list.contains(status), unknown, "{status}");
        }
        assert!(list.contains(520) && list.contains(529) && !list.contains(530));
        let none: StatusList = "none".parse().unwrap();
        assert!(none.is_none() && !none.contains(504));
    }

    #[test]
    fn bad_lists_are_refused() {
        let bad = [
            "", " ", ",", "504,", "0504", "+504", "99", "199", "600", "504-502", "5xx", "none,504",
        ];
        for text in bad {
            let error = text.parse::<StatusList>().unwrap_err().to_string();
            assert!(error.contains("408,502-504, or none"), "{text:?}: {error}");
        }
    }
}
