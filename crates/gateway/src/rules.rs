//! Decides by the head alone whether a request is forwarded as it is, fenced, or refused.

use fencepost_core::{FencingToken, Label, LockName, Token};

use crate::config::Config;
use crate::message::head::Request;
use crate::path::segments;
use crate::problem::Problem;

/// What to do with a request.
#[derive(Debug)]
pub(crate) enum Plan {
    /// It reads, and has no token.
    Pass,
    /// It waits for this name, and its token enters.
    Fence(Fenced),
}

/// A request with a token.
#[derive(Debug)]
pub(crate) struct Fenced {
    pub(crate) fencing: FencingToken,
    /// The holder, if the request names it.
    pub(crate) who: Option<Label>,
    pub(crate) writes: bool,
}

/// The operator's rules from the configuration.
pub(crate) struct Rules<'a>(pub(crate) &'a Config);

/// Headers that make a service treat a request as another one. A GET could be a DELETE without a token, or one path could
/// be fenced while another is written.
const OVERRIDES: [&str; 5] = [
    "x-http-method-override",
    "x-http-method",
    "x-method-override",
    "x-original-url",
    "x-rewrite-url",
];

impl Rules<'_> {
    /// Plans this request. Its target is in origin form.
    pub(crate) fn plan(&self, head: &Request) -> Result<Plan, Problem> {
        let method = head.method.as_str();
        // Methods are case-sensitive, but not for every service.
        if method.bytes().any(|byte| byte.is_ascii_lowercase()) {
            return Err(Problem::bad_request(format!(
                "the method {method} is refused: write it in upper case"
            )));
        }
        if method == "CONNECT" {
            return Err(Problem::bad_request("CONNECT is refused: this gateway is not a tunnel"));
        }
        if let Some(name) = head.fields.iter().find_map(|(name, _)| ambiguous_header(name)) {
            return Err(Problem::bad_request(format!(
                "the header {name} is refused: {}",
                if name.contains('_') {
                    "many services read _ as -, so it could pass for another header; write it with -"
                } else {
                    "send the real method and path, so that a write is recognised"
                }
            )));
        }
        if head.fields.all("upgrade").any(|protocol| !protocol.eq_ignore_ascii_case(b"h2c")) {
            return Err(Problem::bad_request("Upgrade is refused: this gateway speaks HTTP only"));
        }
        let writes = !matches!(method, "GET" | "HEAD" | "OPTIONS")
            && !self.0.safe_methods.iter().any(|safe| safe == method);
        let token = token(head)?;
        if !writes && token.is_none() {
            return Ok(Plan::Pass);
        }
        let name = self.name(head, path_of(&head.target))?;
        let Some(token) = token else {
            return Err(Problem::no_token(format!(
                "{method} is a write: send Fencing-Token with the token of your grant on \"{name}\""
            ))
            .on(&name, None));
        };
        if matches!(method, "COPY" | "MOVE") {
            self.check_destination(head, &name)?;
        }
        Ok(Plan::Fence(Fenced {
            fencing: FencingToken::new(name, token),
            who: holder(head)?,
            writes,
        }))
    }

    /// The lock that guards this path: from the first pattern that matches, else from the header.
    fn name(&self, head: &Request, path: &str) -> Result<LockName, Problem> {
        let segments = segments(path)
            .map_err(|why| Problem::bad_path(format!("the path {path} is refused: {why}")))?;
        let invalid = |error: fencepost_base::Error| Problem::bad_request(error.one_line());
        let by_path = self.0.patterns.iter().find_map(|pattern| pattern.name(&segments));
        let by_path = by_path.transpose().map_err(invalid)?;
        let by_header = match &self.0.name_header {
            Some(header) => text(head, header)?.map(LockName::new),
            None => None,
        };
        let by_header = by_header.transpose().map_err(|error| invalid(error.into()))?;
        match (by_path, by_header) {
            (Some(path), Some(header)) if path != header => Err(Problem::bad_request(format!(
                "the path names the lock \"{path}\" and the header names \"{header}\": name one lock"
            ))),
            (Some(name), _) | (None, Some(name)) => Ok(name),
            (None, None) => {
                let header = self.0.name_header.as_ref();
                let header = header.map(|header| format!(", and there is no {header}"));
                let why = format!("no --name-pattern matches {path}{}", header.unwrap_or_default());
                Err(Problem::no_lock(why))
            }
        }
    }

    /// A copy writes its destination, which must be under the same lock.
    fn check_destination(&self, head: &Request, name: &LockName) -> Result<(), Problem> {
        let Some(destination) = one(head, "destination").map_err(Problem::bad_request)? else {
            return Err(Problem::bad_request("the request has no Destination"));
        };
        let path = path_of_destination(destination).ok_or_else(|| {
            Problem::bad_request(format!(
                "the Destination {} is refused: send a path, or http://HOST and a path, without a query",
                String::from_utf8_lossy(destination).escape_debug()
            ))
        })?;
        let other = self.name(head, path)?;
        if other == *name {
            return Ok(());
        }
        Err(Problem::no_lock(format!(
            "{} writes under two locks, \"{name}\" and \"{other}\": one token cannot guard both",
            head.method
        )))
    }
}

/// The name of a header that the service may read as another, without our seeing it.
fn ambiguous_header(name: &[u8]) -> Option<&str> {
    let bad = name.contains(&b'_')
        || (matches!(name.first(), Some(b'x' | b'X'))
            && OVERRIDES.iter().any(|other| name.eq_ignore_ascii_case(other.as_bytes())));
    if bad { std::str::from_utf8(name).ok() } else { None }
}

/// The path of a `Destination`: all of it, or what follows a plain `http://host`. Services may parse anything else in
/// different ways.
fn path_of_destination(value: &[u8]) -> Option<&str> {
    let text = std::str::from_utf8(value).ok()?;
    if text.contains(['?', '#']) {
        return None;
    }
    if text.starts_with('/') {
        return Some(text);
    }
    let rest = text.strip_prefix("http://").or_else(|| text.strip_prefix("https://"))?;
    let (authority, path) = rest.split_at(rest.find('/')?);
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-:[]".contains(&byte);
    (!authority.is_empty() && authority.bytes().all(plain)).then_some(path)
}

/// The target without its query.
pub(crate) fn path_of(target: &str) -> &str {
    target.split_once('?').map_or(target, |(path, _)| path)
}

fn one<'a>(head: &'a Request, name: &'a str) -> Result<Option<&'a [u8]>, String> {
    let mut values = head.fields.all(name);
    match (values.next(), values.next()) {
        (_, Some(_)) => Err(format!("the request has more than one {name}")),
        (value, None) => Ok(value),
    }
}

/// The one value of a header as text.
fn text<'a>(head: &'a Request, name: &'a str) -> Result<Option<&'a str>, Problem> {
    let value = one(head, name).map_err(Problem::bad_request)?;
    let text = value.map(std::str::from_utf8).transpose();
    text.map_err(|_| Problem::bad_request(format!("{name} is not UTF-8")))
}

fn token(head: &Request) -> Result<Option<Token>, Problem> {
    let Some(value) = one(head, "Fencing-Token").map_err(Problem::bad_token)? else {
        return Ok(None);
    };
    let text = std::str::from_utf8(value).unwrap_or_default();
    // `parse` would accept a sign.
    if !text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(Problem::bad_token(format!(
            "Fencing-Token \"{}\" is not a token: send digits only",
            String::from_utf8_lossy(value).escape_debug()
        )));
    }
    let token = text.parse::<Token>().map_err(|error| Problem::bad_token(error.to_string()))?;
    Ok(Some(token))
}

fn holder(head: &Request) -> Result<Option<Label>, Problem> {
    let holder = text(head, "Fencing-Holder")?.map(Label::new).transpose();
    holder.map_err(|error| Problem::bad_request(error.to_string()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rules(header: Option<&str>) -> Config {
        let upstream = "http://upstream".parse().unwrap();
        let mut config = Config::new(([127, 0, 0, 1], 0).into(), upstream, "marks".into());
        config.patterns = vec!["/invoices/{id} => invoice/{id}".parse().unwrap()];
        config.name_header = header.map(str::to_owned);
        config.safe_methods = vec!["PROPFIND".into()];
        config
    }

    fn plan(
        rules: &Config,
        method: &str,
        target: &str,
        fields: &[(&str, &str)],
    ) -> Result<Plan, u16> {
        let mut head = Request {
            method: method.into(),
            target: target.into(),
            is_11: true,
            fields: crate::message::fields::Fields::default(),
        };
        for (name, value) in fields {
            head.fields.push(name.as_bytes(), value.as_bytes());
        }
        Rules(rules).plan(&head).map_err(|problem| problem.status)
    }

    #[test]
    fn method_path_and_headers_decide_the_plan() {
        let rules = rules(None);
        let token = ("fencing-token", "33");
        let fenced = |plan| matches!(plan, Ok(Plan::Fence(Fenced { fencing, .. })) if fencing.name().as_str() == "invoice/42");
        for method in ["GET", "HEAD", "OPTIONS", "PROPFIND"] {
            assert!(
                matches!(plan(&rules, method, "/anything/..//", &[]), Ok(Plan::Pass)),
                "{method}"
            );
            assert!(fenced(plan(&rules, method, "/invoices/42?x=/../", &[token])), "{method}");
        }
        for method in ["PUT", "POST", "PATCH", "DELETE", "MKCOL", "LOCK"] {
            assert_eq!(plan(&rules, method, "/invoices/42", &[]).unwrap_err(), 428, "{method}");
            assert!(fenced(plan(&rules, method, "/invoices/42", &[token])), "{method}");
            assert_eq!(plan(&rules, method, "/other", &[token]).unwrap_err(), 403, "{method}");
            assert_eq!(
                plan(&rules, method, "/invoices//42", &[token]).unwrap_err(),
                400,
                "{method}"
            );
        }
        for method in ["get", "Get", "Put", "Move", "connect", "CONNECT"] {
            assert_eq!(plan(&rules, method, "/invoices/42", &[token]).unwrap_err(), 400);
        }
        for name in OVERRIDES {
            assert_eq!(plan(&rules, "GET", "/", &[(name, "DELETE")]).unwrap_err(), 400);
        }
        for name in ["X_HTTP_Method_Override", "Transfer_Encoding", "Content_Length", "Any_thing"] {
            assert_eq!(plan(&rules, "GET", "/", &[(name, "1")]).unwrap_err(), 400, "{name}");
        }
        assert_eq!(plan(&rules, "GET", "/", &[("Upgrade", "websocket")]).unwrap_err(), 400);
        assert!(plan(&rules, "GET", "/", &[("Upgrade", "h2c")]).is_ok());
    }

    #[test]
    fn token_must_be_one_plain_number() {
        for bad in ["", "0", "-1", "+1", "1.0", "1e3", " 1", "1,2", "9007199254740992", "٣", "0x1"]
        {
            let found = plan(&rules(None), "PUT", "/invoices/42", &[("Fencing-Token", bad)]);
            assert_eq!(found.unwrap_err(), 400, "{bad:?}");
            // A read with a bad token is not treated as a read without one.
            let found = plan(&rules(None), "GET", "/invoices/42", &[("Fencing-Token", bad)]);
            assert_eq!(found.unwrap_err(), 400, "{bad:?}");
        }
        let two = [("Fencing-Token", "1"), ("fencing-token", "1")];
        assert_eq!(plan(&rules(None), "PUT", "/invoices/42", &two).unwrap_err(), 400);
        let max = [("Fencing-Token", "9007199254740991")];
        assert!(plan(&rules(None), "PUT", "/invoices/42", &max).is_ok());
    }

    #[test]
    fn header_names_the_lock_where_no_pattern_matches() {
        let rules = rules(Some("Lock-Name"));
        let with = |target: &str, name: &str| {
            plan(&rules, "PUT", target, &[("Fencing-Token", "1"), ("Lock-Name", name)])
        };
        assert!(
            matches!(with("/x", "ledger"), Ok(Plan::Fence(Fenced { fencing, .. })) if fencing.name().as_str() == "ledger")
        );
        assert!(with("/invoices/42", "invoice/42").is_ok());
        assert_eq!(with("/invoices/42", "ledger").unwrap_err(), 400);
        assert_eq!(with("/x", "").unwrap_err(), 400);
        assert_eq!(plan(&rules, "PUT", "/x", &[("Fencing-Token", "1")]).unwrap_err(), 403);
    }

    #[test]
    fn move_to_another_lock_is_refused() {
        let rules = rules(None);
        let to = |destination: &str| {
            let fields = [("Fencing-Token", "1"), ("Destination", destination)];
            plan(&rules, "MOVE", "/invoices/42", &fields)
        };
        assert!(to("http://h:80/invoices/42").is_ok() && to("/invoices/42").is_ok());
        assert_eq!(to("http://h/invoices/43").unwrap_err(), 403);
        assert_eq!(to("http://h/x/../invoices/42").unwrap_err(), 400);
        assert!(to("https://h/invoices/42").is_ok() && to("http://[::1]:8/invoices/42").is_ok());
        assert_eq!(to("/invoices/43").unwrap_err(), 403);
        // Text before or after the path must not count as the path.
        for odd in [
            "/invoices/43?x=://h/invoices/42",
            "/invoices/43#://h/invoices/42",
            "/invoices/42?x",
            "http://h?/invoices/42",
            "http://h?x=/invoices/42",
            "http://h#/invoices/42",
            "http://h",
            "http:///invoices/42",
            "http://h\\invoices/invoices/42",
            "http://user@h/invoices/42",
            "HTTP://h/invoices/42",
            "ftp://h/invoices/42",
            "x://h/invoices/43/http://h/invoices/42",
            "//h/invoices/42",
            "invoices/42",
            "",
        ] {
            assert_eq!(to(odd).unwrap_err(), 400, "{odd}");
        }
        assert_eq!(
            plan(&rules, "COPY", "/invoices/42", &[("Fencing-Token", "1")]).unwrap_err(),
            400
        );
    }
}
