//! Which servers a URL means, and how we use them:
//! `zookeeper://[USER:PASSWORD@]HOST[:PORT],HOST...[/CHROOT][?style=&acl=&tls=true&ca=&cert=&key=]`.

use std::fmt;

use super::names::check_chroot;
use super::ops::Access;
use super::tls::Tls;
use crate::error::{Error, Result};
use crate::url::servers::Servers;

const PORT: u16 = 2181;

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

/// One server: `host:port`, an IPv6 address in brackets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Host(pub(super) String);

impl Host {
    /// Without the port: what its certificate has to name.
    pub(super) fn name(&self) -> &str {
        let name = self.0.rsplit_once(':').map_or(&*self.0, |(name, _)| name);
        name.trim_start_matches('[').trim_end_matches(']')
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Whose node names our contenders have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Style {
    /// Stock Curator takes its turn behind these.
    Curator,
    /// Stock kazoo does.
    Kazoo,
    /// Curator's `LeaderLatch` does.
    Latch,
}

impl Style {
    pub(super) const ALL: [Self; 3] = [Self::Curator, Self::Kazoo, Self::Latch];
}

impl ZooKeeperUrl {
    /// `rest` is what follows the scheme and its colon.
    pub(crate) fn parse(rest: &str) -> Result<Self> {
        let mut url = Servers::parse("zookeeper", rest, PORT)?;
        let chroot = match url.path.trim_end_matches('/') {
            "" => String::new(),
            path => format!("/{path}"),
        };
        check_chroot(&chroot)?;
        let style = match url.take("style").as_deref() {
            None | Some("curator") => Style::Curator,
            Some("kazoo") => Style::Kazoo,
            Some("latch") => Style::Latch,
            Some(other) => {
                let remedy = "give style=curator, style=kazoo or style=latch";
                return Err(url.bad("style", other, remedy));
            }
        };
        let access = match url.take("acl").as_deref() {
            None | Some("open") => Access::Open,
            Some("creator") => Access::Creator,
            Some(other) => return Err(url.bad("acl", other, "give acl=open or acl=creator")),
        };
        let credentials = match &url.user {
            // What stands before the first colon is the user, there as well.
            Some(user) if user.name.contains(':') => {
                return Err(Error::invalid("the user in the zookeeper: URL has a colon in it"));
            }
            Some(user) => Some(format!("{}:{}", user.name, user.password)),
            None if access == Access::Creator => {
                return Err(Error::invalid(
                    "acl=creator in the zookeeper: URL needs credentials: write USER:PASSWORD@ \
                     before the hosts",
                ));
            }
            None => None,
        };
        let tls = url.take_tls()?.map(Tls::new).transpose()?;
        url.end("style, acl, tls, ca, cert, key")?;
        let hosts = url.hosts.into_iter().map(Host).collect();
        Ok(Self { hosts, chroot, style, access, credentials, tls })
    }
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
        let hosts: Vec<_> = url.hosts.iter().map(|host| (&*host.0, host.name())).collect();
        let expected =
            [("a:2181", "a"), ("b.local:2182", "b.local"), ("[::1]:2181", "::1")].as_slice();
        assert_eq!(hosts, expected);
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
            match ZooKeeperUrl::parse(bad) {
                Err(error) => {
                    assert_eq!(*error.kind(), ErrorKind::Invalid, "{bad}");
                    assert!(!error.to_string().contains("hunter2"), "{bad}: {error}");
                    assert!(!error.to_string().contains('\n'), "{error}");
                }
                // An @ in a password may be left as it is.
                Ok(url) => assert!(bad.contains("@h@i") && !format!("{url:?}").contains("hunter2")),
            }
        }
    }
}
