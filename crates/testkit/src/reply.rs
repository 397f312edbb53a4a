//! Replies of a Redis server in RESP2.
//!
//! ```text
//! +text\r\n        Simple
//! -text\r\n        Error
//! :number\r\n      Int
//! $n\r\n n bytes \r\n    Bulk, absent when n is -1
//! *n\r\n n replies       Array, absent when n is -1
//! ```

use std::io::{self, BufRead};

/// One reply. An error of the server is a reply too: the command arrived and was refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// A status, like `OK`.
    Simple(String),
    /// An error, like `WRONGTYPE ...`.
    Error(String),
    /// A number.
    Int(i64),
    /// Bytes, or nil.
    Bulk(Option<Vec<u8>>),
    /// A list, or nil.
    Array(Option<Vec<Reply>>),
}

impl Reply {
    /// The text of a status or of bytes; an error for anything else, error replies and nil included.
    pub fn text(&self) -> io::Result<String> {
        match self {
            Self::Simple(text) => Ok(text.clone()),
            Self::Bulk(Some(bytes)) => Ok(String::from_utf8_lossy(bytes).into_owned()),
            other => Err(other.is_not("a text")),
        }
    }

    /// The number, also if it was sent as text; an error for anything else.
    pub fn int(&self) -> io::Result<i64> {
        match self {
            Self::Int(number) => Ok(*number),
            other => {
                let text = other.text().map_err(|_| other.is_not("a number"))?;
                text.parse().map_err(|_| other.is_not("a number"))
            }
        }
    }

    /// The replies of a list; an error for anything else.
    pub fn items(&self) -> io::Result<&[Self]> {
        match self {
            Self::Array(Some(items)) => Ok(items),
            other => Err(other.is_not("a list")),
        }
    }

    /// Whether this is nil.
    #[must_use]
    pub fn is_nil(&self) -> bool {
        matches!(self, Self::Bulk(None) | Self::Array(None))
    }

    /// Reads one reply.
    pub(crate) fn read(from: &mut impl BufRead) -> io::Result<Self> {
        let line = read_line(from)?;
        let (kind, rest) = line.split_at_checked(1).ok_or_else(|| bad(&line))?;
        let number = || rest.parse::<i64>().map_err(|_| bad(&line));
        Ok(match kind {
            "+" => Self::Simple(rest.to_owned()),
            "-" => Self::Error(rest.to_owned()),
            ":" => Self::Int(number()?),
            "$" => match usize::try_from(number()?) {
                Err(_) => Self::Bulk(None),
                Ok(length) => {
                    let mut bytes = vec![0; length + 2];
                    from.read_exact(&mut bytes)?;
                    bytes.truncate(length);
                    Self::Bulk(Some(bytes))
                }
            },
            "*" => match usize::try_from(number()?) {
                Err(_) => Self::Array(None),
                Ok(length) => Self::Array(Some(
                    (0..length).map(|_| Self::read(from)).collect::<Result<_, _>>()?,
                )),
            },
            _ => return Err(bad(&line)),
        })
    }

    fn is_not(&self, wanted: &str) -> io::Error {
        io::Error::other(format!("wanted {wanted} from redis, got {self:?}"))
    }
}

fn read_line(from: &mut impl BufRead) -> io::Result<String> {
    let mut line = Vec::new();
    from.read_until(b'\n', &mut line)?;
    match line.strip_suffix(b"\r\n") {
        Some(line) => Ok(String::from_utf8_lossy(line).into_owned()),
        None => Err(io::Error::new(
            io::ErrorKind::UnexpectedEof,
            "wanted an answer of redis, the connection was closed",
        )),
    }
}

fn bad(line: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidData, format!("wanted an answer of redis, got \"{line}\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> io::Result<Reply> {
        Reply::read(&mut text.as_bytes())
    }

    #[test]
    fn every_kind_of_reply_is_parsed() {
        assert_eq!(read("+OK\r\n").unwrap().text().unwrap(), "OK");
        assert_eq!(read(":-7\r\n").unwrap().int().unwrap(), -7);
        assert_eq!(read("$2\r\n42\r\n").unwrap().int().unwrap(), 42);
        assert!(read("$-1\r\n").unwrap().is_nil());
        assert!(read("*-1\r\n").unwrap().is_nil());
        let list = read("*2\r\n:1\r\n*1\r\n$4\r\na\r\nb\r\n").unwrap();
        assert_eq!(list.items().unwrap()[1].items().unwrap()[0].text().unwrap(), "a\r\nb");
    }

    #[test]
    fn error_reply_is_not_text_and_is_shown() {
        let error = read("-NOAUTH no\r\n").unwrap().text().unwrap_err();
        assert!(error.to_string().contains("NOAUTH no"), "{error}");
    }

    #[test]
    fn incomplete_or_malformed_reply_is_an_error() {
        assert_eq!(read("+O").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read("$5\r\nab").unwrap_err().kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(read("HTTP\r\n").unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert_eq!(read("\r\n").unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}
