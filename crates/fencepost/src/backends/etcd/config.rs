//! Which cluster a URL means, and how we use it:
//! `etcd://[USER:PASSWORD@]HOST[:PORT],HOST...[?prefix=&tls=true&ca=&cert=&key=]`.

use std::fmt;

use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Identity};

use crate::error::{Error, Result};
use crate::url::servers::{Pems, Servers, User};

const PORT: u16 = 2379;

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
        let mut url = Servers::parse("etcd", rest, PORT)?;
        if !url.path.is_empty() {
            return Err(Error::invalid(
                "the etcd: URL has a path: write ?prefix=PATH/ to have all locks under one",
            ));
        }
        let tls = url.take_tls()?.map(tls_config);
        let prefix = url.take("prefix").unwrap_or_default();
        if prefix.chars().any(char::is_control) || prefix.len() > 512 {
            return Err(url.bad("prefix", &prefix, "give up to 512 bytes of printable text"));
        }
        url.end("prefix, tls, ca, cert, key")?;
        let members = url.hosts.iter().map(|host| Address::new(host, tls.as_ref()));
        Ok(Self { members: members.collect::<Result<_>>()?, user: url.user, prefix })
    }
}

impl Address {
    fn new(host: &str, tls: Option<&ClientTlsConfig>) -> Result<Self> {
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
        Ok(Self { endpoint: endpoint.tcp_nodelay(true), shown: host.to_owned() })
    }
}

fn tls_config(pems: Pems) -> ClientTlsConfig {
    let tls = ClientTlsConfig::new();
    let tls = match pems.ca {
        Some(ca) => tls.ca_certificate(Certificate::from_pem(ca)),
        None => tls.with_native_roots(),
    };
    match pems.identity {
        Some((cert, key)) => tls.identity(Identity::from_pem(cert, key)),
        None => tls,
    }
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
        for bad in ["//a/path", "//a?prefix=%00", "//a?frob=1", "//a?tls=maybe", "//"] {
            assert!(EtcdUrl::parse(bad).is_err(), "{bad}");
        }
    }
}
