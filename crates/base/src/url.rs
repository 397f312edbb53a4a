//! Parses the URL of a store on a server:
//! `SCHEME://[USER[:PASSWORD]@]HOST[:PORT],HOST...[/PATH][?OPTION=VALUE&...]`, or `SCHEME://PATH[?...]` for a socket.
//! Schemes, and which parts may be combined, are each store's own.
//!
//! A store makes its typed options of the parts. What the parts mean is checked on the options, by `checked_hosts` and
//! `checked_login` among others, because options need not come from a URL.
//!
//! What must hold: no error repeats anything that could be part of a password.

use std::fmt;
use std::net::Ipv6Addr;
use std::time::Duration;

use crate::error::{Error, Result};

/// The form of a store's URLs.
#[derive(Clone, Copy)]
pub struct Form<'a> {
    pub scheme: &'a str,
    /// The remedy in errors. `SCHEME` in it stands for the scheme.
    pub remedy: &'a str,
    /// The options after the `?`, in the order that an error lists them.
    pub options: &'a [&'a str],
    /// For a URL of a socket instead of hosts: its additional options.
    pub socket: Option<&'a [&'a str]>,
    /// As in libpq and other Redis clients: a `%` without a code stands for itself, a port may be empty, and a host may be the
    /// directory of a socket (`%2Frun`).
    pub lenient: bool,
}

/// A parsed and decoded URL.
pub struct Url<'a> {
    pub form: &'a Form<'a>,
    pub user: Option<String>,
    pub password: Option<Secret>,
    pub hosts: Vec<Host>,
    /// Without the leading slash; the path of a socket with it.
    pub path: String,
    options: Vec<Setting>,
}

/// One server, or the directory of its socket.
#[derive(Clone, PartialEq, Eq)]
pub struct Host {
    /// The name in its certificate; an IPv6 address without brackets.
    pub name: String,
    pub port: Option<u16>,
}

/// A password. `Debug` does not show it.
#[derive(Clone)]
pub struct Secret(pub String);

/// The user that logs in.
#[derive(Clone, Debug)]
pub struct User {
    pub name: String,
    pub password: Secret,
}

/// An option and its value.
pub struct Setting {
    option: String,
    pub value: String,
    /// Where it was set, for errors.
    origin: String,
}

impl<'a> Form<'a> {
    /// The form of URLs with several servers.
    pub const fn ensemble(scheme: &'a str, options: &'a [&'a str]) -> Self {
        let remedy = "write SCHEME://HOST:PORT,HOST:PORT, with USER:PASSWORD@ before the hosts if they need one; signs \
                      like @ / ? # in a password are written as %40 %2F %3F %23";
        Self { scheme, remedy, options, socket: None, lenient: false }
    }

    pub fn invalid(&self, why: &str) -> Error {
        let (scheme, remedy) = (self.scheme, self.remedy.replace("SCHEME", self.scheme));
        Error::invalid(format!("the {scheme}: URL does not parse ({why}): {remedy}"))
    }

    /// Parses `rest`, which follows the scheme and its colon.
    pub fn parse(&'a self, rest: &str) -> Result<Url<'a>> {
        let rest = rest.strip_prefix("//").ok_or_else(|| self.invalid("// is missing"))?;
        if rest.contains('#') {
            return Err(self.invalid("it contains a #"));
        }
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        if query.contains('@') {
            return Err(self.invalid("there is an @ after the ?"));
        }
        let (authority, path) = match self.socket {
            Some(_) => ("", location),
            None => location.split_once('/').unwrap_or((location, "")),
        };
        if self.socket.is_none() && path.contains('@') {
            return Err(self.invalid("there is an @ after the first /"));
        }
        let (mut user, mut password, mut hosts) = (None, None, Vec::new());
        let mut servers = authority;
        if let Some((login, after)) = authority.rsplit_once('@') {
            let (name, secret) = match login.split_once(':') {
                Some((name, secret)) => (name, Some(secret)),
                None => (login, None),
            };
            user = Some(self.decoded(name)?);
            password = secret.map(|secret| self.decoded(secret)).transpose()?.map(Secret);
            servers = after;
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
                let option = if query.contains("pass=") { "(not shown)" } else { option };
                return Err(Error::invalid(format!(
                    "\"{}\" is not an option of the {scheme}: URL: the options are {}",
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
        let (name, port) = split_port(text);
        let port = match port {
            Some("") if self.lenient => None,
            port => port.map(str::parse).transpose().ok()?,
        };
        let host = Host::named(&decoded(name, self.lenient)?, port);
        host.is_valid(self.lenient).then_some(host)
    }

    fn no_host(&self) -> Error {
        self.invalid(if self.lenient { "not a URL" } else { "a host is invalid or missing" })
    }

    fn decoded(&self, text: &str) -> Result<String> {
        decoded(text, self.lenient).ok_or_else(|| self.invalid("it contains an invalid % code"))
    }
}

impl Url<'_> {
    /// An option's setting; the last one, if it is set more than once.
    pub fn get(&self, option: &str) -> Option<&Setting> {
        self.options.iter().rev().find(|setting| setting.option == option)
    }

    pub fn text(&self, option: &str) -> Option<String> {
        self.get(option).map(|setting| setting.value.clone())
    }

    /// The value as a `T`. `remedy` says which values are allowed.
    pub fn get_as<T>(
        &self,
        option: &str,
        read: impl FnOnce(&str) -> Option<T>,
        remedy: &str,
    ) -> Result<Option<T>> {
        self.get(option).map(|setting| setting.parsed(read, remedy)).transpose()
    }
}

impl Setting {
    /// The value of a variable, which sets an option. It is not shown in errors: it could be anything.
    pub fn of_variable(variable: &str, value: String) -> Self {
        Self { option: String::new(), value, origin: format!("the variable {variable}") }
    }

    /// The value as a `T`. `remedy` says which values are allowed.
    pub fn parsed<T>(&self, read: impl FnOnce(&str) -> Option<T>, remedy: &str) -> Result<T> {
        let bad = || Error::invalid(format!("{}: {remedy}", self.origin));
        read(&self.value).ok_or_else(bad)
    }
}

impl Host {
    /// Reads `NAME`, `NAME:PORT`, an IPv6 address, `[IPV6]:PORT`, or the path of a socket. Anything else becomes a name
    /// that is not valid.
    pub fn new(text: &str) -> Self {
        if text.starts_with('/') || text.parse::<Ipv6Addr>().is_ok() {
            return Self::named(text, None);
        }
        let (name, port) = split_port(text);
        match port.map(str::parse).transpose() {
            Ok(port) => Self::named(name, port),
            Err(_) => Self { name: text.to_owned(), port: None },
        }
    }

    fn named(name: &str, port: Option<u16>) -> Self {
        let bare = name.strip_prefix('[').and_then(|name| name.strip_suffix(']')).unwrap_or(name);
        let (address, zone) = bare.split_at(bare.find('%').unwrap_or(bare.len()));
        // An address can be written in many ways. One spelling makes equal servers equal.
        let name = match address.parse::<Ipv6Addr>() {
            Ok(address) => format!("{address}{zone}"),
            Err(_) => name.to_owned(),
        };
        Self { name, port }
    }

    /// `sockets`: whether it may be the path of one.
    fn is_valid(&self, sockets: bool) -> bool {
        let Self { name, port } = self;
        let address = name.split('%').next().unwrap_or_default();
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b"-._".contains(&byte);
        let good = !name.is_empty() && name.bytes().all(plain);
        *port != Some(0)
            && (good || address.parse::<Ipv6Addr>().is_ok() || sockets && name.starts_with('/'))
    }

    /// Whether it is the path of a socket, or of the directory of one.
    pub fn is_socket(&self) -> bool {
        self.name.starts_with('/')
    }

    /// As text, without what may be a password: a whole URL given as a host has one.
    fn redacted(&self) -> String {
        let text = self.to_string();
        match text.rsplit_once('@') {
            Some((login, host)) if login.contains(':') => format!("...@{host}"),
            _ => text,
        }
    }
}

impl fmt::Debug for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?}", self.redacted())
    }
}

/// Splits `:PORT` off.
fn split_port(text: &str) -> (&str, Option<&str>) {
    let end = text.rfind(']').map(|bracket| bracket + 1).or_else(|| text.find(':'));
    let (name, port) = text.split_at(end.unwrap_or(text.len()));
    match port.strip_prefix(':') {
        None if !port.is_empty() => (text, None),
        port => (name, port),
    }
}

/// The servers of a store: at least one, each valid and with a port, none twice. `remark` says what is wrong with
/// that.
pub fn checked_hosts(
    store: &str,
    hosts: &[Host],
    port: u16,
    sockets: bool,
    remark: &str,
) -> Result<Vec<Host>> {
    if hosts.is_empty() {
        return Err(Error::invalid(format!("the {store}: store has no server: name HOST:PORT")));
    }
    if port == 0 {
        return Err(invalid_option(store, "port", port, "give 1 to 65535"));
    }
    let mut checked = Vec::with_capacity(hosts.len());
    for host in hosts {
        if !host.is_valid(sockets) {
            let socket = if sockets { ", or the absolute path of a socket" } else { "" };
            let login = if host.name.contains('@') {
                "; user and password are options of their own"
            } else {
                ""
            };
            return Err(Error::invalid(format!(
                "\"{}\" is not a server of the {store}: store: give HOST, HOST:PORT or [IPV6]:PORT{socket}{login}",
                host.redacted().escape_debug()
            )));
        }
        let host = Host { port: host.port.or(Some(port)), ..host.clone() };
        if checked.contains(&host) {
            return Err(Error::invalid(format!("the {store}: store has {host} twice{remark}")));
        }
        checked.push(host);
    }
    Ok(checked)
}

/// The user that logs in, for stores that need a user and a password together.
pub fn checked_login(
    store: &str,
    user: Option<String>,
    password: Option<Secret>,
) -> Result<Option<User>> {
    let alone = match (user, password) {
        (None, None) => return Ok(None),
        (Some(name), Some(password)) if !name.is_empty() => {
            return Ok(Some(User { name, password }));
        }
        (Some(_), None) => "a user without a password",
        (_, Some(_)) => "a password without a user",
    };
    Err(Error::invalid(format!(
        "the {store}: store has {alone}: give both (USER:PASSWORD@ in a URL), or neither"
    )))
}

/// An error about the value of an option, wherever it was set.
pub fn invalid_option(store: &str, option: &str, value: impl fmt::Display, remedy: &str) -> Error {
    let value = value.to_string();
    Error::invalid(format!("\"{option}={}\" of the {store}: store: {remedy}", value.escape_debug()))
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(not shown)")
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match self.port {
            Some(_) if self.is_socket() => f.write_str(name),
            Some(port) if name.contains(':') => write!(f, "[{name}]:{port}"),
            Some(port) => write!(f, "{name}:{port}"),
            None => f.write_str(name),
        }
    }
}

/// Decodes a part of a URL; `None` if it has a bad `%`, unless `lenient` lets that stand for itself.
pub fn decoded(text: &str, lenient: bool) -> Option<String> {
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

/// The units of a duration, in milliseconds.
const UNITS: [(&str, u64); 5] =
    [("d", 24 * 60 * 60 * 1000), ("h", 60 * 60 * 1000), ("m", 60 * 1000), ("s", 1000), ("ms", 1)];

/// Parses a duration: `500ms`, `30s`, `5m`, `2h`, `7d`.
pub fn span(text: &str) -> Option<Duration> {
    let unit = text.find(|c: char| !c.is_ascii_digit())?;
    let (number, unit) = text.split_at(unit);
    let (_, millis) = UNITS.iter().find(|(name, _)| *name == unit)?;
    Some(Duration::from_millis(number.parse::<u64>().ok()?.checked_mul(*millis)?))
}

/// A duration as [`span`] parses it.
pub fn span_text(span: Duration) -> String {
    let whole = |(_, millis): &&(&str, u64)| {
        let unit = Duration::from_millis(*millis);
        span >= unit && span.as_nanos().is_multiple_of(unit.as_nanos())
    };
    match UNITS.iter().find(whole) {
        Some((unit, millis)) => format!("{}{unit}", span.as_millis() / u128::from(*millis)),
        None => format!("{span:?}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;

    const ETCD: Form<'_> = Form::ensemble("etcd", &["prefix"]);
    const LENIENT: Form<'_> = Form { lenient: true, ..ETCD };

    fn shown(hosts: &[Host]) -> Vec<String> {
        checked_hosts("etcd", hosts, 2379, true, "").unwrap().iter().map(Host::to_string).collect()
    }

    #[test]
    fn url_is_parsed() {
        let url = ETCD.parse("//ro%40ot:p%3Aw@a,b:7000,[::1]/x%20y?prefix=a%26b").unwrap();
        assert_eq!(shown(&url.hosts), ["a:2379", "b:7000", "[::1]:2379"]);
        assert!(!format!("{:?}", url.password).contains("p:w"));
        let user = checked_login("etcd", url.user.clone(), url.password.clone()).unwrap().unwrap();
        assert_eq!((&*user.name, &*user.password.0), ("ro@ot", "p:w"));
        assert_eq!(url.path, "x y");
        assert_eq!(url.text("prefix").as_deref(), Some("a&b"));
    }

    #[test]
    fn lenient_url_accepts_what_libpq_accepts() {
        let url = LENIENT.parse("//u:100%@%2Frun%2Fpg,h:,[fe80:0::1%25eth0]:1/").unwrap();
        let password = url.password.map(|password| password.0);
        assert_eq!((url.user.as_deref(), password.as_deref()), (Some("u"), Some("100%")));
        assert_eq!(shown(&url.hosts), ["/run/pg", "h:2379", "[fe80::1%eth0]:1"]);
        assert!(LENIENT.parse("//").unwrap().hosts.is_empty());
        let socket = Form { socket: Some(&["pass"]), ..LENIENT };
        let url = socket.parse("///run/redis@1/s.sock?pass=a").unwrap();
        assert_eq!((&*url.path, url.text("pass").as_deref()), ("/run/redis@1/s.sock", Some("a")));
    }

    #[test]
    fn bad_url_is_reported_without_its_password() {
        for bad in [
            "a,b",
            "//a,,b",
            "//a:0",
            "//a:",
            "//a:99999",
            "//a b",
            "//[::1",
            "//::1",
            "//%2Frun",
            "//root:hunter2%@a",
            "//root:hunter2?@a",
            "//root:hunter2/x@a",
            "//root:hunter2#@a",
            "//root:a@hunter2@a b",
        ] {
            let Err(error) = ETCD.parse(bad) else { unreachable!("{bad}") };
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.one_line().contains("hunter2"), "{error}");
        }
        let error = ETCD.parse("//a?frob=1").err().unwrap().one_line();
        assert!(error.contains("frob") && error.contains("prefix"), "{error}");
    }

    #[test]
    fn server_is_named_as_text() {
        let hosts = ["a", "b:7000", "::1", "[0:0::2]:7000", "fe80::1", "10.0.0.1", "/run/a:b"];
        assert_eq!(
            shown(&hosts.map(Host::new)),
            [
                "a:2379",
                "b:7000",
                "[::1]:2379",
                "[::2]:7000",
                "[fe80::1]:2379",
                "10.0.0.1:2379",
                "/run/a:b"
            ]
        );
        for bad in ["", "a b", "a:", "a:x", "a:0", "a:99999", "[::1", "a,b", "me@a", "/run"] {
            let error = checked_hosts("etcd", &[Host::new(bad)], 2379, false, "").unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(error.one_line().starts_with(&format!("\"{bad}\" is not")), "{error}");
        }
        for bad in ["me:hunter2@a", "redis://:hunter2@a", ":hunter2@a:1", "a,me:hunter2@b:x"] {
            let host = Host::new(bad);
            let error =
                checked_hosts("etcd", std::slice::from_ref(&host), 2379, false, "").unwrap_err();
            let shown = format!("{host:?} {}", error.one_line());
            assert!(!shown.contains("hunter2") && shown.contains("...@"), "{shown}");
            assert!(shown.contains("user and password are options of their own"), "{shown}");
        }
        for bad in [&["a", "a:2379"][..], &["[::1]", "[0:0::1]"], &[]] {
            let hosts: Vec<_> = bad.iter().map(|host| Host::new(host)).collect();
            assert!(checked_hosts("etcd", &hosts, 2379, true, "").is_err(), "{bad:?}");
        }
        let error = checked_hosts("etcd", &[Host::new("a")], 0, true, "").unwrap_err().one_line();
        assert!(error.contains("\"port=0\"") && error.contains("65535"), "{error}");
    }

    #[test]
    fn user_and_password_belong_together() {
        let (user, password) = (Some("root".to_owned()), Some(Secret("hunter2".into())));
        for (user, password) in
            [(user, None), (None, password.clone()), (Some(String::new()), password)]
        {
            let error = checked_login("etcd", user, password).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid);
            assert!(!error.one_line().contains("hunter2"), "{error}");
        }
        assert!(checked_login("etcd", None, None).unwrap().is_none());
    }

    #[test]
    fn duration_is_shown_as_it_is_written() {
        for text in ["500ms", "1s", "90s", "5m", "25h", "366d"] {
            assert_eq!(span_text(span(text).unwrap()), text);
        }
        assert_eq!(span_text(Duration::ZERO), "0ns");
        assert_eq!(span_text(Duration::from_micros(1500)), "1.5ms");
        for bad in ["", "5", "5x", "ms", "-1s", "99999999999999999999s", "99999999999999999d"] {
            assert_eq!(span(bad), None, "{bad}");
        }
    }
}
