//! Paths that name a lock.
//!
//! What must hold: two paths that the service treats as one resource never give two lock names, or two holders would
//! write it under two marks. So a path is decoded once, and refused if some service could decode it further: dot
//! segments, empty segments, a backslash, a `;`, an encoded slash, double encoding. What remains is the service's own
//! equivalence (upper and lower case, say): the operator knows it, and chooses names accordingly.

use std::borrow::Cow;

/// The decoded segments of a path. A trailing slash makes no difference.
pub(crate) fn segments(path: &str) -> Result<Vec<Cow<'_, str>>, &'static str> {
    let rest = path.strip_prefix('/').ok_or("it does not start with a slash")?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    if rest.is_empty() {
        return Ok(Vec::new());
    }
    rest.split('/').map(segment).collect()
}

fn segment(text: &str) -> Result<Cow<'_, str>, &'static str> {
    // Most segments need no decoding and have no dot.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-_~".contains(&byte);
    if !text.is_empty() && text.bytes().all(plain) {
        return Ok(Cow::Borrowed(text));
    }
    let (mut decoded, mut bytes) = (Vec::with_capacity(text.len()), text.bytes());
    while let Some(byte) = bytes.next() {
        let byte = match byte {
            b'%' => {
                let mut digit = || bytes.next().and_then(|digit| (digit as char).to_digit(16));
                let (Some(high), Some(low)) = (digit(), digit()) else {
                    return Err("a % in it is not followed by two hex digits");
                };
                encoded((high << 4 | low) as u8)?
            }
            b'\\' => return Err("it has a backslash in it"),
            b';' => return Err("it has a ; in it"),
            b'#' => return Err("it has a # in it"),
            plain if plain.is_ascii_graphic() => plain,
            _ => return Err("it has a character in it that must be percent-encoded"),
        };
        decoded.push(byte);
    }
    match decoded.as_slice() {
        [] => Err("it has an empty segment (//)"),
        b"." | b".." => Err("it has a dot segment"),
        // A second decoding would give another name.
        _ if decoded
            .windows(3)
            .any(|w| w[0] == b'%' && w[1].is_ascii_hexdigit() && w[2].is_ascii_hexdigit()) =>
        {
            Err("it has a segment that is encoded twice")
        }
        _ => String::from_utf8(decoded).map(Cow::Owned).map_err(|_| "it is not UTF-8"),
    }
}

fn encoded(byte: u8) -> Result<u8, &'static str> {
    match byte {
        b'/' => Err("it has an encoded slash (%2F) in it"),
        b'\\' => Err("it has an encoded backslash (%5C) in it"),
        b';' => Err("it has an encoded ; (%3B) in it"),
        0..0x20 | 0x7f => Err("it has an encoded control character in it"),
        _ if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) => {
            Err("it has a percent-encoded letter, digit or one of -._~: write that unencoded")
        }
        other => Ok(other),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_split_and_decoded() {
        for (path, expected) in [
            ("/", vec![]),
            ("/invoices/42", vec!["invoices", "42"]),
            ("/invoices/42/", vec!["invoices", "42"]),
            ("/a%20b/%C3%BC/%c3%bc", vec!["a b", "ü", "ü"]),
            ("/a:b@c/~x/...", vec!["a:b@c", "~x", "..."]),
            ("/100%25", vec!["100%"]),
        ] {
            assert_eq!(segments(path).unwrap(), expected, "{path}");
        }
    }

    #[test]
    fn ambiguous_paths_are_refused() {
        for path in [
            "",
            "a",
            "*",
            "//a",
            "/a//b",
            "/a//",
            "/.",
            "/a/../b",
            "/a/..",
            "/./a",
            "/%2e%2e/a",
            "/a%2Fb",
            "/a%2fb",
            "/a%5Cb",
            "/a\\b",
            "/a%00",
            "/a%0A",
            "/a%7f",
            "/a%",
            "/a%2",
            "/a%zz",
            "/%41",
            "/a%2Db",
            "/a;v=1",
            "/a%3Bb",
            "/a#b",
            "/a%252F",
            "/a b",
            "/ü",
            "/%FF",
        ] {
            assert!(segments(path).is_err(), "{path:?}: {:?}", segments(path));
        }
    }
}
