//! The format of the marks on disk. Text, one entry per line, fields separated by tabs, which no name, label or reason
//! can contain:
//!
//! ```text
//! fencepost marks 1
//! mark   TOKEN  SET_AT  SET_BY  NAME
//! reset  FROM   TO      AT      BY   WHY  NAME     "-" for no token; oldest first, the last 1000
//! sum    CRC-32 of all bytes before this line, 8 hex digits
//! ```
//!
//! The file is always replaced as a whole. A truncated file, or one with a wrong sum, is an error and never "no marks":
//! that would let a stale token in.

use std::fmt::Write as _;

use fencepost_base::Result;
use fencepost_core::{FencingToken, Label, LockName};

use crate::contract::{Mark, Reset, token_in, token_text};

const HEAD: &str = "fencepost marks ";
const VERSION: &str = "1";
/// How many resets are kept.
const RESETS: usize = 1000;

/// The marks and resets of a file. Marks are sorted by name.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Marks {
    pub(super) marks: Vec<Mark>,
    pub(super) resets: Vec<Reset>,
}

/// Why the marks cannot be read.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Unreadable {
    Damaged,
    /// A format of another version.
    Version(String),
}

impl Marks {
    fn find(&self, name: &LockName) -> Result<usize, usize> {
        self.marks.binary_search_by(|mark| mark.name.cmp(name))
    }

    pub(super) fn mark(&self, name: &LockName) -> Option<&Mark> {
        self.find(name).ok().map(|at| &self.marks[at])
    }

    /// Raises the mark. Returns `false` if it is this token already.
    pub(super) fn raise(&mut self, fencing: &FencingToken, who: &Label) -> Result<bool> {
        let Some(mark) = Mark::raised(self.mark(fencing.name()), fencing, who)? else {
            return Ok(false);
        };
        self.put(mark);
        Ok(true)
    }

    fn put(&mut self, mark: Mark) {
        match self.find(&mark.name) {
            Ok(at) => self.marks[at] = mark,
            Err(at) => self.marks.insert(at, mark),
        }
    }

    /// Sets or deletes the mark, and logs the reset.
    pub(super) fn reset(&mut self, reset: Reset) {
        match (reset.mark(), self.find(&reset.name)) {
            (Some(mark), _) => self.put(mark),
            (None, Ok(at)) => drop(self.marks.remove(at)),
            (None, Err(_)) => {}
        }
        self.note(reset);
    }

    fn note(&mut self, reset: Reset) {
        self.resets.push(reset);
        let many = self.resets.len().saturating_sub(RESETS);
        self.resets.drain(..many);
    }

    pub(super) fn text(&self) -> String {
        let mut text = format!("{HEAD}{VERSION}\n");
        // Writing to a string cannot fail.
        for Mark { name, token, set_by, set_at } in &self.marks {
            let _ = writeln!(text, "mark\t{token}\t{set_at}\t{set_by}\t{name}");
        }
        for Reset { name, from, to, by, why, at } in &self.resets {
            let (from, to) = (token_text(*from), token_text(*to));
            let _ = writeln!(text, "reset\t{from}\t{to}\t{at}\t{by}\t{why}\t{name}");
        }
        let sum = crc32(text.as_bytes());
        let _ = writeln!(text, "sum\t{sum:08x}");
        text
    }

    pub(super) fn read(bytes: &[u8]) -> Result<Self, Unreadable> {
        let text = str::from_utf8(bytes).map_err(|_| Unreadable::Damaged)?;
        let version = text.lines().next().and_then(|line| line.strip_prefix(HEAD));
        // A later version may compute the sum in another way.
        if let Some(version) = version.filter(|version| *version != VERSION)
            && !version.is_empty()
            && version.bytes().all(|byte| byte.is_ascii_digit())
        {
            return Err(Unreadable::Version(version.to_owned()));
        }
        Self::parse(text).ok_or(Unreadable::Damaged)
    }

    fn parse(text: &str) -> Option<Self> {
        // The last line: "sum", a tab, 8 digits, a newline.
        let (body, sum) = text.split_at_checked(text.len().checked_sub(13)?)?;
        if sum != format!("sum\t{:08x}\n", crc32(body.as_bytes())) {
            return None;
        }
        let mut lines = body.lines();
        (lines.next()?.strip_prefix(HEAD)? == VERSION).then_some(())?;
        let mut read = Self::default();
        for line in lines {
            let fields: Vec<_> = line.split('\t').collect();
            match *fields {
                ["mark", token, at, by, name] => read.put(Mark {
                    name: LockName::new(name).ok()?,
                    token: token.parse().ok()?,
                    set_by: by.to_owned(),
                    set_at: at.to_owned(),
                }),
                ["reset", from, to, at, by, why, name] => read.resets.push(Reset {
                    name: LockName::new(name).ok()?,
                    from: token_in(from).ok()?,
                    to: token_in(to).ok()?,
                    by: by.to_owned(),
                    why: why.to_owned(),
                    at: at.to_owned(),
                }),
                _ => return None,
            }
        }
        Some(read)
    }
}

/// CRC-32 as in gzip and zlib.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0_u32, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            if crc & 1 == 0 { crc >> 1 } else { (crc >> 1) ^ 0xedb8_8320 }
        })
    })
}

#[cfg(test)]
mod tests {
    use fencepost_base::clock::stamp::now;
    use fencepost_core::Token;

    use super::*;

    fn example() -> Marks {
        let mut marks = Marks::default();
        let who = Label::new("web-1:7").unwrap();
        for (name, token) in [("b", 7), ("ü/a b", Token::MAX), ("a", 1), ("b", 9)] {
            let (name, token) = (LockName::new(name).unwrap(), Token::new(token).unwrap());
            assert!(marks.raise(&FencingToken::new(name, token), &who).unwrap());
        }
        marks.note(Reset {
            name: LockName::new("b").unwrap(),
            from: Token::new(9).ok(),
            to: None,
            by: "ada".into(),
            why: "the store was restored".into(),
            at: now(),
        });
        marks
    }

    #[test]
    fn marks_are_read_back_as_written() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
        for marks in [Marks::default(), example()] {
            assert_eq!(Marks::read(marks.text().as_bytes()).unwrap(), marks);
        }
    }

    #[test]
    fn marks_are_as_the_page_says() {
        let (mut marks, name) = (Marks::default(), LockName::new("report").unwrap());
        let (set_at, token) = ("2026-11-19T01:43:52.000Z".to_owned(), Token::new(33).unwrap());
        marks.put(Mark { name: name.clone(), token, set_by: "web-1".into(), set_at });
        marks.note(Reset {
            name,
            from: Some(token),
            to: None,
            by: "ann".into(),
            why: "the store was restored".into(),
            at: "2026-11-19T01:44:00.000Z".into(),
        });
        let page = include_str!("../../../../docs/layouts/fences.md");
        assert!(
            page.contains(&marks.text()),
            "docs/layouts/fences.md does not have:\n{}",
            marks.text()
        );
    }

    /// Truncated or changed bytes never read as fewer or lower marks.
    #[test]
    fn damaged_marks_are_an_error() {
        let text = example().text();
        for end in 0..text.len() {
            assert!(Marks::read(&text.as_bytes()[..end]).is_err(), "cut off at {end}");
        }
        for at in 0..text.len() {
            for bit in 0..8 {
                let mut bytes = text.clone().into_bytes();
                bytes[at] ^= 1 << bit;
                assert!(Marks::read(&bytes).is_err(), "bit {bit} of byte {at}");
            }
        }
        assert!(Marks::read(&vec![0; text.len()]).is_err());
        let newer = text.replacen("marks 1", "marks 2", 1);
        assert_eq!(Marks::read(newer.as_bytes()), Err(Unreadable::Version("2".into())));
    }

    #[test]
    fn oldest_resets_are_dropped() {
        let mut marks = example();
        let one = marks.resets[0].clone();
        for count in 0..RESETS + 5 {
            marks.note(Reset { why: count.to_string(), ..one.clone() });
        }
        assert_eq!(marks.resets.len(), RESETS);
        assert_eq!(marks.resets[RESETS - 1].why, (RESETS + 4).to_string());
    }
}
