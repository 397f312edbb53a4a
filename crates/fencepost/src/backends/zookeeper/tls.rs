//! TLS to a server's secure port.

use std::fmt;
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use crate::error::{Error, Result};

/// Whom to trust, and who we are.
#[derive(Clone)]
pub(crate) struct Tls(TlsConnector);

impl Tls {
    /// Trusts the CA in this file, or those that the system trusts; shows this certificate if asked.
    pub(super) fn new(ca: Option<&str>, pair: Option<(&str, &str)>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        match ca {
            Some(path) => {
                for certificate in certificates("ca", path)? {
                    roots.add(certificate).map_err(|error| unusable("ca", path, error))?;
                }
            }
            None => {
                // Some of the system's may be odd; what matters is that there are any.
                roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
                if roots.is_empty() {
                    return Err(Error::invalid(
                        "this system has no list of trusted CAs: name one with ca=FILE in the URL",
                    ));
                }
            }
        }
        // Named, so that another crate in the program can not change what we use.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid("TLS can not be set up").because(error))?
            .with_root_certificates(roots);
        let config = match pair {
            None => config.with_no_client_auth(),
            Some((cert, key)) => {
                let secret = PrivateKeyDer::from_pem_file(key)
                    .map_err(|error| unusable("key", key, error))?;
                config
                    .with_client_auth_cert(certificates("cert", cert)?, secret)
                    .map_err(|error| unusable("cert", cert, error))?
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

fn certificates(option: &str, path: &str) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect)
        .map_err(|error| unusable(option, path, error))?;
    if found.is_empty() {
        return Err(Error::invalid(format!(
            "there is no certificate in \"{}\" ({option}= in the URL): give a PEM file",
            path.escape_debug()
        )));
    }
    Ok(found)
}

fn unusable(option: &str, path: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    let path = path.escape_debug();
    Error::invalid(format!("can not use \"{path}\" ({option}= in the URL)")).because(error)
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}
