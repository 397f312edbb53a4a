//! Which cluster a URL means, and how we use it:
//! `etcd://[USER:PASSWORD@]HOST[:PORT],HOST...[?prefix=&tls=true&ca=&cert=&key=]`.

use std::fmt;

use tonic::transport::{ClientTlsConfig, Endpoint, Identity};

use crate::error::{Error, Result};
use crate::tls::TlsFiles;
use crate::url::{Form, Host, User};

const FORM: Form<'_> = Form::ensemble("etcd", 2379, &["prefix", "tls", "ca", "cert", "key"]);

/// An `etcd:` URL, parsed.
#[derive(Clone)]
pub(crate) struct EtcdUrl {
    pub(super) members: Vec<Address>,
    pub(super) user: Option<User>,
    /// Stands before every lock's name.
    pub(super) prefix: String,
}

/// One member, and the way to it.
#[derive(Clone)]
pub(super) struct Address {
    pub(super) endpoint: Endpoint,
    /// `host:port`, for people.
    pub(super) shown: String,
}

impl fmt::Debug for EtcdUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let shown: Vec<_> = self.members.iter().map(|member| &*member.shown).collect();
        write!(f, "EtcdUrl({})", shown.join(","))
    }
}

impl EtcdUrl {
    /// `rest` is what follows the scheme and its colon.
    pub(crate) fn parse(rest: &str) -> Result<Self> {
        let url = FORM.parse(rest)?;
        let (user, hosts) = (url.login()?, url.distinct_hosts("")?);
        if !url.path.is_empty() {
            return Err(Error::invalid(
                "the etcd: URL has a path: write ?prefix=PATH/ to have all locks under one",
            ));
        }
        let printable = |prefix: &str| {
            let good = prefix.len() <= 512 && !prefix.chars().any(char::is_control);
            good.then(|| prefix.to_owned())
        };
        let remedy = "give up to 512 bytes of printable text";
        let prefix = url.get_as("prefix", printable, remedy)?.unwrap_or_default();
        let tls = TlsFiles::of(&url)?.map(tls_config).transpose()?;
        let members = hosts.iter().map(|host| Address::new(host, tls.as_ref()));
        Ok(Self { members: members.collect::<Result<_>>()?, user, prefix })
    }
}

impl Address {
    fn new(host: &Host, tls: Option<&ClientTlsConfig>) -> Result<Self> {
        let scheme = if tls.is_some() { "https" } else { "http" };
        let invalid = |error: tonic::transport::Error| {
            Error::invalid(format!("no connection can be made to {host} of the etcd: URL"))
                .because(error)
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
        (Some(cert), Some(key)) => tls.identity(Identity::from_pem(cert, key)),
        _ => tls,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn urls_name_members() {
        let url = EtcdUrl::parse("//root:secret@a,b:7000?prefix=locks/").unwrap();
        let shown: Vec<_> = url.members.iter().map(|member| &*member.shown).collect();
        assert_eq!(shown, ["a:2379", "b:7000"]);
        assert_eq!(url.prefix, "locks/");
        assert_eq!(url.user.unwrap().password, "secret");
        for bad in
            ["//a/path", "//a?prefix=%00", "//a?frob=1", "//a?tls=maybe", "//a?ca=/dev/null", "//"]
        {
            assert!(EtcdUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
