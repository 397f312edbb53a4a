//! The URL of a store on a server, taken apart:
//! `SCHEME://[USER[:PASSWORD]@]HOST[:PORT],HOST...[/PATH][?OPTION=VALUE&...]`, or `SCHEME://PATH[?...]` for a socket.
//! Schemes, defaults, and what may stand together are each store's own.
//!
//! What must hold: no error repeats anything that could be part of a password.

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use crate::error::{Error, Result};

/// How the URLs of a store are written.
#[derive(Clone, Copy)]
pub struct Form<'a> {
    pub scheme: &'a str,
    /// What an error tells people to write. `SCHEME` in it stands for the scheme.
    pub remedy: &'a str,
    /// The port of a host that names none.
    pub port: Option<u16>,
    /// What may stand behind the `?`, as an error lists it.
    pub options: &'a [&'a str],
    /// For a URL that names a socket and no host: the options that it has besides.
    pub socket: Option<&'a [&'a str]>,
    /// As libpq and other clients of Redis have it: a `%` that begins no code stands for itself, a port may be empty,
    /// and a host may be the directory of a socket (`%2Frun`).
    pub lenient: bool,
}

/// A URL, taken apart and decoded.
pub struct Url<'a> {
    pub form: &'a Form<'a>,
    pub user: Option<String>,
    pub password: Option<String>,
    pub hosts: Vec<Host>,
    /// Without the slash before it; the path of a socket with it.
    pub path: String,
    options: Vec<Setting>,
}

/// One server, or the directory of its socket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Host {
    /// What its certificate has to name; an IPv6 address without brackets.
    pub name: String,
    pub port: Option<u16>,
}

/// Who logs in.
#[derive(Clone)]
pub struct User {
    pub name: String,
    pub password: String,
}

/// What an option is set to.
pub struct Setting {
    option: String,
    pub value: String,
    /// Where it is set, for errors.
    origin: String,
}

impl<'a> Form<'a> {
    /// The form of URLs that name several servers.
    pub const fn ensemble(scheme: &'a str, port: u16, options: &'a [&'a str]) -> Self {
        let remedy = "write SCHEME://HOST:PORT,HOST:PORT, with USER:PASSWORD@ before the hosts if they need one; signs \
                      like @ / ? # in a password are written as %40 %2F %3F %23";
        Self { scheme, remedy, port: Some(port), options, socket: None, lenient: false }
    }

    pub fn invalid(&self, why: &str) -> Error {
        let (scheme, remedy) = (self.scheme, self.remedy.replace("SCHEME", self.scheme));
        Error::invalid(format!("the {scheme}: URL does not parse ({why}): {remedy}"))
    }

    /// `rest` is what follows the scheme and its colon.
    pub fn parse(&'a self, rest: &str) -> Result<Url<'a>> {
        let rest = rest.strip_prefix("//").ok_or_else(|| self.invalid("// is missing"))?;
        if rest.contains('#') {
            return Err(self.invalid("there is a # in it"));
        }
        let (place, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            return Err(self.invalid("there is an @ behind the ?"));
        }
        let (authority, path) = match self.socket {
            Some(_) => ("", place),
            None => place.split_once('/').unwrap_or((place, "")),
        };
        if self.socket.is_none() && path.contains('@') {
            return Err(self.invalid("there is an @ behind the first /"));
        }
        let (mut user, mut password, mut hosts) = (None, None, Vec::new());
        let mut servers = authority;
        if let Some((login, behind)) = authority.rsplit_once('@') {
            let (name, secret) = match login.split_once(':') {
                Some((name, secret)) => (name, Some(secret)),
                None => (login, None),
            };
            user = Some(self.decoded(name)?);
            password = secret.map(|secret| self.decoded(secret)).transpose()?;
            servers = behind;
        }
        for host in servers.split(',').filter(|_| !servers.is_empty()) {
            hosts.push(self.host(host).ok_or_else(|| self.no_host())?);
        }
        let path = self.decoded(path)?;
        Ok(Url { form: self, user, password, hosts, path, options: self.settings(query)? })
    }

    fn settings(&self, query: &str) -> Result<Vec<Setting>> {
        let (scheme, besides) = (self.scheme, self.socket.unwrap_or_default());
        let mut settings = Vec::new();
        for pair in query.split('&').filter(|pair| !pair.is_empty()) {
            let (option, value) = pair.split_once('=').unwrap_or((pair, ""));
            if !self.options.contains(&option) && !besides.contains(&option) {
                // An `&` in a password makes its rest look like an option.
                let option = if query.contains("pass=") { "one of them" } else { option };
                return Err(Error::invalid(format!(
                    "\"{}\" is no option of a {scheme}: URL: there are {}",
                    option.escape_debug(),
                    self.options.join(", ")
                )));
            }
            let value = self.decoded(value)?;
            let origin = format!("\"{option}={}\" in the {scheme}: URL", value.escape_debug());
            settings.push(Setting { option: option.to_owned(), value, origin });
        }
        Ok(settings)
    }

    fn host(&self, text: &str) -> Option<Host> {
        let end = text.rfind(']').map(|bracket| bracket + 1).or_else(|| text.find(':'));
        let (name, port) = text.split_at(end.unwrap_or(text.len()));
        let port = match port.strip_prefix(':') {
            Some("") if self.lenient => self.port,
            Some(port) => Some(port.parse().ok().filter(|port| *port != 0)?),
            None if port.is_empty() => self.port,
            None => return None,
        };
        let name = decoded(name, self.lenient)?;
        if let Some(address) = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')) {
            let (address, zone) = address.split_at(address.find('%').unwrap_or(address.len()));
            // An address may be written in many ways. This is one, so that the same server is recognized.
            let name = format!("{}{zone}", address.parse::<Ipv6Addr>().ok()?);
            return Some(Host { name, port });
        }
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let good = !name.is_empty() && name.bytes().all(plain);
        (good || self.lenient && name.starts_with('/')).then_some(Host { name, port })
    }

    fn no_host(&self) -> Error {
        self.invalid(if self.lenient { "not a URL" } else { "a host that is none" })
    }

    fn decoded(&self, text: &str) -> Result<String> {
        decoded(text, self.lenient).ok_or_else(|| self.invalid("a bad % in it"))
    }
}

impl Url<'_> {
    /// Who logs in, where a user and a password go together.
    pub fn login(&self) -> Result<Option<User>> {
        let Some(name) = self.user.clone() else { return Ok(None) };
        let Some(password) = self.password.clone() else {
            return Err(self.form.invalid("a user without a password"));
        };
        if name.is_empty() {
            return Err(self.form.invalid("a password without a user"));
        }
        Ok(Some(User { name, password }))
    }

    /// The servers, one at least, none of them twice. `remark` is why that would be bad.
    pub fn distinct_hosts(&self, remark: &str) -> Result<&[Host]> {
        if self.hosts.is_empty() {
            return Err(self.form.no_host());
        }
        for (number, host) in self.hosts.iter().enumerate() {
            if self.hosts[..number].contains(host) {
                let scheme = self.form.scheme;
                return Err(Error::invalid(format!(
                    "the {scheme}: URL names {host} twice{remark}"
                )));
            }
        }
        Ok(&self.hosts)
    }

    /// What an option is set to; the last time, if it is set more than once.
    pub fn get(&self, option: &str) -> Option<&Setting> {
        self.options.iter().rev().find(|setting| setting.option == option)
    }

    pub fn text(&self, option: &str) -> Option<String> {
        self.get(option).map(|setting| setting.value.clone())
    }

    /// The same as a value of its type. `remedy` says what it may be.
    pub fn get_as<T>(
        &self,
        option: &str,
        read: impl FnOnce(&str) -> Option<T>,
        remedy: &str,
    ) -> Result<Option<T>> {
        let Some(setting) = self.get(option) else { return Ok(None) };
        read(&setting.value).map(Some).ok_or_else(|| setting.bad(remedy))
    }

    /// Sets an option where the URL does not.
    pub fn default_to(&mut self, option: &str, value: String, origin: String) {
        self.options.insert(0, Setting { option: option.to_owned(), value, origin });
    }
}

impl Setting {
    /// An error about the value.
    pub fn bad(&self, remedy: &str) -> Error {
        Error::invalid(format!("{}: {remedy}", self.origin))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.port {
            Some(port) if name.contains(':') => write!(f, "[{name}]:{port}"),
            Some(port) if !name.starts_with('/') => write!(f, "{name}:{port}"),
            _ => f.write_str(name),
        }
    }
}

/// What a part of a URL says; `None` if there is a bad `%` in it.
fn decoded(text: &str, lenient: bool) -> Option<String> {
    let digit = |byte: u8| char::from(byte).to_digit(16);
    let code = |[high, low]: &[u8; 2]| u8::try_from(digit(*high)? * 16 + digit(*low)?).ok();
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
    while let [first, after @ ..] = rest {
        let (byte, length) = match after.first_chunk().and_then(code) {
            Some(byte) if *first == b'%' => (byte, 3),
            None if *first == b'%' && !lenient => return None,
            _ => (*first, 1),
        };
        bytes.push(byte);
        rest = &rest[length..];
    }
    String::from_utf8(bytes).ok()
}

/// A span of time as a URL writes it: `500ms`, `30s`, `5m`, `2h`, `7d`.
pub fn span(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit);
    let millis = match unit {
        "ms" => 1,
        "s" => 1000,
        "m" => 60 * 1000,
        "h" => 60 * 60 * 1000,
        "d" => 24 * 60 * 60 * 1000,
        _ => return None,
    };
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(millis)?))
}

#[cfg(all(test, feature = "tls"))]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::tls::TlsFiles;

    const ETCD: Form<'_> = Form::ensemble("etcd", 2379, &["prefix", "tls", "ca", "cert", "key"]);
    const LENIENT: Form<'_> = Form { port: None, lenient: true, ..ETCD };

    fn check(rest: &str) -> Result<()> {
        let url = ETCD.parse(rest)?;
        url.login()?;
        url.distinct_hosts("")?;
        TlsFiles::of(&url).map(drop)
    }

    #[test]
    fn a_url_is_taken_apart() {
        let url = "//ro%40ot:p%3Aw@a,b:7000,[::1]/x%20y?prefix=a%26b&tls=true";
        let mut url = ETCD.parse(url).unwrap();
        let hosts: Vec<_> = url.distinct_hosts("").unwrap().iter().map(Host::to_string).collect();
        assert_eq!(hosts, ["a:2379", "b:7000", "[::1]:2379"]);
        let user = url.login().unwrap().unwrap();
        assert_eq!((&*user.name, &*user.password), ("ro@ot", "p:w"));
        assert_eq!(url.path, "x y");
        url.default_to("prefix", "other".into(), "the environment".into());
        assert_eq!(url.text("prefix").as_deref(), Some("a&b"));
        assert!(TlsFiles::of(&url).unwrap().is_some());
    }

    #[test]
    fn lenient_url_takes_what_libpq_takes() {
        let url = LENIENT.parse("//u:100%@%2Frun%2Fpg,h:,[fe80:0::1%25eth0]:1/").unwrap();
        assert_eq!((url.user.as_deref(), url.password.as_deref()), (Some("u"), Some("100%")));
        let hosts: Vec<_> = url.hosts.iter().map(Host::to_string).collect();
        assert_eq!(hosts, ["/run/pg", "h", "[fe80::1%eth0]:1"]);
        assert!(LENIENT.parse("//").unwrap().hosts.is_empty());
        let socket = Form { socket: Some(&["pass"]), ..LENIENT };
        let url = socket.parse("///run/redis@1/s.sock?pass=a").unwrap();
        assert_eq!((&*url.path, url.text("pass").as_deref()), ("/run/redis@1/s.sock", Some("a")));
    }

    #[test]
    fn a_bad_url_is_told_without_its_password() {
        for bad in [
            "a,b",
            "//",
            "//a,,b",
            "//a,a:2379",
            "//[::1],[0:0::1]",
            "//a:0",
            "//a:",
            "//a:99999",
            "//a b",
            "//[::1",
            "//%2Frun",
            "//root@a",
            "//:hunter2@a",
            "//root:hunter2%@a",
            "//root:hunter2?@a",
            "//root:hunter2/x@a",
            "//root:hunter2#@a",
            "//root:a@hunter2@a b",
            "//a?tls=yes",
            "//a?ca=/nowhere/ca.pem",
            "//a?cert=/nowhere/c.pem",
            "//a?tls=false&ca=x",
        ] {
            let Err(error) = check(bad) else { unreachable!("{bad}") };
            assert_eq!(*error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.to_string().contains("hunter2"), "{error}");
        }
        let error = check("//a?frob=1").unwrap_err().to_string();
        assert!(error.contains("frob") && error.contains("prefix"), "{error}");
    }
}
