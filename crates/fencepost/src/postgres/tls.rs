//! TLS to a PostgreSQL server, which starts in the middle of a plain connection; how far it is checked is the
//! URL's choice, as it is with libpq.

use std::fmt;
use std::future::Future;
use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::config::SslMode;
use tokio_postgres::tls::{
    ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream as PostgresStream,
};
use tokio_rustls::TlsConnector;

use super::address::Files;
use crate::error::{Error, Result};
use crate::url::pem::{certificates, unusable};

/// What of the server's certificate is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verify {
    /// That the server has its key, and no more: for secrecy from those who only listen.
    Nothing,
    /// That somebody signed it whom we trust.
    Signer,
    /// And that it is made out to the host that we meant.
    SignerAndName,
}

/// Whom to trust, and who we are. Nothing, if the URL wants no TLS.
#[derive(Clone)]
pub(crate) struct Tls(Option<TlsConnector>);

impl Tls {
    pub(super) fn new(mode: SslMode, verify: Verify, files: &Files) -> Result<Self> {
        if mode == SslMode::Disable {
            return Ok(Self(None));
        }
        // Named, so that another crate in the program can not change what we use.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let verifier: Arc<dyn ServerCertVerifier> = match verify {
            Verify::Nothing => Arc::new(Lenient { provider: provider.clone(), signer: None }),
            Verify::Signer | Verify::SignerAndName => {
                let roots = Arc::new(roots(files)?);
                let signer = WebPkiServerVerifier::builder_with_provider(roots, provider.clone())
                    .build()
                    .map_err(|error| Error::invalid("TLS can not be set up").because(error))?;
                if verify == Verify::SignerAndName {
                    signer
                } else {
                    Arc::new(Lenient { provider: provider.clone(), signer: Some(signer) })
                }
            }
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(|error| Error::invalid("TLS can not be set up").because(error))?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let mut config = match (&files.cert, &files.key) {
            (None, None) => config.with_no_client_auth(),
            (Some(cert), Some(key)) => {
                let key = PrivateKeyDer::from_pem_slice(key)
                    .map_err(|error| unusable("sslkey", error))?;
                config
                    .with_client_auth_cert(certificates("sslcert", cert)?, key)
                    .map_err(|error| unusable("sslcert", error))?
            }
            _ => {
                return Err(Error::invalid(
                    "sslcert= and sslkey= in the URL belong together: give both or neither",
                ));
            }
        };
        // PostgreSQL 17 insists on it where TLS begins at once, and others do not mind.
        config.alpn_protocols = vec![b"postgresql".to_vec()];
        Ok(Self(Some(TlsConnector::from(Arc::new(config)))))
    }
}

fn roots(files: &Files) -> Result<RootCertStore> {
    let mut roots = RootCertStore::empty();
    if let Some(pem) = &files.roots {
        for certificate in certificates("sslrootcert", pem)? {
            roots.add(certificate).map_err(|error| unusable("sslrootcert", error))?;
        }
        return Ok(roots);
    }
    // Some of the system's may be odd; what matters is that there are any.
    roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
    if roots.is_empty() {
        return Err(Error::invalid(
            "this system has no list of trusted CAs: name one with sslrootcert=FILE in the URL",
        ));
    }
    Ok(roots)
}

/// Checks less than all: the signer at most, never the name.
#[derive(Debug)]
struct Lenient {
    provider: Arc<CryptoProvider>,
    signer: Option<Arc<WebPkiServerVerifier>>,
}

impl ServerCertVerifier for Lenient {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        server_name: &ServerName<'_>,
        ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        let Some(signer) = &self.signer else { return Ok(ServerCertVerified::assertion()) };
        let verified =
            signer.verify_server_cert(end_entity, intermediates, server_name, ocsp_response, now);
        match verified {
            // The name is looked at last, so the signer is whom we trust.
            Err(rustls::Error::InvalidCertificate(
                CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. },
            )) => Ok(ServerCertVerified::assertion()),
            verified => verified,
        }
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, cert, dss, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        cert: &CertificateDer<'_>,
        dss: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, cert, dss, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

/// TLS with one host, about to begin.
pub(crate) struct Handshake {
    connector: Option<TlsConnector>,
    host: ServerName<'static>,
}

impl MakeTlsConnect<Socket> for Tls {
    type Stream = TlsStream;
    type TlsConnect = Handshake;
    type Error = rustls::pki_types::InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, Self::Error> {
        // A socket has no host, and no TLS either; its name is not used.
        let host = if host.is_empty() { "localhost" } else { host };
        Ok(Handshake { connector: self.0.clone(), host: ServerName::try_from(host.to_owned())? })
    }
}

impl TlsConnect<Socket> for Handshake {
    type Stream = TlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsStream>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let none = || io::Error::other("TLS was not asked for");
            let connector = self.connector.ok_or_else(none)?;
            Ok(TlsStream(Box::new(connector.connect(self.host, stream).await?)))
        })
    }
}

/// An encrypted connection.
pub(crate) struct TlsStream(Box<tokio_rustls::client::TlsStream<Socket>>);

impl PostgresStream for TlsStream {
    fn channel_binding(&self) -> ChannelBinding {
        ChannelBinding::none()
    }
}

impl AsyncRead for TlsStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_read(context, buffer)
    }
}

impl AsyncWrite for TlsStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut *self.0).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut *self.0).poll_shutdown(context)
    }
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tls")
    }
}
