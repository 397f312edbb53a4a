//! TLS towards clients, with HTTP/2 by ALPN.

use std::path::Path;
use std::sync::Arc;

use fencepost_base::{Error, Result};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::TlsAcceptor;

/// Reads the certificate chain and key from PEM files.
pub(crate) fn acceptor(certificate: &Path, key: &Path) -> Result<TlsAcceptor> {
    let unusable = |file: &Path| {
        let shown = file.display().to_string();
        move |error: rustls::pki_types::pem::Error| {
            Error::invalid(format!("cannot read the PEM file {shown}")).with_source(error)
        }
    };
    let chain: Vec<_> = CertificateDer::pem_file_iter(certificate)
        .and_then(Iterator::collect)
        .map_err(unusable(certificate))?;
    let secret = PrivateKeyDer::from_pem_file(key).map_err(unusable(key))?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .and_then(|builder| builder.with_no_client_auth().with_single_cert(chain, secret))
        .map_err(|error| {
            let (chain, key) = (certificate.display(), key.display());
            Error::invalid(format!("cannot use the certificate {chain} with the key {key}"))
                .with_source(error)
        })?;
    config.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    Ok(Arc::new(config).into())
}
