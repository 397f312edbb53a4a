//! TLS to a server's secure port.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::{Error, Result};
use crate::url::pem::{certificates, unusable};
use crate::url::servers::Pems;

/// Whom to trust, and who we are.
#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

impl Tls {
    pub(super) fn new(pems: Pems) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        if let Some(ca) = pems.ca {
            for certificate in certificates("ca", &ca)? {
                roots.add(certificate).map_err(|error| unusable("ca", error))?;
            }
        } else {
            // Some of the system's may be odd; what matters is that there are any.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
            if roots.is_empty() {
                return Err(Error::invalid(
                    "this system has no list of trusted CAs: name one with ca=FILE in the URL",
                ));
            }
        }
        // Named, so that another crate in the program can not change what we use.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid("TLS can not be set up").because(error))?
            .with_root_certificates(roots);
        let config = match pems.identity {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let key =
                    PrivateKeyDer::from_pem_slice(&key).map_err(|error| unusable("key", error))?;
                config
                    .with_client_auth_cert(certificates("cert", &cert)?, key)
                    .map_err(|error| unusable("cert", error))?
            }
        };
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    pub(super) async fn over(
        &self,
        stream: TcpStream,
        host: &str,
    ) -> std::io::Result<TlsStream<TcpStream>> {
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        self.0.connect(name, stream).await
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}
