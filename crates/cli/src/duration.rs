//! Durations as people write them: `500ms`, `30s`, `2m`, `1h30m`.

use std::fmt;
use std::time::Duration;

/// A duration that could not be parsed. The message names the text and the remedy.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct BadDuration(String);

impl fmt::Display for BadDuration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for BadDuration {}

/// Parses one or more of NUMBER UNIT, added up. Numbers are whole. A unit is required: a bare `30` is ambiguous.
pub(crate) fn parse(text: &str) -> Result<Duration, BadDuration> {
    let bad = |why: &str| {
        BadDuration(format!(
            "\"{}\" is not a duration: {why}; write 500ms, 30s, 2m or 1h30m",
            text.escape_debug()
        ))
    };
    if text.is_empty() {
        return Err(bad("it is empty"));
    }
    let (mut rest, mut total) = (text, Duration::ZERO);
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, tail) = rest.split_at(digits);
        if number.is_empty() {
            return Err(bad("each unit needs a whole number before it"));
        }
        let unit_end = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let (unit, next) = tail.split_at(unit_end);
        let millis = match unit {
            "ms" => 1,
            "s" => 1_000,
            "m" => 60_000,
            "h" => 3_600_000,
            "d" => 86_400_000,
            "" => return Err(bad("it has no unit")),
            _ => return Err(bad("the units are ms, s, m, h and d")),
        };
        let too_long = || bad("it is too long");
        let number: u64 = number.parse().map_err(|_| too_long())?;
        let part = number.checked_mul(millis).map(Duration::from_millis).ok_or_else(too_long)?;
        total = total.checked_add(part).ok_or_else(too_long)?;
        rest = next;
    }
    Ok(total)
}

/// Parses how long to wait: a duration, or seconds as `flock -w` takes them, whole or with a fraction.
pub(crate) fn parse_wait(text: &str) -> Result<Duration, BadDuration> {
    let (whole, fraction) = text.split_once('.').unwrap_or((text, "0"));
    let digits = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    if !digits(whole) || !digits(fraction) {
        return parse(text);
    }
    let seconds = text.parse().ok().and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    seconds.ok_or_else(|| BadDuration(format!("{text} is too long: give fewer seconds")))
}

/// Parses a TTL.
pub(crate) fn parse_ttl(text: &str) -> Result<Duration, BadDuration> {
    let span = parse(text)?;
    match fencepost::Ttl::new(span) {
        Ok(_) => Ok(span),
        Err(_) => Err(BadDuration(format!("{text} is out of range: give 100ms to 24h"))),
    }
}

/// Parses a duration that must not be zero.
pub(crate) fn parse_above_zero(text: &str) -> Result<Duration, BadDuration> {
    match parse(text)? {
        Duration::ZERO => Err(BadDuration(format!("{text} is zero: give more than zero"))),
        span => Ok(span),
    }
}

/// Parses how long a worker of the lab works.
pub(crate) fn parse_work(text: &str) -> Result<Duration, BadDuration> {
    match parse(text)? {
        span if span <= Duration::from_hours(24) => Ok(span),
        _ => Err(BadDuration(format!("{text} is too long: give at most 24h"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_parsed() {
        for (text, millis) in [
            ("500ms", 500),
            ("30s", 30_000),
            ("2m", 120_000),
            ("1h30m", 5_400_000),
            ("1m500ms", 60_500),
            ("0s", 0),
            ("1d", 86_400_000),
        ] {
            assert_eq!(parse(text), Ok(Duration::from_millis(millis)), "{text}");
        }
    }

    #[test]
    fn wait_accepts_seconds() {
        for (text, millis) in [("5", 5_000), ("0", 0), ("0.5", 500), ("5s", 5_000), ("2m", 120_000)]
        {
            assert_eq!(parse_wait(text), Ok(Duration::from_millis(millis)), "{text}");
        }
        for text in ["", ".5", "5.", "-1", "1e3", "inf", "nan", "1.5s", "soon"] {
            assert!(parse_wait(text).is_err(), "{text}");
        }
        assert!(parse_wait(&"9".repeat(40)).is_err());
    }

    #[test]
    fn invalid_duration_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "empty"),
            ("30", "no unit"),
            ("s", "whole number"),
            ("1.5s", "units"),
            ("-1s", "whole number"),
            ("5 s", "units"),
            ("3w", "units"),
            ("99999999999999999999s", "too long"),
            ("99999999999999999h", "too long"),
            ("1s\n", "units"),
        ] {
            let message = parse(text).unwrap_err().to_string();
            assert!(message.contains(why) && !message.contains('\n'), "{text:?}: {message}");
        }
    }
}
