//! Which servers a URL means, and how we use them:
//! `zookeeper://[USER:PASSWORD@]HOST[:PORT],HOST...[/CHROOT][?style=&acl=&tls=true&ca=&cert=&key=]`.

use std::fmt;

use super::names::check_chroot;
use super::ops::Access;
use crate::error::{Error, Result};
use crate::tls::{Tls, TlsFiles, Verify};
use crate::url::{Form, Host};

const FORM: Form<'_> =
    Form::ensemble("zookeeper", 2181, &["style", "acl", "tls", "ca", "cert", "key"]);

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
        let url = FORM.parse(rest)?;
        let (user, hosts) = (url.login()?, url.distinct_hosts("")?.to_vec());
        let chroot = match url.path.trim_end_matches('/') {
            "" => String::new(),
            path => format!("/{path}"),
        };
        check_chroot(&chroot)?;
        let style = |name: &str| match name {
            "curator" => Some(Style::Curator),
            "kazoo" => Some(Style::Kazoo),
            "latch" => Some(Style::Latch),
            _ => None,
        };
        let remedy = "give style=curator, style=kazoo or style=latch";
        let style = url.get_as("style", style, remedy)?.unwrap_or(Style::Curator);
        let access = |name: &str| match name {
            "open" => Some(Access::Open),
            "creator" => Some(Access::Creator),
            _ => None,
        };
        let remedy = "give acl=open or acl=creator";
        let access = url.get_as("acl", access, remedy)?.unwrap_or(Access::Open);
        let credentials = match user {
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
        let tls = TlsFiles::of(&url)?.map(|files| files.client_config(Verify::SignerAndName));
        let tls = tls.transpose()?.map(Tls::new);
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
        let hosts: Vec<_> =
            url.hosts.iter().map(|host| (host.to_string(), host.name.as_str())).collect();
        let expected = [("a:2181", "a"), ("b.local:2182", "b.local"), ("[::1]:2181", "::1")];
        assert_eq!(hosts, expected.map(|(shown, name)| (shown.to_owned(), name)));
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
