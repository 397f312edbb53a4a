//! Heads of requests and responses, parsed strictly.
//!
//! ```text
//! request    METHOD SP TARGET SP HTTP/1.x CRLF  *( NAME ":" OWS VALUE OWS CRLF )  CRLF
//! response   HTTP/1.x SP 3DIGIT [ SP REASON ] CRLF  *( ... )  CRLF
//! ```
//!
//! What must hold: two parsers that follow the RFC cannot disagree about a head that is accepted here. So each line ends
//! with CR LF and contains neither, no line is folded, nothing is between a name and its colon, and there is at most one
//! length.

use super::body::Framing;
use super::fields::Fields;

/// The most fields in a head.
const MAX_FIELDS: usize = 128;

/// What is wrong with a head or a body, as words that follow "the request".
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

/// A request's head.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) method: String,
    pub(crate) target: String,
    /// HTTP/1.1, not 1.0.
    pub(crate) is_11: bool,
    pub(crate) fields: Fields,
}

/// A response's head.
#[derive(Clone, Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) reason: Vec<u8>,
    pub(crate) is_11: bool,
    pub(crate) fields: Fields,
}

/// Finds the end of a head, line by line, and remembers how far it got.
#[derive(Debug, Default)]
pub(crate) struct HeadFinder {
    line: usize,
}

impl HeadFinder {
    /// Where the head in `text` ends, or none yet. A line that ends with a bare LF is an error at once: we would wait for an
    /// end that the sender believes it has sent.
    pub(crate) fn end(&mut self, text: &[u8]) -> Result<Option<usize>, Malformed> {
        while let Some(found) = text[self.line..].iter().position(|byte| *byte == b'\n') {
            let feed = self.line + found;
            if found == 0 || text[feed - 1] != b'\r' {
                return Err(Malformed("has a line that ends with a bare LF: end lines with CR LF"));
            }
            if found == 1 {
                return Ok(Some(feed + 1));
            }
            self.line = feed + 1;
        }
        Ok(None)
    }
}

/// Parses a request's head, including its empty line.
pub(crate) fn request(head: &[u8]) -> Result<Request, Malformed> {
    let (line, rest) = first_line(head)?;
    let mut parts = line.split(|byte| *byte == b' ');
    let (Some(method), Some(target), Some(version), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(Malformed("line is not METHOD SP TARGET SP HTTP/1.1"));
    };
    if method.is_empty() || !method.iter().all(|byte| is_token(*byte)) {
        return Err(Malformed("line has no valid method"));
    }
    if target.is_empty() || !target.iter().all(u8::is_ascii_graphic) {
        return Err(Malformed("target has characters that must be percent-encoded"));
    }
    let is_11 = version_11(version)?;
    let fields = fields(rest)?;
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    Ok(Request { method: text(method), target: text(target), is_11, fields })
}

/// Parses a response's head, including its empty line.
pub(crate) fn response(head: &[u8]) -> Result<Response, Malformed> {
    let (line, rest) = first_line(head)?;
    let bad = Malformed("line is not HTTP/1.1 SP STATUS SP REASON");
    let (version, line) = line.split_at_checked(8).ok_or(bad)?;
    let is_11 = version_11(version)?;
    let digits = match line {
        [b' ', a, b, c] | [b' ', a, b, c, b' ', ..] => [*a, *b, *c],
        _ => return Err(bad),
    };
    if !digits.iter().all(u8::is_ascii_digit) || !(b'1'..=b'9').contains(&digits[0]) {
        return Err(bad);
    }
    let status = digits.iter().fold(0, |sum, digit| sum * 10 + u16::from(digit - b'0'));
    let reason = line.get(5..).unwrap_or_default();
    if !reason.iter().all(|byte| is_text(*byte)) {
        return Err(bad);
    }
    Ok(Response { status, reason: reason.to_vec(), is_11, fields: fields(rest)? })
}

fn first_line(head: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let end = head.iter().position(|byte| *byte == b'\r').ok_or(Malformed("has no line"))?;
    let rest = head[end..].strip_prefix(b"\r\n").ok_or(Malformed("has a bare CR in it"))?;
    Ok((&head[..end], rest))
}

fn version_11(version: &[u8]) -> Result<bool, Malformed> {
    match version {
        b"HTTP/1.1" => Ok(true),
        b"HTTP/1.0" => Ok(false),
        _ => Err(Malformed("line does not say HTTP/1.1 or HTTP/1.0")),
    }
}

fn fields(mut rest: &[u8]) -> Result<Fields, Malformed> {
    let mut fields = Fields::with_capacity(rest.len(), 16);
    for count in 0.. {
        let (line, next) = first_line(rest)?;
        if line.is_empty() {
            break;
        }
        if count == MAX_FIELDS {
            return Err(Malformed("has too many header fields"));
        }
        let (name, value) = field(line)?;
        fields.push(name, value);
        rest = next;
    }
    Ok(fields)
}

/// Parses one line of a head or of trailers.
pub(crate) fn field(line: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    if matches!(line.first(), Some(b' ' | b'\t')) {
        return Err(Malformed("has a header that continues on the next line"));
    }
    let colon =
        line.iter().position(|byte| *byte == b':').ok_or(Malformed("has a header without ':'"))?;
    let (name, value) = (&line[..colon], trimmed(&line[colon + 1..]));
    if matches!(name.last(), Some(b' ' | b'\t')) {
        return Err(Malformed("has a header with a space before its ':'"));
    }
    if name.is_empty() || !name.iter().all(|byte| is_token(*byte)) {
        return Err(Malformed("has a header with an invalid name"));
    }
    if !value.iter().all(|byte| is_text(*byte)) {
        return Err(Malformed("has a header with control characters in its value"));
    }
    Ok((name, value))
}

/// Without surrounding spaces and tabs, and only those: a form feed is refused, not dropped.
fn trimmed(mut value: &[u8]) -> &[u8] {
    while let [b' ' | b'\t', rest @ ..] | [rest @ .., b' ' | b'\t'] = value {
        value = rest;
    }
    value
}

pub(crate) fn is_token(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"!#$%&'*+-.^_`|~".contains(&byte)
}

pub(super) fn is_text(byte: u8) -> bool {
    byte == b'\t' || (byte >= b' ' && byte != 0x7f)
}

impl Request {
    /// How the body ends, by the one header that says so.
    pub(crate) fn framing(&self) -> Result<Framing, Malformed> {
        let (length, chunked) = (length(&self.fields)?, chunked(&self.fields)?);
        Ok(framing(length, chunked, self.is_11)?.unwrap_or(Framing::Length(0)))
    }

    /// Whether the connection can be reused.
    pub(crate) fn keeps_alive(&self) -> bool {
        self.is_11 && !self.fields.lists("connection", "close")
    }
}

impl Response {
    /// How the body ends, for a response to a request with this method.
    pub(crate) fn framing(&self, method: &str) -> Result<Framing, Malformed> {
        let (length, chunked) = (length(&self.fields)?, chunked(&self.fields)?);
        if method == "HEAD" || matches!(self.status, 100..200 | 204 | 304) {
            return Ok(Framing::Length(0));
        }
        Ok(framing(length, chunked, self.is_11)?.unwrap_or(Framing::UntilClose))
    }

    /// Whether the connection can be reused.
    pub(crate) fn keeps_alive(&self) -> bool {
        if self.is_11 {
            !self.fields.lists("connection", "close")
        } else {
            self.fields.lists("connection", "keep-alive")
        }
    }
}

/// How the body ends, if a header says so.
fn framing(length: Option<u64>, chunked: bool, is_11: bool) -> Result<Option<Framing>, Malformed> {
    match (chunked, length) {
        (true, Some(_)) => Err(Malformed("has both a Transfer-Encoding and a Content-Length")),
        (true, None) if !is_11 => Err(Malformed("is HTTP/1.0 and has a Transfer-Encoding")),
        (true, None) => Ok(Some(Framing::Chunked)),
        (false, length) => Ok(length.map(Framing::Length)),
    }
}

fn length(fields: &Fields) -> Result<Option<u64>, Malformed> {
    let mut values = fields.all("content-length");
    let Some(value) = values.next() else { return Ok(None) };
    if values.next().is_some() {
        return Err(Malformed("has more than one Content-Length"));
    }
    // 18 digits fit.
    if value.is_empty() || value.len() > 18 || !value.iter().all(u8::is_ascii_digit) {
        return Err(Malformed("has a Content-Length that is not a number"));
    }
    Ok(Some(value.iter().fold(0, |sum, digit| sum * 10 + u64::from(digit - b'0'))))
}

fn chunked(fields: &Fields) -> Result<bool, Malformed> {
    let mut values = fields.all("transfer-encoding");
    match (values.next(), values.next()) {
        (None, _) => Ok(false),
        (Some(value), None) if value.eq_ignore_ascii_case(b"chunked") => Ok(true),
        _ => Err(Malformed("has a Transfer-Encoding other than one \"chunked\"")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> Result<Request, Malformed> {
        let end = HeadFinder::default().end(text.as_bytes())?.expect("a whole head");
        request(&text.as_bytes()[..end])
    }

    #[test]
    fn plain_request_is_parsed() {
        let head =
            read("PUT /a?b HTTP/1.1\r\nHost:x\r\nContent-Length: 3 \r\nEmpty:\r\n\r\n").unwrap();
        assert_eq!((head.method.as_str(), head.target.as_str()), ("PUT", "/a?b"));
        assert_eq!(head.fields.first("host"), Some(b"x".as_slice()));
        assert_eq!(head.fields.first("empty"), Some(b"".as_slice()));
        assert_eq!(head.framing(), Ok(Framing::Length(3)));
        assert!(head.keeps_alive());
    }

    #[test]
    fn ambiguous_heads_are_refused() {
        for (text, why) in [
            ("GET / HTTP/1.1\nHost: x\r\n\r\n", "bare LF"),
            ("GET / HTTP/1.1\r\nHost: x\n\r\n", "bare LF"),
            ("\nGET / HTTP/1.1\r\n\r\n", "bare LF"),
            ("GET / HTTP/1.1\r\nA: b\rc: d\r\n\r\n", "bare CR"),
            ("GET / HTTP/1.1\r\nA: b\r\n c: d\r\n\r\n", "next line"),
            ("GET / HTTP/1.1\r\nA : b\r\n\r\n", "space before"),
            ("GET / HTTP/1.1\r\n: b\r\n\r\n", "invalid name"),
            ("GET / HTTP/1.1\r\nA(: b\r\n\r\n", "invalid name"),
            ("GET / HTTP/1.1\r\nA: b\0\r\n\r\n", "control"),
            ("GET / HTTP/1.1\r\nA: b\x0c\r\n\r\n", "control"),
            ("GET / HTTP/1.1\r\nA\r\n\r\n", "without ':'"),
            ("GET  / HTTP/1.1\r\n\r\n", "METHOD"),
            ("GET / HTTP/1.1 \r\n\r\n", "METHOD"),
            ("GET /\r\n\r\n", "METHOD"),
            ("GET / HTTP/2.0\r\n\r\n", "HTTP/1.1"),
            ("GET / http/1.1\r\n\r\n", "HTTP/1.1"),
            ("G@T / HTTP/1.1\r\n\r\n", "method"),
            ("GET /ü HTTP/1.1\r\n\r\n", "percent"),
        ] {
            let bad = read(text).expect_err(text);
            assert!(bad.0.contains(why), "{text:?}: {bad:?}");
        }
    }

    #[test]
    fn more_than_one_length_is_refused() {
        for (lines, why) in [
            ("Content-Length: 1\r\nContent-Length: 1\r\n", "more than one"),
            ("Content-Length: 1\r\nContent-Length: 2\r\n", "more than one"),
            ("Content-Length: 1, 1\r\n", "not a number"),
            ("Content-Length: +1\r\n", "not a number"),
            ("Content-Length: 0x1\r\n", "not a number"),
            ("Content-Length:\r\n", "not a number"),
            ("Content-Length: 9999999999999999999\r\n", "not a number"),
            ("Content-Length: 1\r\nTransfer-Encoding: chunked\r\n", "both"),
            ("Transfer-Encoding: chunked\r\nContent-Length: 1\r\n", "both"),
            ("Transfer-Encoding: chunked, identity\r\n", "other than"),
            ("Transfer-Encoding: identity, chunked\r\n", "other than"),
            ("Transfer-Encoding: xchunked\r\n", "other than"),
            ("Transfer-Encoding: \"chunked\"\r\n", "other than"),
            ("Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n", "other than"),
        ] {
            let bad = read(&format!("PUT / HTTP/1.1\r\n{lines}\r\n")).and_then(|r| r.framing());
            let bad = bad.expect_err(lines);
            assert!(bad.0.contains(why), "{lines:?}: {bad:?}");
        }
        let old = read("PUT / HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n").unwrap();
        assert!(old.framing().is_err());
    }

    #[test]
    fn responses_are_parsed() {
        let head = response(b"HTTP/1.1 404 Not Found\r\nContent-Length: 9\r\n\r\n").unwrap();
        assert_eq!((head.status, head.reason.as_slice()), (404, b"Not Found".as_slice()));
        assert_eq!(head.framing("GET"), Ok(Framing::Length(9)));
        assert_eq!(head.framing("HEAD"), Ok(Framing::Length(0)));
        for no_reason in ["HTTP/1.1 200\r\n\r\n", "HTTP/1.0 200 \r\n\r\n"] {
            let head = response(no_reason.as_bytes()).unwrap();
            assert_eq!(head.framing("GET"), Ok(Framing::UntilClose));
        }
        for bad in ["HTTP/1.1 20 OK\r\n\r\n", "HTTP/1.1 2000\r\n\r\n", "ICY 200 OK\r\n\r\n", "\r\n"]
        {
            assert!(response(bad.as_bytes()).is_err(), "{bad:?}");
        }
    }

    #[test]
    fn end_of_a_head_is_found_in_pieces() {
        let text = b"GET / HTTP/1.1\r\nHost: x\r\n\r\nGET";
        let mut finder = HeadFinder::default();
        for length in 0..27 {
            assert_eq!(finder.end(&text[..length]), Ok(None), "{length}");
        }
        assert_eq!(finder.end(text), Ok(Some(27)));
    }
}
