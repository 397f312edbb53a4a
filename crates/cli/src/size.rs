//! Sizes as people write them: `65536`, `64k`, `64m`, `1g`.

/// Parses a number of bytes. A unit is a power of 1024.
pub(crate) fn parse(text: &str) -> Result<u64, String> {
    let bad = || format!("\"{}\" is not a size: write 65536, 64k, 64m or 1g", text.escape_debug());
    let digits = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let shift = match unit {
        "" => 0,
        "k" => 10,
        "m" => 20,
        "g" => 30,
        _ => return Err(bad()),
    };
    let number: u64 = number.parse().map_err(|_| bad())?;
    number.checked_mul(1 << shift).ok_or_else(bad)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_parsed_or_refused() {
        for (text, bytes) in
            [("0", 0), ("65536", 65_536), ("64k", 65_536), ("64m", 64 << 20), ("1g", 1 << 30)]
        {
            assert_eq!(parse(text), Ok(bytes), "{text}");
        }
        for bad in ["", "k", "-1", "1.5m", "64 k", "64MB", "99999999999999999999", "17179869184g"] {
            assert!(parse(bad).unwrap_err().contains("is not a size"), "{bad}");
        }
    }
}
