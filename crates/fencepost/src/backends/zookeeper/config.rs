//! Which servers to use, and how: as typed options, or as a URL,
//! `zookeeper://[USER:PASSWORD@]HOST[:PORT],HOST...[/CHROOT][?style=&acl=&tls=true&ca=&cert=&key=]`.

use std::path::Path;

use super::names::check_chroot;
use super::protocol::Access;
use crate::error::{Error, Result};
use crate::tls::{Tls, TlsOptions, Verify};
use crate::url::{Form, Host, Secret, checked_hosts, checked_login};

const FORM: Form<'_> = Form::ensemble("zookeeper", &["style", "acl", "tls", "ca", "cert", "key"]);
const PORT: u16 = 2181;

/// A ZooKeeper ensemble, and how to connect to it: the same as a `zookeeper:` URL.
///
/// ```no_run
/// # async fn connect(secret: String) -> fencepost::Result<()> {
/// use fencepost::Fencepost;
/// use fencepost::backends::zookeeper::ZooKeeperOptions;
///
/// let servers = ["zk-1", "zk-2", "zk-3"];
/// let options = ZooKeeperOptions::new(servers).chroot("/shop").user("app").password(secret);
/// let fp = Fencepost::connect(options.creator_only(true)).await?;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug)]
pub struct ZooKeeperOptions {
    hosts: Vec<Host>,
    port: u16,
    chroot: String,
    style: Style,
    creator_only: bool,
    user: Option<String>,
    password: Option<Secret>,
    tls: TlsOptions,
}

/// Whose node names our contenders have, so that this other client takes its turn behind them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Style {
    /// Curator's locks. The default.
    Curator,
    /// kazoo's locks.
    Kazoo,
    /// Curator's `LeaderLatch`.
    Latch,
}

impl Style {
    pub(super) const ALL: [Self; 3] = [Self::Curator, Self::Kazoo, Self::Latch];
}

impl ZooKeeperOptions {
    /// The servers on `hosts`: each is `HOST`, `HOST:PORT` or `[IPV6]:PORT`.
    #[must_use]
    pub fn new(hosts: impl IntoIterator<Item = impl AsRef<str>>) -> Self {
        Self::of(hosts.into_iter().map(|host| Host::new(host.as_ref())).collect())
    }

    fn of(hosts: Vec<Host>) -> Self {
        Self {
            hosts,
            port: PORT,
            chroot: String::new(),
            style: Style::Curator,
            creator_only: false,
            user: None,
            password: None,
            tls: TlsOptions::default(),
        }
    }

    /// The port of hosts without one. The default is 2181.
    #[must_use]
    pub fn port(mut self, port: u16) -> Self {
        self.port = port;
        self
    }

    /// The path under which all locks lie, like `/shop/locks`. The default is the root.
    #[must_use]
    pub fn chroot(mut self, path: impl Into<String>) -> Self {
        self.chroot = path.into();
        self
    }

    /// Which other client the locks are shared with.
    #[must_use]
    pub fn style(mut self, style: Style) -> Self {
        self.style = style;
        self
    }

    /// Whether only this user may contend for a lock that it used first (`acl=creator`). It needs a user and a
    /// password.
    #[must_use]
    pub fn creator_only(mut self, creator_only: bool) -> Self {
        self.creator_only = creator_only;
        self
    }

    /// The user that authenticates (digest), with a password.
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
        let style = |name: &str| match name {
            "curator" => Some(Style::Curator),
            "kazoo" => Some(Style::Kazoo),
            "latch" => Some(Style::Latch),
            _ => None,
        };
        let style = url.get_as("style", style, "give style=curator, style=kazoo or style=latch")?;
        let creator_only = |name: &str| match name {
            "open" => Some(false),
            "creator" => Some(true),
            _ => None,
        };
        let creator_only = url.get_as("acl", creator_only, "give acl=open or acl=creator")?;
        let tls = TlsOptions::of(&url)?;
        Ok(Self {
            chroot: format!("/{}", url.path),
            style: style.unwrap_or(Style::Curator),
            creator_only: creator_only.unwrap_or(false),
            user: url.user,
            password: url.password,
            tls,
            ..Self::of(url.hosts)
        })
    }
}

/// The options, checked.
pub(super) struct Config {
    pub(super) hosts: Vec<Host>,
    /// The path that all locks are below: empty, or like `/a/b`.
    pub(super) chroot: String,
    pub(super) style: Style,
    pub(super) access: Access,
    /// `user:password`, for digest authentication.
    pub(super) credentials: Option<String>,
    pub(super) tls: Option<Tls>,
}

impl Config {
    pub(super) fn new(options: ZooKeeperOptions) -> Result<Self> {
        let hosts =
            checked_hosts("zookeeper", &options.hosts, options.port, false, ": name it once")?;
        let path = options.chroot.trim_end_matches('/');
        let slash = if path.is_empty() || path.starts_with('/') { "" } else { "/" };
        let chroot = format!("{slash}{path}");
        check_chroot(&chroot)?;
        let access = if options.creator_only { Access::Creator } else { Access::Open };
        let credentials = match checked_login("zookeeper", options.user, options.password)? {
            // What stands before the first colon is the user, there as well.
            Some(user) if user.name.contains(':') => {
                return Err(Error::invalid("the user of the zookeeper: store has a colon in it"));
            }
            Some(user) => Some(format!("{}:{}", user.name, user.password.0)),
            None if access == Access::Creator => {
                return Err(Error::invalid(
                    "acl=creator of the zookeeper: store needs credentials: give a user and a \
                     password (USER:PASSWORD@ in a URL)",
                ));
            }
            None => None,
        };
        let tls = options.tls.read()?.map(|files| files.client_config(Verify::SignerAndName));
        let tls = tls.transpose()?.map(Tls::new);
        Ok(Self { hosts, chroot, style: options.style, access, credentials, tls })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ErrorKind;

    fn parse(rest: &str) -> Result<Config> {
        Config::new(ZooKeeperOptions::parse(rest)?)
    }

    #[test]
    fn url_names_servers() {
        let url = parse("//app:s%40crt@a,b.local:2182,[::1]/x/y/?style=kazoo&acl=creator").unwrap();
        let hosts: Vec<_> =
            url.hosts.iter().map(|host| (host.to_string(), host.name.as_str())).collect();
        let expected = [("a:2181", "a"), ("b.local:2182", "b.local"), ("[::1]:2181", "::1")];
        assert_eq!(hosts, expected.map(|(shown, name)| (shown.to_owned(), name)));
        assert_eq!(url.chroot, "/x/y");
        assert_eq!((url.style, url.access), (Style::Kazoo, Access::Creator));
        assert_eq!(url.credentials.as_deref(), Some("app:s@crt"));
        let plain = parse("//127.0.0.1").unwrap();
        assert_eq!((plain.chroot.as_str(), plain.style), ("", Style::Curator));
        assert!(plain.credentials.is_none() && plain.tls.is_none());
    }

    #[test]
    fn invalid_url_is_reported_without_its_password() {
        for bad in [
            "",
            "//",
            "//a,",
            "//a,a",
            "//app:hunter2@",
            "//app:x/hunter2@h",
            "//app:x?style=hunter2@h",
            "//app:hunter2#@h",
            "//a%3Ab:hunter2@h",
            "//app:hunter2@h@i:hunter2@j/",
            "//app:hunter2@h?frob=1",
            "//app:hunter2@h?style=x",
            "//app:hunter2@h?tls=yes",
            "//app:hunter2@h?ca=/nowhere",
            "//app:hunter2@h?tls=true&ca=/dev/null",
            "//app:hunter2@h/a//b",
            "//app:hunter2@h/a/../b",
            "//h?acl=creator",
        ] {
            if let Err(error) = parse(bad) {
                assert_eq!(error.kind(), ErrorKind::Invalid, "{bad}");
                assert!(!error.one_line().contains("hunter2"), "{bad}: {error}");
                assert!(!error.one_line().contains('\n'), "{error}");
            } else {
                // An unescaped @ in a password is accepted.
                let options = ZooKeeperOptions::parse(bad).unwrap();
                assert!(bad.contains("@h@i") && !format!("{options:?}").contains("hunter2"));
            }
        }
    }

    #[test]
    fn options_say_the_same_as_a_url() {
        let options = ZooKeeperOptions::new(["a", "b.local:2182"])
            .chroot("/x/y")
            .style(Style::Kazoo)
            .creator_only(true)
            .user("app")
            .password("p@ss:/?#%");
        assert!(!format!("{options:?}").contains("p@ss"), "{options:?}");
        let typed = Config::new(options).unwrap();
        let url = "//app:p%40ss%3A%2F%3F%23%25@a,b.local:2182/x/y?style=kazoo&acl=creator";
        let parsed = parse(url).unwrap();
        assert_eq!((&typed.hosts, &typed.chroot), (&parsed.hosts, &parsed.chroot));
        assert_eq!((typed.style, typed.access), (parsed.style, parsed.access));
        assert_eq!(typed.credentials.as_deref(), Some("app:p@ss:/?#%"));
        assert_eq!(typed.credentials, parsed.credentials);
        for chroot in ["x/y", "/x/y/"] {
            let options = ZooKeeperOptions::new(["a"]).chroot(chroot);
            assert_eq!(Config::new(options).unwrap().chroot, "/x/y", "{chroot}");
        }
    }

    #[test]
    fn bad_option_is_named_with_its_value_and_a_remedy() {
        let new = || ZooKeeperOptions::new(["a"]);
        for (options, said) in [
            (new().port(0), &["\"port=0\"", "1 to 65535"][..]),
            (ZooKeeperOptions::new(["a/b"]), &["\"a/b\" is not a server", "HOST:PORT"]),
            (ZooKeeperOptions::new([""; 0]), &["no server", "HOST:PORT"]),
            (new().chroot("/a//b"), &["\"/a//b\"", "use /NAME/NAME"]),
            (new().user("app"), &["a user without a password", "both"]),
            (new().user("a:b").password("hunter2"), &["colon"]),
            (new().creator_only(true), &["credentials", "give a user"]),
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
