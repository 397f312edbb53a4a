//! Bodies: which bytes are data, and where the message ends.
//!
//! ```text
//! chunked    *( HEX [ ";" EXTENSION ] CRLF DATA CRLF )  "0" CRLF  *( TRAILER CRLF )  CRLF
//! ```
//!
//! Trailers are checked and dropped.

use std::ops::Range;

use super::head::{Malformed, field, is_text};

/// The longest chunk size line, and the most bytes of trailers.
const MAX_SIZE_LINE: usize = 256;
const MAX_TRAILERS: usize = 8192;

/// How the end of a body is found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Framing {
    Length(u64),
    Chunked,
    /// For responses only.
    UntilClose,
}

/// Decodes a body as its bytes arrive.
#[derive(Debug)]
pub(crate) struct Decoder(State);

#[derive(Clone, Copy, Debug)]
enum State {
    Length(u64),
    UntilClose,
    Size,
    Chunk(u64),
    ChunkEnd,
    Trailers(usize),
    Done,
}

/// The result of one step.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Step {
    /// How many bytes were consumed. Zero: more are needed, unless it is the end.
    pub(crate) used: usize,
    /// Which of them are data.
    pub(crate) data: Range<usize>,
    /// Whether the message ends with them.
    pub(crate) end: bool,
}

impl Step {
    const MORE: Self = Self { used: 0, data: 0..0, end: false };

    fn skip(used: usize) -> Self {
        Self { used, data: 0..0, end: false }
    }
}

impl Decoder {
    pub(crate) fn new(framing: Framing) -> Self {
        Self(match framing {
            Framing::Length(0) => State::Done,
            Framing::Length(length) => State::Length(length),
            Framing::Chunked => State::Size,
            Framing::UntilClose => State::UntilClose,
        })
    }

    /// Whether the body has ended.
    pub(crate) fn is_done(&self) -> bool {
        matches!(self.0, State::Done)
    }

    /// Whether the body ends with the connection.
    pub(crate) fn ends_with_connection(&self) -> bool {
        matches!(self.0, State::UntilClose)
    }

    /// Decodes the next piece.
    pub(crate) fn step(&mut self, input: &[u8]) -> Result<Step, Malformed> {
        match self.0 {
            State::Done => Ok(Step { used: 0, data: 0..0, end: true }),
            State::Length(left) => {
                let (used, left) = data(input, left);
                self.0 = if left == 0 { State::Done } else { State::Length(left) };
                Ok(Step { used, data: 0..used, end: left == 0 })
            }
            State::UntilClose => Ok(Step { used: input.len(), data: 0..input.len(), end: false }),
            State::Size => {
                let Some(line) = line(input, MAX_SIZE_LINE)? else { return Ok(Step::MORE) };
                self.0 = match size(&input[..line])? {
                    0 => State::Trailers(0),
                    size => State::Chunk(size),
                };
                Ok(Step::skip(line + 2))
            }
            State::Chunk(left) => {
                let (used, left) = data(input, left);
                self.0 = if left == 0 { State::ChunkEnd } else { State::Chunk(left) };
                Ok(Step { used, data: 0..used, end: false })
            }
            State::ChunkEnd => match input {
                [b'\r', b'\n', ..] => {
                    self.0 = State::Size;
                    Ok(Step::skip(2))
                }
                [] | [b'\r'] => Ok(Step::MORE),
                _ => Err(Malformed("has a chunk that is longer than it says")),
            },
            State::Trailers(seen) => {
                let Some(line) = line(input, MAX_TRAILERS - seen)? else { return Ok(Step::MORE) };
                let end = line == 0;
                if end {
                    self.0 = State::Done;
                } else {
                    field(&input[..line])?;
                    self.0 = State::Trailers((seen + line + 2).min(MAX_TRAILERS));
                }
                Ok(Step { used: line + 2, data: 0..0, end })
            }
        }
    }
}

/// How many of the bytes are data, and how many are still to come.
fn data(input: &[u8], left: u64) -> (usize, u64) {
    let used = usize::try_from(left).map_or(input.len(), |left| left.min(input.len()));
    (used, left - used as u64)
}

/// The length of the first line without its CR LF; none if it is incomplete.
fn line(input: &[u8], max: usize) -> Result<Option<usize>, Malformed> {
    match input.iter().position(|byte| *byte == b'\n') {
        Some(0) => Err(Malformed("has a bare LF in its chunks")),
        Some(feed) if feed > max => Err(Malformed("has too long a line in its chunks")),
        Some(feed) if input[feed - 1] == b'\r' => Ok(Some(feed - 1)),
        Some(_) => Err(Malformed("has a bare LF in its chunks")),
        None if input.len() > max => Err(Malformed("has too long a line in its chunks")),
        None => Ok(None),
    }
}

fn size(line: &[u8]) -> Result<u64, Malformed> {
    let digits = line.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    let (number, extension) = line.split_at(digits);
    let plain = || extension.iter().all(|byte| is_text(*byte));
    let extended = extension.is_empty() || (extension.first() == Some(&b';') && plain());
    // 15 digits fit.
    if digits == 0 || digits > 15 || !extended {
        return Err(Malformed("has a chunk without a valid size"));
    }
    Ok(number.iter().fold(0, |sum, digit| {
        let digit = (*digit as char).to_digit(16).unwrap_or_default();
        (sum << 4) | u64::from(digit)
    }))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// All data of `text`, fed in pieces of `piece` bytes, and what is left behind the end.
    fn decode(framing: Framing, text: &[u8], piece: usize) -> Result<(Vec<u8>, usize), Malformed> {
        let (mut decoder, mut data, mut at, mut seen) = (Decoder::new(framing), Vec::new(), 0, 0);
        loop {
            let step = decoder.step(&text[at..seen])?;
            data.extend_from_slice(&text[at..][step.data.clone()]);
            at += step.used;
            if step.end {
                return Ok((data, text.len() - at));
            }
            if step.used == 0 {
                if seen == text.len() {
                    return Err(Malformed("more is needed"));
                }
                seen = (seen + piece).min(text.len());
            }
        }
    }

    #[test]
    fn bodies_are_decoded_from_pieces_of_any_size() {
        let text = b"3\r\nabc\r\n0a;x=\"y\"\r\n0123456789\r\n0\r\nA: b\r\n\r\nGET";
        for piece in 1..text.len() {
            assert_eq!(decode(Framing::Chunked, text, piece), Ok((b"abc0123456789".to_vec(), 3)));
        }
        assert_eq!(decode(Framing::Length(3), b"abcGET", 2), Ok((b"abc".to_vec(), 3)));
        assert_eq!(decode(Framing::Length(0), b"GET", 2), Ok((Vec::new(), 3)));
    }

    #[test]
    fn ambiguous_chunks_are_refused() {
        for bad in [
            "3\nabc\r\n0\r\n\r\n",
            "3\r\nabcd\r\n0\r\n\r\n",
            "3\r\nabc\n0\r\n\r\n",
            "0x3\r\nabc\r\n0\r\n\r\n",
            "-3\r\nabc\r\n0\r\n\r\n",
            "+3\r\nabc\r\n0\r\n\r\n",
            " 3\r\nabc\r\n0\r\n\r\n",
            "3 \r\nabc\r\n0\r\n\r\n",
            "\r\nabc\r\n0\r\n\r\n",
            "3;a\nb\r\nabc\r\n0\r\n\r\n",
            "10000000000000003\r\nabc\r\n0\r\n\r\n",
            "0\r\n\n",
            "0\r\nGET / HTTP/1.1\r\n\r\n",
            "0\r\n A: b\r\n\r\n",
        ] {
            let found = decode(Framing::Chunked, bad.as_bytes(), bad.len());
            assert!(
                found.as_ref().is_err_and(|bad| bad.0 != "more is needed"),
                "{bad:?}: {found:?}"
            );
        }
        let long = format!("3;{}\r\nabc\r\n0\r\n\r\n", "x".repeat(300));
        assert!(decode(Framing::Chunked, long.as_bytes(), 7).is_err());
        let many = format!("0\r\n{}\r\n", "A: b\r\n".repeat(2000));
        assert!(decode(Framing::Chunked, many.as_bytes(), 7).is_err());
    }
}
