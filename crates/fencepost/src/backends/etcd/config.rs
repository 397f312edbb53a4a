//! Which cluster to use, and how: as typed options, or as a URL,
//! `etcd://[USER:PASSWORD@]HOST[:PORT],HOST...[?prefix=&tls=true&ca=&cert=&key=]`.

use std::path::Path;

use tonic::transport::{ClientTlsConfig, Endpoint, Identity};

use crate::error::{Error, Result};
use crate::tls::{TlsFiles, TlsOptions};
use crate::url::{Form, Host, Secret, User, checked_hosts, checked_login, invalid_option};

const FORM: Form<'_> = Form::ensemble("etcd", &["prefix", "tls", "ca", "cert", "key"]);
const PORT: u16 = 2379;

/// An etcd, and how to connect to it: the same as an `etcd:` URL.
///
/// ```no_run
/// # async fn connect(secret: String) -> fencepost::Result<()> {
/// use fencepost::Fencepost;
/// use fencepost::backends::etcd::EtcdOptions;
///
/// let members = ["etcd-1", "etcd-2", "etcd-3"];
/// let options = EtcdOptions::new(members).user("web").password(secret).prefix("locks/");
/// let fp = Fencepost::connect(options).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct EtcdOptions {
    hosts: Vec<Host>,
    port: u16,
    user: Option<String>,
    password: Option<Secret>,
    prefix: String,
    tls: TlsOptions,
}

impl EtcdOptions {
    /// The members on `hosts`: each is `HOST`, `HOST:PORT` or `[IPV6]:PORT`.
    #[must_use]
    pub fn new(hosts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self::of(hosts.into_iter().map(|host| Host::new(host.as_ref())).collect())
    }

    fn of(hosts: Vec<Host>) -> Self {
        let (user, password, prefix) = (None, None, String::new());
        Self { hosts, port: PORT, user, password, prefix, tls: TlsOptions::default() }
    }

    /// The port of hosts without one. The default is 2379.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The user that logs in, with a password.
    #[must_use]
    pub fn user(mut self, user: impl Into<String>) -> Self {
        self.user = Some(user.into());
        self
    }

    /// The password, as it is: nothing in it is escaped.
    #[must_use]
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.password = Some(Secret(password.into()));
        self
    }

    /// Put before every name in etcd.
    #[must_use]
    pub fn prefix(mut self, prefix: impl Into<String>) -> Self {
        self.prefix = prefix.into();
        self
    }

    /// Whether to encrypt. The default is a plain connection, unless there are certificates.
    #[must_use]
    pub fn tls(mut self, tls: bool) -> Self {
        self.tls.enabled = Some(tls);
        self
    }

    /// A PEM file with the CAs to trust instead of the system's. It turns TLS on.
    #[must_use]
    pub fn ca(mut self, file: impl AsRef<Path>) -> Self {
        self.tls.set_ca(file.as_ref());
        self
    }

    /// PEM files with the client's certificate and its key. They turn TLS on.
    #[must_use]
    pub fn client_certificate(mut self, cert: impl AsRef<Path>, key: impl AsRef<Path>) -> Self {
        self.tls.set_client_certificate(cert.as_ref(), key.as_ref());
        self
    }

    /// `rest` follows the scheme and its colon.
    pub(crate) fn parse(rest: &str) -> Result<Self> {
        let url = FORM.parse(rest)?;
        if !url.path.is_empty() {
            return Err(Error::invalid(
                "the etcd: URL has a path: write ?prefix=PATH/ to keep all locks under one prefix",
            ));
        }
        let (prefix, tls) = (url.text("prefix").unwrap_or_default(), TlsOptions::of(&url)?);
        Ok(Self { user: url.user, password: url.password, prefix, tls, ..Self::of(url.hosts) })
    }
}

/// The options, checked.
pub(super) struct Config {
    pub(super) members: Vec<Address>,
    pub(super) user: Option<User>,
    /// Prepended to every lock's name.
    pub(super) prefix: String,
}

/// One member, and how to connect to it.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) endpoint: Endpoint,
    /// `host:port`, for people.
    pub(super) shown: String,
}

impl Config {
    pub(super) fn new(options: EtcdOptions) -> Result<Self> {
        let EtcdOptions { hosts, port, user, password, prefix, tls } = options;
        let hosts = checked_hosts("etcd", &hosts, port, false, ": name it once")?;
        let user = checked_login("etcd", user, password)?;
        if prefix.len() > 512 || prefix.chars().any(char::is_control) {
            let remedy = "give up to 512 bytes of printable text";
            return Err(invalid_option("etcd", "prefix", prefix, remedy));
        }
        let tls = tls.read()?.map(tls_config).transpose()?;
        let members = hosts.iter().map(|host| Address::new(host, tls.as_ref()));
        Ok(Self { members: members.collect::<Result<_>>()?, user, prefix })
    }
}

impl Address {
    fn new(host: &Host, tls: Option<&ClientTlsConfig>) -> Result<Self> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let invalid = |error: tonic::transport::Error| {
            Error::invalid(format!("cannot connect to {host} of the etcd: store"))
                .with_source(error)
        };
        let endpoint = Endpoint::from_shared(format!("{scheme}://{host}")).map_err(invalid)?;
        let endpoint = match tls {
            Some(tls) => endpoint.tls_config(tls.clone()).map_err(invalid)?,
            None => endpoint,
        };
        Ok(Self { endpoint: endpoint.tcp_nodelay(true), shown: host.to_string() })
    }
}

fn tls_config(files: TlsFiles) -> Result<ClientTlsConfig> {
    let tls = ClientTlsConfig::new().trust_anchors(files.roots()?.roots);
    Ok(match (files.cert, files.key) {
        (Some(cert), Some(key)) => tls.identity(Identity::from_pem(cert.bytes, key.bytes)),
        _ => tls,
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn parse(rest: &str) -> Result<Config> {
        Config::new(EtcdOptions::parse(rest)?)
    }

    fn shown(config: &Config) -> Vec<&str> {
        config.members.iter().map(|member| &*member.shown).collect()
    }

    #[test]
    fn url_names_members() {
        let config = parse("//root:secret@a,b:7000?prefix=locks/").unwrap();
        assert_eq!(shown(&config), ["a:2379", "b:7000"]);
        assert_eq!(config.prefix, "locks/");
        assert_eq!(config.user.unwrap().password.0, "secret");
        for bad in [
            "//a/path",
            "//a?prefix=%00",
            "//a?frob=1",
            "//a?tls=maybe",
            "//a?ca=/dev/null",
            "//",
            "//a,a",
            "//root@a",
            "//:hunter2@a",
        ] {
            let error = parse(bad).err().expect(bad);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
            assert!(!error.one_line().contains("hunter2"), "{error}");
        }
    }

    #[test]
    fn options_say_the_same_as_a_url() {
        let options =
            EtcdOptions::new(["a", "b:7000"]).user("root").password("p@ss:/?#%").prefix("locks/");
        assert!(!format!("{options:?}").contains("p@ss"), "{options:?}");
        let typed = Config::new(options.tls(true)).unwrap();
        let parsed = parse("//root:p%40ss%3A%2F%3F%23%25@a,b:7000?prefix=locks/&tls=true").unwrap();
        assert_eq!(shown(&typed), shown(&parsed));
        assert_eq!(typed.prefix, parsed.prefix);
        let [typed_uri, parsed_uri] = [&typed, &parsed].map(|one| one.members[0].endpoint.uri());
        assert_eq!(typed_uri, parsed_uri);
        let (typed, parsed) = (typed.user.unwrap(), parsed.user.unwrap());
        assert_eq!((&typed.name, &typed.password.0), (&parsed.name, &parsed.password.0));
        assert_eq!(typed.password.0, "p@ss:/?#%");
    }

    #[test]
    fn bad_option_is_named_with_its_value_and_a_remedy() {
        let new = || EtcdOptions::new(["a"]);
        for (options, said) in [
            (new().port(0), &["\"port=0\"", "1 to 65535"][..]),
            (EtcdOptions::new(["a", ""]), &["\"\" is not a server", "HOST:PORT"]),
            (EtcdOptions::new(["/run/etcd"]), &["\"/run/etcd\" is not a server", "HOST:PORT"]),
            (EtcdOptions::new([""; 0]), &["no server", "HOST:PORT"]),
            (EtcdOptions::new(["a", "a:2379"]), &["a:2379 twice"]),
            (new().prefix("a\n"), &["\"prefix=a\\n\"", "printable"]),
            (new().user("root"), &["a user without a password", "both"]),
            (new().password("hunter2"), &["a password without a user", "both"]),
            (new().ca("/nowhere/ca.pem"), &["\"ca=/nowhere/ca.pem\""]),
        ] {
            let shown = format!("{options:?}");
            let error = Config::new(options).err().expect(&shown);
            assert_eq!(error.kind(), ErrorKind::Invalid, "{shown}");
            let line = error.one_line();
            assert!(said.iter().all(|said| line.contains(said)), "{shown}: {line}");
            assert!(!line.contains("hunter2") && !shown.contains("hunter2"), "{line}");
        }
    }
}
