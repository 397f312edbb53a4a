//! The header fields of a message, unchanged.

/// A range of the text.
#[derive(Clone, Copy, Debug, Default)]
struct Span(u32, u32);

/// Names and values, in order, in one buffer.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields {
    text: Vec<u8>,
    list: Vec<(Span, Span)>,
}

/// Headers of one connection, which are never forwarded (RFC 9110, 7.6.1). The length is written again.
const HOP_BY_HOP: [&str; 10] = [
    "connection",
    "content-length",
    "keep-alive",
    "proxy-authenticate",
    "proxy-authorization",
    "proxy-connection",
    "te",
    "trailer",
    "transfer-encoding",
    "upgrade",
];

impl Fields {
    /// Room for a head of this size.
    pub(crate) fn with_capacity(text: usize, fields: usize) -> Self {
        Self { text: Vec::with_capacity(text), list: Vec::with_capacity(fields) }
    }

    /// Adds a field. Name and value have been checked.
    pub(crate) fn push(&mut self, name: &[u8], value: &[u8]) {
        let name = self.keep(name);
        let value = self.keep(value);
        self.list.push((name, value));
    }

    fn keep(&mut self, text: &[u8]) -> Span {
        let from = self.text.len() as u32;
        self.text.extend_from_slice(text);
        Span(from, self.text.len() as u32)
    }

    fn at(&self, span: Span) -> &[u8] {
        &self.text[span.0 as usize..span.1 as usize]
    }

    /// All fields.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        self.list.iter().map(|&(name, value)| (self.at(name), self.at(value)))
    }

    /// The values of all fields with this name.
    pub(crate) fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a [u8]> {
        self.iter()
            .filter(move |(found, _)| found.eq_ignore_ascii_case(name.as_bytes()))
            .map(|(_, value)| value)
    }

    /// The first value with this name.
    pub(crate) fn first<'a>(&'a self, name: &'a str) -> Option<&'a [u8]> {
        self.all(name).next()
    }

    /// Whether there is one.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.first(name).is_some()
    }

    /// Whether a list such as `Connection: keep-alive, close` contains this word.
    pub(crate) fn lists(&self, name: &str, word: &str) -> bool {
        self.all(name).any(|value| words(value).any(|w| w.eq_ignore_ascii_case(word.as_bytes())))
    }

    /// The fields to forward: all but those of the connection, by nature or because `Connection` names them.
    pub(crate) fn end_to_end(&self) -> impl Iterator<Item = (&[u8], &[u8])> {
        // Most messages name nothing else.
        let plain = |word: &[u8]| {
            word.eq_ignore_ascii_case(b"keep-alive") || word.eq_ignore_ascii_case(b"close")
        };
        let named = self.all("connection").any(|value| !words(value).all(plain));
        let is_named = move |name: &[u8]| {
            named
                // The service needs these, whatever `Connection` says.
                && ![b"host".as_slice(), b"fencing-token"].iter().any(|n| name.eq_ignore_ascii_case(n))
                && self
                    .all("connection")
                    .any(|value| words(value).any(|w| w.eq_ignore_ascii_case(name)))
        };
        self.iter().filter(move |(name, _)| !is_hop_by_hop(name) && !is_named(name))
    }
}

fn is_hop_by_hop(name: &[u8]) -> bool {
    // The first letter rules out most names.
    matches!(name.first().map(u8::to_ascii_lowercase), Some(b'c' | b'k' | b'p' | b't' | b'u'))
        && HOP_BY_HOP.iter().any(|hop| name.eq_ignore_ascii_case(hop.as_bytes()))
}

fn words(value: &[u8]) -> impl Iterator<Item = &[u8]> {
    value.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|word| !word.is_empty())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hop_by_hop_headers_are_not_forwarded() {
        let mut fields = Fields::default();
        for (name, value) in [
            ("Connection", "keep-alive, X-Mine, Host, fencing-token"),
            ("Host", "h"),
            ("Fencing-Token", "1"),
            ("Keep-Alive", "timeout=5"),
            ("X-Mine", "1"),
            ("Cookie", "a=b"),
            ("TE", "trailers"),
            ("Transfer-Encoding", "chunked"),
            ("Proxy-Authorization", "secret"),
            ("Upgrade", "h2c"),
            ("Content-Length", "4"),
            ("Content-Type", "text/plain"),
        ] {
            fields.push(name.as_bytes(), value.as_bytes());
        }
        let passed: Vec<_> = fields.end_to_end().map(|(name, _)| name).collect();
        assert_eq!(passed, [b"Host".as_slice(), b"Fencing-Token", b"Cookie", b"Content-Type"]);
        assert!(fields.lists("connection", "x-mine") && !fields.lists("connection", "close"));
    }
}
