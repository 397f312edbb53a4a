//! Which servers a URL means, and how we use them.
//!
//! `zookeeper://[USER:PASSWORD@]HOST[:PORT],HOST[:PORT][/CHROOT]`, with our options behind a `?`.

use std::fmt;

use super::names::check_chroot;
use super::ops::Access;
use super::tls::Tls;
use crate::error::{Error, Result};

/// The port of a server that names none.
const PORT: u16 = 2181;
const OPTIONS: [&str; 6] = ["style", "acl", "tls", "ca", "cert", "key"];

/// A `zookeeper:` URL, parsed.
#[derive(Clone)]
pub(crate) struct ZooKeeperUrl {
    pub(super) hosts: Vec<Host>,
    /// Under which all locks lie: empty, or like `/a/b`.
    pub(super) chroot: String,
    pub(super) style: Style,
    pub(super) access: Access,
    /// `user:password`, for digest authentication.
    pub(super) credentials: Option<String>,
    pub(super) tls: Option<Tls>,
}

/// One server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host {
    pub(super) name: String,
    pub(super) port: u16,
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.name.contains(':') {
            write!(f, "[{}]:{}", self.name, self.port)
        } else {
            write!(f, "{}:{}", self.name, self.port)
        }
    }
}

/// Whose node names our contenders have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Stock Curator takes its turn behind these.
    Curator,
    /// Stock kazoo does.
    Kazoo,
}

impl ZooKeeperUrl {
    /// `rest` is what follows the scheme and its colon.
    pub(crate) fn parse(rest: &str) -> Result<Self> {
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        // Signs in a password can make its rest look like a path or options. Then nothing is repeated.
        if query.contains('@') {
            return Err(Error::invalid(
                "there is an @ behind the ? of the zookeeper: URL: in a password a ? is written as %3F",
            ));
        }
        if rest.contains('#') {
            return Err(Error::invalid(
                "there is a # in the zookeeper: URL: in a password or path it is written as %23",
            ));
        }
        let place = place.strip_prefix("//").ok_or_else(|| {
            Error::invalid("a zookeeper: URL names its servers: zookeeper://HOST,HOST/PATH")
        })?;
        let (authority, path) = match place.find('/') {
            Some(at) => place.split_at(at),
            None => (place, ""),
        };
        if path.contains('@') {
            return Err(Error::invalid(
                "there is an @ behind the first / of the zookeeper: URL: in a password a / is \
                 written as %2F, in a path an @ as %40",
            ));
        }
        let (user, hosts) = match authority.rsplit_once('@') {
            Some((user, hosts)) => (Some(user), hosts),
            None => (None, authority),
        };
        let credentials = user.map(parse_user).transpose()?;
        let hosts: Vec<Host> = hosts.split(',').map(parse_host).collect::<Result<_>>()?;
        for (number, host) in hosts.iter().enumerate() {
            if hosts[..number].contains(host) {
                return Err(Error::invalid(format!("the zookeeper: URL names {host} twice")));
            }
        }
        let chroot = decoded(path.trim_end_matches('/'))
            .ok_or_else(|| Error::invalid("the path of the zookeeper: URL is not UTF-8"))?;
        check_chroot(&chroot)?;
        let options = Options::parse(query)?;
        if options.access == Access::Creator && credentials.is_none() {
            return Err(Error::invalid(
                "acl=creator in the zookeeper: URL needs credentials: write USER:PASSWORD@ before \
                 the hosts",
            ));
        }
        let (style, access, tls) = (options.style, options.access, options.tls()?);
        Ok(Self { hosts, chroot, style, access, credentials, tls })
    }
}

struct Options {
    style: Style,
    access: Access,
    tls: bool,
    ca: Option<String>,
    cert: Option<String>,
    key: Option<String>,
}

impl Options {
    fn parse(query: &str) -> Result<Self> {
        let mut options = Self {
            style: Style::Curator,
            access: Access::Open,
            tls: false,
            ca: None,
            cert: None,
            key: None,
        };
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            let value = decoded(value).ok_or_else(|| {
                Error::invalid(format!("\"{}\" in the zookeeper: URL is not UTF-8", shown(name)))
            })?;
            let bad = |remedy: &str| {
                let value = value.escape_debug();
                Error::invalid(format!("\"{name}={value}\" in the zookeeper: URL: {remedy}"))
            };
            match (name, value.as_str()) {
                ("style", "curator") => options.style = Style::Curator,
                ("style", "kazoo") => options.style = Style::Kazoo,
                ("style", _) => return Err(bad("give style=curator or style=kazoo")),
                ("acl", "open") => options.access = Access::Open,
                ("acl", "creator") => options.access = Access::Creator,
                ("acl", _) => return Err(bad("give acl=open or acl=creator")),
                ("tls", "true") => options.tls = true,
                ("tls", "false") => options.tls = false,
                ("tls", _) => return Err(bad("give tls=true or tls=false")),
                ("ca", _) => options.ca = Some(value),
                ("cert", _) => options.cert = Some(value),
                ("key", _) => options.key = Some(value),
                _ => {
                    return Err(Error::invalid(format!(
                        "\"{}\" is no option of a zookeeper: URL: there are {}",
                        shown(name),
                        OPTIONS.join(", ")
                    )));
                }
            }
        }
        Ok(options)
    }

    fn tls(&self) -> Result<Option<Tls>> {
        let files = [&self.ca, &self.cert, &self.key];
        if !self.tls {
            if files.into_iter().any(Option::is_some) {
                return Err(Error::invalid(
                    "ca=, cert= and key= in the zookeeper: URL need tls=true beside them",
                ));
            }
            return Ok(None);
        }
        let pair = match (&self.cert, &self.key) {
            (Some(cert), Some(key)) => Some((cert.as_str(), key.as_str())),
            (None, None) => None,
            _ => {
                return Err(Error::invalid(
                    "cert= and key= in the URL belong together: give both or neither",
                ));
            }
        };
        Tls::new(self.ca.as_deref(), pair).map(Some)
    }
}

/// An option's name may be the rest of something else: a little of it is enough.
fn shown(name: &str) -> String {
    name.chars().take(24).collect::<String>().escape_debug().to_string()
}

fn parse_user(user: &str) -> Result<String> {
    // Not repeated in any message.
    let bad = || {
        Error::invalid(
            "the zookeeper: URL has credentials that do not parse: write USER:PASSWORD@ before the \
             hosts; signs like @, : and / in them are written as %40, %3A and %2F",
        )
    };
    let (user, password) = user.split_once(':').ok_or_else(bad)?;
    if user.is_empty() || password.contains(':') || password.contains('@') {
        return Err(bad());
    }
    let (user, password) = (decoded(user).ok_or_else(bad)?, decoded(password).ok_or_else(bad)?);
    Ok(format!("{user}:{password}"))
}

fn parse_host(text: &str) -> Result<Host> {
    let bad = |why: &str| {
        Error::invalid(format!(
            "the zookeeper: URL has a host that does not parse ({why}): write \
             zookeeper://HOST:PORT,HOST:PORT/PATH, with USER:PASSWORD@ before the first if needed"
        ))
    };
    let (name, port) = match text.strip_prefix('[') {
        Some(rest) => {
            let (name, port) = rest.split_once(']').ok_or_else(|| bad("a [ without a ]"))?;
            (name, port.strip_prefix(':').unwrap_or(port))
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    // The text itself may be a piece of a password with a sign in it that ends it early.
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._:%".contains(&byte);
    if name.is_empty() || !name.bytes().all(plain) {
        return Err(bad("its name is empty or has a strange sign in it"));
    }
    let port = match port {
        "" => PORT,
        port => port.parse().ok().filter(|port| *port > 0).ok_or_else(|| bad("its port is none"))?,
    };
    Ok(Host { name: name.to_owned(), port })
}

/// Without percent-encoding; `None` if that is no text.
fn decoded(text: &str) -> Option<String> {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let Some((first, after)) = rest.split_first() {
        let code = (*first == b'%').then(|| after.get(..2)).flatten();
        let code = code.and_then(|code| std::str::from_utf8(code).ok());
        match code.and_then(|code| u8::from_str_radix(code, 16).ok()) {
            Some(byte) => {
                bytes.push(byte);
                rest = &after[2..];
            }
            None => {
                bytes.push(*first);
                rest = after;
            }
        }
    }
    String::from_utf8(bytes).ok()
}

impl fmt::Debug for ZooKeeperUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "zookeeper:{:?}{}", self.hosts, self.chroot)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    #[test]
    fn a_url_names_servers() {
        let url =
            ZooKeeperUrl::parse("//app:s%40crt@a,b.local:2182,[::1]/x/y/?style=kazoo&acl=creator")
                .unwrap();
        let hosts: Vec<String> = url.hosts.iter().map(ToString::to_string).collect();
        assert_eq!(hosts, ["a:2181", "b.local:2182", "[::1]:2181"]);
        assert_eq!(url.chroot, "/x/y");
        assert_eq!((url.style, url.access), (Style::Kazoo, Access::Creator));
        assert_eq!(url.credentials.as_deref(), Some("app:s@crt"));
        assert!(!format!("{url:?}").contains("crt"));
        let plain = ZooKeeperUrl::parse("//127.0.0.1").unwrap();
        assert_eq!((plain.chroot.as_str(), plain.style), ("", Style::Curator));
        assert!(plain.credentials.is_none() && plain.tls.is_none());
    }

    #[test]
    fn a_bad_url_is_told_without_its_password() {
        for bad in [
            "",
            "//",
            "//a,",
            "//a,a",
            "//a:0",
            "//a:99999",
            "//app:hunter2@",
            "//app:hunter2@a b",
            "//app:hunter2/x@h",
            "//app:x/hunter2@h",
            "//app:x?hunter2@h",
            "//app:x?style=hunter2@h",
            "//app:hunter2#@h",
            "//app:hunt:hunter2@h",
            "//app:hunter2@h@i:hunter2@j",
            "//hunter2@h",
            "//app:hunter2@h?frob=1",
            "//app:hunter2@h?style=x",
            "//app:hunter2@h?tls=yes",
            "//app:hunter2@h?ca=/nowhere",
            "//app:hunter2@h?tls=true&ca=/nowhere/ca.pem",
            "//app:hunter2@h?tls=true&cert=/nowhere/ca.pem",
            "//app:hunter2@h/a//b",
            "//app:hunter2@h/a/../b",
            "//h?acl=creator",
            "//app:%ffhunter2@h",
        ] {
            let error = ZooKeeperUrl::parse(bad).expect_err(bad);
            assert_eq!(*error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{bad}: {error}");
            assert!(!error.to_string().contains('\n'), "{error}");
        }
    }
}
