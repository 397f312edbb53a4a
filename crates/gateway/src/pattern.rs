//! Patterns that say which lock guards a path: `/invoices/{id}`, `/files/{path*}`, `/a/{x}/{y} => a/{y}`.

use std::borrow::Cow;

use fencepost_base::{Error, Result};
use fencepost_core::LockName;

/// One pattern, as the operator wrote it.
#[derive(Clone, Debug)]
pub struct Pattern {
    parts: Vec<Part>,
    name: Option<Vec<Piece>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Part {
    Literal(String),
    One(String),
    /// The rest of the path, at least one segment.
    Rest(String),
}

#[derive(Clone, Debug)]
enum Piece {
    Text(String),
    /// The index of the pattern's part whose value goes here.
    Part(usize),
}

impl std::str::FromStr for Pattern {
    type Err = Error;

    fn from_str(text: &str) -> Result<Self> {
        let bad = |why: &str| {
            Error::invalid(format!(
                "\"{}\" is not a pattern: {why}; write /invoices/{{id}}, /files/{{path*}}, or \
                 '/invoices/{{id}} => invoice/{{id}}'",
                text.escape_debug()
            ))
        };
        let (path, name) = match text.split_once("=>") {
            Some((path, name)) => (path.trim(), Some(name.trim())),
            None => (text.trim(), None),
        };
        let parts = parts(path).map_err(|why| bad(&why))?;
        let name = name.map(|name| template(name, &parts)).transpose().map_err(|why| bad(&why))?;
        Ok(Self { parts, name })
    }
}

fn parts(path: &str) -> Result<Vec<Part>, String> {
    let mut found: Vec<Part> = Vec::new();
    // Braces are not allowed in a path, so variables are taken out first.
    let rest = path.strip_prefix('/').ok_or("it does not start with a slash")?;
    let rest = rest.strip_suffix('/').unwrap_or(rest);
    let texts: Vec<&str> = if rest.is_empty() { Vec::new() } else { rest.split('/').collect() };
    for (index, text) in texts.iter().enumerate() {
        let Some(variable) = text.strip_prefix('{').and_then(|text| text.strip_suffix('}')) else {
            if text.is_empty() {
                return Err("it has an empty segment (//)".into());
            }
            if text.contains(['{', '}', '*']) {
                return Err("a variable must be a whole segment".into());
            }
            let path = format!("/{text}");
            let literal = crate::path::segments(&path)?;
            found.extend(literal.into_iter().map(|text| Part::Literal(text.into_owned())));
            continue;
        };
        let part = match variable.strip_suffix('*') {
            Some(_) if index + 1 < texts.len() => {
                return Err("a variable with * must come last".into());
            }
            Some(variable) => Part::Rest(variable.to_owned()),
            None => Part::One(variable.to_owned()),
        };
        let name = part.variable().unwrap_or_default();
        if name.is_empty() || !name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
        {
            return Err("the name of a variable has only letters, digits and _".into());
        }
        if found.iter().any(|other| other.variable() == Some(name)) {
            return Err(format!("the variable {{{name}}} is there twice"));
        }
        found.push(part);
    }
    Ok(found)
}

fn template(text: &str, parts: &[Part]) -> Result<Vec<Piece>, String> {
    let (mut pieces, mut rest) = (Vec::new(), text);
    while let Some((before, after)) = rest.split_once('{') {
        let (variable, after) = after.split_once('}').ok_or("a { is not closed")?;
        let variable = variable.strip_suffix('*').unwrap_or(variable);
        let part = parts.iter().position(|part| part.variable() == Some(variable));
        let part = part.ok_or_else(|| format!("{{{variable}}} is not in the path"))?;
        pieces.push(Piece::Text(before.to_owned()));
        pieces.push(Piece::Part(part));
        rest = after;
    }
    pieces.push(Piece::Text(rest.to_owned()));
    if text.is_empty() {
        return Err("the name after => is empty".into());
    }
    Ok(pieces)
}

impl Part {
    fn variable(&self) -> Option<&str> {
        match self {
            Self::Literal(_) => None,
            Self::One(name) | Self::Rest(name) => Some(name),
        }
    }
}

impl Pattern {
    /// The lock's name for these segments, if the pattern matches them.
    pub(crate) fn name(&self, segments: &[Cow<'_, str>]) -> Option<Result<LockName>> {
        if !self.fits(segments) {
            return None;
        }
        let mut name = String::new();
        match &self.name {
            None => name = segments.join("/"),
            Some(pieces) => {
                for piece in pieces {
                    match piece {
                        Piece::Text(text) => name.push_str(text),
                        Piece::Part(part) if matches!(self.parts[*part], Part::Rest(_)) => {
                            name.push_str(&segments[*part..].join("/"));
                        }
                        Piece::Part(part) => name.push_str(&segments[*part]),
                    }
                }
            }
        }
        Some(LockName::new(&name).map_err(Error::from))
    }

    fn fits(&self, segments: &[Cow<'_, str>]) -> bool {
        let open = matches!(self.parts.last(), Some(Part::Rest(_)));
        let (has, wants) = (segments.len(), self.parts.len());
        (has == wants || (open && has > wants))
            && self.parts.iter().zip(segments).all(|(part, segment)| match part {
                Part::Literal(text) => text == segment,
                Part::One(_) | Part::Rest(_) => true,
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(pattern: &str, path: &str) -> Option<String> {
        let segments = crate::path::segments(path).unwrap();
        let pattern: Pattern = pattern.parse().unwrap();
        pattern.name(&segments).map(|name| name.unwrap().to_string())
    }

    #[test]
    fn pattern_gives_the_lock_name() {
        for (pattern, path, expected) in [
            ("/invoices/{id}", "/invoices/42", Some("invoices/42")),
            ("/invoices/{id}", "/invoices/42/", Some("invoices/42")),
            ("/invoices/{id}", "/invoices", None),
            ("/invoices/{id}", "/invoices/42/lines", None),
            ("/invoices/{id}", "/Invoices/42", None),
            ("/invoices/{id} => invoice/{id}", "/invoices/42", Some("invoice/42")),
            ("/{a}/{b} => {b}-{a}!", "/x/y", Some("y-x!")),
            ("/files/{path*}", "/files/a/b%20c", Some("files/a/b c")),
            ("/files/{path*} => f:{path}", "/files/a/b", Some("f:a/b")),
            ("/files/{path*}", "/files", None),
            ("/ledger", "/ledger", Some("ledger")),
            ("/ => root", "/", Some("root")),
        ] {
            assert_eq!(name(pattern, path).as_deref(), expected, "{pattern} on {path}");
        }
    }

    #[test]
    fn bad_pattern_says_why() {
        for (pattern, why) in [
            ("invoices", "slash"),
            ("/a/{b", "whole segment"),
            ("/a/x{b}", "whole segment"),
            ("/{a*}/b", "come last"),
            ("/{a}/{a}", "twice"),
            ("/{}", "letters"),
            ("/{a} => x/{b}", "{b} is not in the path"),
            ("/{a} =>", "empty"),
            ("/a//b", "empty segment"),
            ("/../b", "dot segment"),
        ] {
            let error = pattern.parse::<Pattern>().unwrap_err().to_string();
            assert!(error.contains(why) && !error.contains('\n'), "{pattern}: {error}");
        }
    }
}
