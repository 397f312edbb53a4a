//! The format of the object that carries a mark, byte for byte.
//!
//! ```text
//! fencepost-fence 2 envelope 00000308\n   format, shape (or "pointer"), length of the header with both ends
//! nonce <32 hex digits>\n                 random for each put
//! name <lock name>\n                      the mark: these four lines, or none of them
//! token <number>\n
//! set_by <label>\n
//! set_at <RFC 3339>\n
//! gc <number>\n                           how often old data objects were deleted (always 0 in an envelope)
//! writes <16 hex digits each>\n           oldest first: the ids of the last writes, 256 at most
//! reset <name>\t<from>\t<to>\t<at>\t<by>\t<why>\n   0 to 16 lines, oldest first; no token is "-"
//! data none\n                             nothing was written, or it was removed
//! data <length>\n                         envelope: the data follows the header
//! data <length> <file>\n                  pointer: the data is the object KEY.data/<file>
//! \n
//! <length> bytes                          envelope only
//! ```
//!
//! Version 1 has `sweeps` for `gc`. It is read, and replaced by the next put.
//!
//! Names, labels and reasons have no control characters, so lines and tabs are safe. The nonce makes the bytes of every
//! put different: a store derives the `ETag` from the bytes, and a compare-and-set must not mistake a later state for an
//! equal earlier one.

use std::fmt::Write as _;

use bytes::Bytes;
use fencepost_base::{Error, random};
use fencepost_core::{Label, LockName};
use object_store::PutPayload;

use super::envelope::Envelope;
use crate::contract::{Mark, Reset, checked_reset, token_in, token_text};

const FORMAT: &str = "fencepost-fence ";
const VERSION: &str = "2";
/// The longest first line.
const FIRST_LINE: usize = 64;
/// How many write ids are kept, so that a writer whose reply was lost can find its own. A writer that sleeps during more
/// writes than this cannot learn its outcome.
pub(super) const TRAIL: usize = 256;
/// How many resets are kept. A new one drops the oldest.
pub(super) const RESETS: usize = 16;
/// No header is longer: 16 resets of 2 kB at most, 4 kB of writes, 2 kB of the rest.
pub(super) const HEADER_MAX: usize = 64 * 1024;
/// The longest time, in bytes: RFC 3339 takes 24.
const TIME_MAX: usize = 64;

/// Where the data is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Shape {
    Envelope,
    Pointer,
}

impl Shape {
    pub(super) const fn name(self) -> &'static str {
        match self {
            Self::Envelope => "envelope",
            Self::Pointer => "pointer",
        }
    }

    /// No object of this shape is longer.
    pub(super) const fn most_bytes(self) -> u64 {
        let data = match self {
            Self::Envelope => Envelope::MAX_BYTES,
            Self::Pointer => 0,
        };
        (HEADER_MAX + data) as u64
    }
}

/// The unique id of one write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct WriteId(pub(super) u64);

impl WriteId {
    pub(super) fn draw() -> Result<Self, Error> {
        Ok(Self(u64::from_ne_bytes(random::bytes()?)))
    }
}

/// The data, or where it is.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) enum Data {
    #[default]
    None,
    Here(Bytes),
    There {
        file: String,
        length: u64,
    },
}

/// The contents of the object.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ObjectState {
    pub(super) shape: Shape,
    pub(super) mark: Option<Mark>,
    pub(super) gc_count: u64,
    pub(super) trail: Vec<WriteId>,
    pub(super) resets: Vec<Reset>,
    pub(super) data: Data,
}

/// Why bytes cannot be read as an object of the fence.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unfit {
    /// Not written by a fence.
    Foreign,
    /// Written by a later version.
    Newer,
    /// Of the other shape.
    Other(Shape),
    /// Written by a fence, and changed since.
    Damaged(&'static str),
}

impl ObjectState {
    pub(super) fn empty(shape: Shape) -> Self {
        let (trail, resets) = (Vec::new(), Vec::new());
        Self { shape, mark: None, gc_count: 0, trail, resets, data: Data::None }
    }

    /// The state after one more write, of these data.
    pub(super) fn written(&self, id: WriteId, data: Data) -> Self {
        let mut next = self.clone();
        next.trail.push(id);
        next.trail.drain(..next.trail.len().saturating_sub(TRAIL));
        next.data = data;
        next
    }

    pub(super) fn encode(&self, nonce: u128) -> PutPayload {
        let mut lines = String::with_capacity(1024);
        // Writing to a string cannot fail.
        let _ = writeln!(lines, "nonce {nonce:032x}");
        if let Some(Mark { name, token, set_by, set_at }) = &self.mark {
            let _ = write!(lines, "name {name}\ntoken {token}\nset_by {set_by}\nset_at {set_at}\n");
        }
        let _ = writeln!(lines, "gc {}", self.gc_count);
        lines.push_str("writes ");
        for WriteId(id) in &self.trail {
            let _ = write!(lines, "{id:016x}");
        }
        lines.push('\n');
        for Reset { name, from, to, by, why, at } in &self.resets {
            let (from, to) = (token_text(*from), token_text(*to));
            let _ = writeln!(lines, "reset {name}\t{from}\t{to}\t{at}\t{by}\t{why}");
        }
        let (data, body) = match &self.data {
            Data::None => ("none".to_owned(), None),
            Data::Here(bytes) => (bytes.len().to_string(), Some(bytes.clone())),
            Data::There { file, length } => (format!("{length} {file}"), None),
        };
        let _ = write!(lines, "data {data}\n\n");
        let first = format!("{FORMAT}{VERSION} {} ", self.shape.name());
        // Eight digits and a newline.
        let length = first.len() + 9 + lines.len();
        let header = Bytes::from(format!("{first}{length:08}\n{lines}"));
        [header].into_iter().chain(body).collect()
    }

    /// Reads a whole object of this shape.
    pub(super) fn decode(shape: Shape, bytes: &Bytes) -> Result<Self, Unfit> {
        let (mut state, header, length) = Self::decode_header(bytes)?;
        if state.shape != shape {
            return Err(Unfit::Other(state.shape));
        }
        let body = bytes.slice(header..);
        if body.len() as u64 != length {
            return Err(Unfit::Damaged("its length"));
        }
        if let Data::Here(data) = &mut state.data {
            *data = body;
        }
        Ok(state)
    }

    /// Reads the header alone. Returns the state without the data, the length of the header, and that of the data
    /// behind it.
    pub(super) fn decode_header(bytes: &[u8]) -> Result<(Self, usize, u64), Unfit> {
        let Some(rest) = bytes.strip_prefix(FORMAT.as_bytes()) else { return Err(Unfit::Foreign) };
        let damaged = Unfit::Damaged;
        let end = rest.iter().take(FIRST_LINE).position(|byte| *byte == b'\n');
        let first = end.and_then(|end| std::str::from_utf8(&rest[..end]).ok());
        let mut words = first.ok_or(damaged("its first line"))?.split(' ');
        let gc = match words.next() {
            Some(VERSION) => "gc ",
            Some("1") => "sweeps ",
            _ => return Err(Unfit::Newer),
        };
        let shape = match words.next() {
            Some("envelope") => Shape::Envelope,
            Some("pointer") => Shape::Pointer,
            _ => return Err(damaged("its shape")),
        };
        let length = words.next().and_then(|word| word.parse::<usize>().ok());
        let length = length.filter(|length| *length <= HEADER_MAX);
        let header = length.and_then(|length| bytes.get(..length));
        let header = header.and_then(|header| std::str::from_utf8(header).ok());
        let header = header.ok_or(damaged("the length of its header"))?;
        // Its parts are printed in errors.
        if header.chars().any(|c| c.is_control() && c != '\n' && c != '\t') {
            return Err(damaged("control characters in its header"));
        }
        let mut lines = Lines(header.strip_suffix("\n\n").ok_or(damaged("its header's end"))?);
        lines.next();
        lines.take("nonce ").ok_or(damaged("its nonce"))?;
        let mut state = Self::empty(shape);
        if let Some(name) = lines.take("name ") {
            state.mark = Some(mark(name, &mut lines).ok_or(damaged("its mark"))?);
        }
        let gc_count = lines.take(gc).and_then(|number| number.parse().ok());
        state.gc_count = gc_count.ok_or(damaged("its gc count"))?;
        state.trail = lines.take("writes ").and_then(trail).ok_or(damaged("its writes"))?;
        while let Some(line) = lines.take("reset ") {
            let one = reset(line).filter(|_| state.resets.len() < RESETS);
            state.resets.push(one.ok_or(damaged("a logged reset"))?);
        }
        let (data, body) = lines
            .take("data ")
            .and_then(|words| data(shape, words))
            .filter(|_| lines.0.is_empty())
            .ok_or(damaged("where its data are"))?;
        state.data = data;
        Ok((state, header.len(), body))
    }
}

/// The remaining lines.
struct Lines<'a>(&'a str);

impl<'a> Lines<'a> {
    fn next(&mut self) -> &'a str {
        let (line, rest) = self.0.split_once('\n').unwrap_or((self.0, ""));
        self.0 = rest;
        line
    }

    /// The rest of the next line, if it begins with `word`.
    fn take(&mut self, word: &str) -> Option<&'a str> {
        if !self.0.starts_with(word) {
            return None;
        }
        self.next().strip_prefix(word)
    }
}

fn mark(name: &str, lines: &mut Lines<'_>) -> Option<Mark> {
    Some(Mark {
        name: LockName::new(name).ok()?,
        token: lines.take("token ")?.parse().ok()?,
        set_by: Label::new(lines.take("set_by ")?).ok()?.to_string(),
        set_at: time(lines.take("set_at ")?)?,
    })
}

/// A time. It only has to be printable.
fn time(text: &str) -> Option<String> {
    (text.len() <= TIME_MAX && !text.contains(char::is_control)).then(|| text.to_owned())
}

fn trail(ids: &str) -> Option<Vec<WriteId>> {
    let (ids, rest) = ids.as_bytes().as_chunks::<16>();
    let id = |digits: &[u8; 16]| {
        let hex = digits.iter().all(u8::is_ascii_hexdigit);
        let digits = std::str::from_utf8(digits).ok().filter(|_| hex)?;
        u64::from_str_radix(digits, 16).ok().map(WriteId)
    };
    (rest.is_empty() && ids.len() <= TRAIL).then(|| ids.iter().map(id).collect())?
}

fn reset(line: &str) -> Option<Reset> {
    let mut fields = line.split('\t');
    let name = LockName::new(fields.next()?).ok()?;
    let (from, to) = (token_in(fields.next()?).ok()?, token_in(fields.next()?).ok()?);
    let (at, by, why) = (fields.next()?, fields.next()?, fields.next()?);
    checked_reset(by, why).ok()?;
    let (at, by, why) = (time(at)?, by.to_owned(), why.to_owned());
    fields.next().is_none().then_some(Reset { name, from, to, by, why, at })
}

/// The data that a header describes, and how many bytes of it follow the header.
fn data(shape: Shape, words: &str) -> Option<(Data, u64)> {
    if words == "none" {
        return Some((Data::None, 0));
    }
    match (shape, words.split_once(' ')) {
        (Shape::Envelope, None) => Some((Data::Here(Bytes::new()), words.parse().ok()?)),
        (Shape::Pointer, Some((length, file))) => {
            let length = length.parse().ok()?;
            // It becomes part of a path.
            let plain = file.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-');
            (plain && !file.is_empty()).then(|| (Data::There { file: file.to_owned(), length }, 0))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use fencepost_core::Token;

    use super::*;

    fn bytes_of(state: &ObjectState, nonce: u128) -> Bytes {
        state.encode(nonce).into()
    }

    fn full(shape: Shape, data: Data) -> ObjectState {
        let name = LockName::new("invoice/42 ü").unwrap();
        let token = Token::new(Token::MAX).unwrap();
        let (set_by, set_at) = ("web 1:7".to_owned(), "2026-01-01T00:00:00.000Z".to_owned());
        let reset = Reset {
            name: name.clone(),
            from: Some(token),
            to: None,
            by: "ada".into(),
            why: "the store was restored".into(),
            at: set_at.clone(),
        };
        let trail = (0..TRAIL as u64).map(WriteId).collect();
        let mark = Some(Mark { name, token, set_by, set_at });
        ObjectState { shape, mark, gc_count: 3, trail, resets: vec![reset; RESETS], data }
    }

    #[test]
    fn objects_are_read_back_as_written() {
        let there = Data::There { file: "33-00ff".into(), length: 1 << 40 };
        for state in [
            ObjectState::empty(Shape::Envelope),
            ObjectState::empty(Shape::Pointer),
            full(Shape::Envelope, Data::Here(Bytes::from_static(b"\n\nfencepost-fence 2\0\xff"))),
            full(Shape::Envelope, Data::Here(Bytes::new())),
            full(Shape::Pointer, there),
        ] {
            let bytes = bytes_of(&state, 7);
            assert_eq!(ObjectState::decode(state.shape, &bytes), Ok(state.clone()));
            assert_ne!(bytes, bytes_of(&state, 8), "the nonce changes the bytes");
        }
    }

    #[test]
    fn longest_header_fits() {
        let mut state = full(Shape::Envelope, Data::None);
        for reset in &mut state.resets {
            reset.name = LockName::new(&"x".repeat(LockName::MAX_BYTES)).unwrap();
            (reset.by, reset.why) = ("y".repeat(256), "z".repeat(1024));
        }
        let bytes = bytes_of(&state, 0);
        assert!(bytes.len() < HEADER_MAX);
        assert_eq!(ObjectState::decode(Shape::Envelope, &bytes), Ok(state));
    }

    #[test]
    fn only_the_last_write_ids_are_kept() {
        let mut state = ObjectState::empty(Shape::Envelope);
        for id in 0..1000 {
            state = state.written(WriteId(id), Data::None);
        }
        assert_eq!(state.trail.len(), TRAIL);
        assert_eq!(state.trail.last(), Some(&WriteId(999)));
    }

    #[test]
    fn foreign_newer_and_other_shapes_are_distinguished() {
        let envelope = |text: &'static str| {
            ObjectState::decode(Shape::Envelope, &Bytes::from_static(text.as_bytes())).unwrap_err()
        };
        assert_eq!(envelope(""), Unfit::Foreign);
        assert_eq!(envelope("{\"sum\": 1}"), Unfit::Foreign);
        assert_eq!(envelope("fencepost-fence 3 crate 1\n"), Unfit::Newer);
        let pointer = bytes_of(&ObjectState::empty(Shape::Pointer), 0);
        assert_eq!(
            ObjectState::decode(Shape::Envelope, &pointer),
            Err(Unfit::Other(Shape::Pointer))
        );
    }

    /// The object with the length in its first line corrected. It had `length` bytes before the change.
    fn resized(text: &str, length: usize) -> String {
        let header: usize = text[27..35].parse().unwrap();
        format!("{}{:08}{}", &text[..27], header + text.len() - length, &text[35..])
    }

    #[test]
    fn an_object_is_as_the_page_says() {
        let mut state = ObjectState::empty(Shape::Envelope);
        state.mark = Some(Mark {
            name: LockName::new("report").unwrap(),
            token: Token::new(33).unwrap(),
            set_by: "web-1".into(),
            set_at: "2026-11-19T01:43:52.000Z".into(),
        });
        state.trail = vec![WriteId(0x0123_4567_89ab_cdef)];
        state.data = Data::Here(Bytes::from_static(b"Hello, world!"));
        let bytes = bytes_of(&state, 0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
        let text = std::str::from_utf8(&bytes).unwrap();
        let page = include_str!("../../../../docs/layouts/fences.md");
        assert!(page.contains(text), "docs/layouts/fences.md does not have:\n{text}");
    }

    /// If it counted as empty, its mark would be lost.
    #[test]
    fn objects_of_version_1_are_read() {
        let state = full(Shape::Envelope, Data::Here(Bytes::from_static(b"12345")));
        let bytes = bytes_of(&state, 5);
        let text = std::str::from_utf8(&bytes).unwrap();
        let earlier = text.replacen("-fence 2 ", "-fence 1 ", 1).replacen("\ngc ", "\nsweeps ", 1);
        let earlier = resized(&earlier, bytes.len());
        assert_eq!(ObjectState::decode(Shape::Envelope, &earlier.into()), Ok(state));
        // Each version has its own word.
        let mixed = text.replacen("-fence 2 ", "-fence 1 ", 1);
        let decoded = ObjectState::decode(Shape::Envelope, &mixed.into());
        assert_eq!(decoded, Err(Unfit::Damaged("its gc count")));
    }

    /// A list that is longer than we write it would be kept by every later write.
    #[test]
    fn too_long_lists_are_refused() {
        let mut state = full(Shape::Envelope, Data::None);
        state.trail.push(WriteId(1));
        let decoded = ObjectState::decode(Shape::Envelope, &bytes_of(&state, 0));
        assert_eq!(decoded, Err(Unfit::Damaged("its writes")));
        let mut state = full(Shape::Envelope, Data::None);
        state.resets.push(state.resets[0].clone());
        let decoded = ObjectState::decode(Shape::Envelope, &bytes_of(&state, 0));
        assert_eq!(decoded, Err(Unfit::Damaged("a logged reset")));
    }

    /// Reading ends without a panic whatever the bytes are, and a change of length is always noticed.
    #[test]
    fn damaged_objects_are_refused() {
        let mut state = full(Shape::Envelope, Data::Here(Bytes::from_static(b"12345")));
        state.trail.truncate(3);
        state.resets.truncate(2);
        let whole = bytes_of(&state, 5);
        for end in 0..whole.len() {
            assert!(
                ObjectState::decode(Shape::Envelope, &whole.slice(..end)).is_err(),
                "cut at {end}"
            );
        }
        let longer = [&whole[..], b"6"].concat().into();
        assert_eq!(
            ObjectState::decode(Shape::Envelope, &longer),
            Err(Unfit::Damaged("its length"))
        );
        for position in 0..whole.len() {
            for byte in [0, b'\n', b' ', b'9', 0xff] {
                let mut changed = whole.to_vec();
                changed[position] = byte;
                let _ = ObjectState::decode(Shape::Envelope, &changed.into());
            }
        }
        let escape = String::from_utf8(whole.to_vec()).unwrap().replacen("web 1", "web\u{1b}1", 1);
        assert!(ObjectState::decode(Shape::Envelope, &escape.into()).is_err());
        let text = String::from_utf8(whole.to_vec()).unwrap();
        for (from, to) in [
            ("set_by web 1:7", "set_by "),
            ("set_by web 1:7", "set_by web\t1:7"),
            ("00.000Z\ngc", "00.000\tZ\ngc"),
            ("\tada\t", "\t\t"),
            ("\tthe store was restored\n", "\t \n"),
        ] {
            assert!(text.contains(from), "{from}");
            let text = resized(&text.replacen(from, to, 1), whole.len());
            assert!(ObjectState::decode(Shape::Envelope, &text.into()).is_err(), "{to:?}");
        }
        for bad in ["5 ../x", "5 ", "x 33-00ff", "5", "-1 33-00ff"] {
            assert_eq!(data(Shape::Pointer, bad), None, "{bad}");
        }
    }
}
