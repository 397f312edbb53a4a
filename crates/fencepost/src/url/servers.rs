//! The form that URLs of stores with several servers share:
//! `SCHEME://[USER:PASSWORD@]HOST[:PORT],HOST...[/PATH][?OPTION=VALUE&...]`.
//!
//! What must hold: no error repeats anything that could be part of a password.

use std::path::Path;

use crate::error::{Error, Result};
use crate::url::decoded;

/// What stands behind `SCHEME:`, taken apart and decoded.
pub(crate) struct Servers {
    scheme: String,
    pub(crate) user: Option<User>,
    /// `host:port` each, an IPv6 address in brackets.
    pub(crate) hosts: Vec<String>,
    /// Without the slash before it.
    pub(crate) path: String,
    pub(crate) options: Vec<(String, String)>,
}

/// Who logs in.
#[derive(Clone)]
pub(crate) struct User {
    pub(crate) name: String,
    pub(crate) password: String,
}

/// The files of an encrypted connection, read.
#[derive(Clone, Default)]
pub(crate) struct Pems {
    /// Whom to trust, if not whom the system trusts.
    pub(crate) ca: Option<Vec<u8>>,
    /// Our own certificate and its key.
    pub(crate) identity: Option<(Vec<u8>, Vec<u8>)>,
}

impl Servers {
    /// `rest` is what follows the scheme and its colon.
    pub(crate) fn parse(scheme: &str, rest: &str, port: u16) -> Result<Self> {
        let invalid = |why: &str| {
            Error::invalid(format!(
                "the {scheme}: URL does not parse ({why}): write {scheme}://HOST:PORT,HOST:PORT, with \
                 USER:PASSWORD@ before the hosts if they need one; signs like @ / ? # in a password \
                 are written as %40 %2F %3F %23"
            ))
        };
        let rest = rest.strip_prefix("//").ok_or_else(|| invalid("// is missing"))?;
        if rest.contains('#') {
            return Err(invalid("there is a # in it"));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            return Err(invalid("there is an @ behind the ?"));
        }
        let (authority, path) = place.split_once('/').unwrap_or((place, ""));
        if path.contains('@') {
            return Err(invalid("there is an @ behind the first /"));
        }
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => {
                let (name, password) =
                    user.split_once(':').ok_or_else(|| invalid("a user without a password"))?;
                let decoded = |text| decoded(text).ok_or_else(|| invalid("a bad % in it"));
                let (name, password) = (decoded(name)?, decoded(password)?);
                if name.is_empty() {
                    return Err(invalid("a password without a user"));
                }
                (Some(User { name, password }), hosts)
            }
            None => (None, authority),
        };
        let mut list: Vec<String> = Vec::new();
        for host in hosts.split(',') {
            let host = with_port(host, port).ok_or_else(|| invalid("a host that is none"))?;
            if list.contains(&host) {
                return Err(Error::invalid(format!("the {scheme}: URL names {host} twice")));
            }
            list.push(host);
        }
        let path = decoded(path).ok_or_else(|| invalid("a bad % in it"))?;
        let mut options = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value).ok_or_else(|| invalid("a bad % in it"))?;
            options.push((name.to_owned(), value));
        }
        Ok(Self { scheme: scheme.to_owned(), user, hosts: list, path, options })
    }

    /// Takes an option out, so that what is left is unknown.
    pub(crate) fn take(&mut self, option: &str) -> Option<String> {
        let at = self.options.iter().position(|(name, _)| name == option)?;
        Some(self.options.remove(at).1)
    }

    /// Takes `tls=`, `ca=`, `cert=` and `key=` out: `None` for a plain connection.
    pub(crate) fn take_tls(&mut self) -> Result<Option<Pems>> {
        let wanted = match self.take("tls") {
            Some(value) => match value.as_str() {
                "true" => Some(true),
                "false" => Some(false),
                _ => return Err(self.bad("tls", &value, "give tls=true or tls=false")),
            },
            None => None,
        };
        let (ca, cert, key) = (self.take("ca"), self.take("cert"), self.take("key"));
        let any = ca.is_some() || cert.is_some() || key.is_some();
        if wanted == Some(false) && any {
            return Err(Error::invalid(format!(
                "the {}: URL has tls=false and certificates: give one or the other",
                self.scheme
            )));
        }
        if !any && wanted != Some(true) {
            return Ok(None);
        }
        let read = |option: &str, path: &String| {
            std::fs::read(Path::new(path)).map_err(|error| {
                Error::invalid(format!("can not read \"{path}\" ({option}= in the URL)"))
                    .because(error)
            })
        };
        let identity = match (&cert, &key) {
            (Some(cert), Some(key)) => Some((read("cert", cert)?, read("key", key)?)),
            (None, None) => None,
            _ => {
                return Err(Error::invalid(
                    "cert= and key= in the URL belong together: give both or neither",
                ));
            }
        };
        let ca = ca.as_ref().map(|path| read("ca", path)).transpose()?;
        Ok(Some(Pems { ca, identity }))
    }

    /// An error about the value of an option.
    pub(crate) fn bad(&self, option: &str, value: &str, remedy: &str) -> Error {
        let (scheme, value) = (&self.scheme, value.escape_debug());
        Error::invalid(format!("\"{option}={value}\" in the {scheme}: URL: {remedy}"))
    }

    /// Refuses what nobody took.
    pub(crate) fn end(&self, known: &str) -> Result<()> {
        let Some((option, _)) = self.options.first() else { return Ok(()) };
        Err(Error::invalid(format!(
            "\"{}\" is no option of a {}: URL: there are {known}",
            option.escape_debug(),
            self.scheme
        )))
    }
}

fn with_port(host: &str, port: u16) -> Option<String> {
    let (name, given) = match host.rfind(']') {
        Some(end) => (&host[..=end], &host[end + 1..]),
        None => host.find(':').map_or((host, ""), |at| host.split_at(at)),
    };
    let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    let good = match bare {
        Some(address) => address.parse::<std::net::Ipv6Addr>().is_ok(),
        None => {
            !name.is_empty()
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b"-._".contains(&b))
        }
    };
    let port = match given.strip_prefix(':') {
        Some(given) => given.parse().ok().filter(|port| *port != 0)?,
        None if given.is_empty() => port,
        None => return None,
    };
    good.then(|| format!("{name}:{port}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_url_is_taken_apart() {
        let mut url = Servers::parse(
            "etcd",
            "//ro%40ot:p%3Aw@a,b:7000,[::1]/x%20y?prefix=a%26b&tls=true",
            2379,
        )
        .unwrap();
        assert_eq!(url.hosts, ["a:2379", "b:7000", "[::1]:2379"]);
        let user = url.user.clone().unwrap();
        assert_eq!((&*user.name, &*user.password), ("ro@ot", "p:w"));
        assert_eq!(url.path, "x y");
        assert_eq!(url.take("prefix").as_deref(), Some("a&b"));
        assert!(url.take_tls().unwrap().is_some());
        url.end("nothing").unwrap();
    }

    #[test]
    fn a_bad_url_is_told_without_its_password() {
        for bad in [
            "a,b",
            "//",
            "//a,,b",
            "//a,a:2379",
            "//a:0",
            "//a:99999",
            "//a b",
            "//[::1",
            "//root@a",
            "//:hunter2@a",
            "//root:hunter2%@a",
            "//root:hunter2?@a",
            "//root:hunter2/x@a",
            "//root:hunter2#@a",
            "//root:a@hunter2@a b",
        ] {
            let Err(error) = Servers::parse("etcd", bad, 2379) else { unreachable!("{bad}") };
            assert_eq!(*error.kind(), crate::ErrorKind::Invalid, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        for bad in ["tls=yes", "ca=/nowhere/ca.pem", "cert=/nowhere/c.pem", "tls=false&ca=x"] {
            let mut url = Servers::parse("etcd", &format!("//a?{bad}"), 2379).unwrap();
            assert!(url.take_tls().is_err(), "{bad}");
        }
        let url = Servers::parse("etcd", "//a?frob=1", 2379).unwrap();
        assert!(url.end("prefix").unwrap_err().to_string().contains("frob"));
    }
}
