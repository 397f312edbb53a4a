//! TLS to a store: whom to trust, who we are, and how far the server is checked.

use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier};
use rustls::crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime};
use rustls::{
    CertificateError, ClientConfig, DigitallySignedStruct, RootCertStore, SignatureScheme,
};

use crate::error::{Error, Result};
use crate::url::Url;

/// The files that a URL names, read.
pub struct TlsFiles {
    /// The options that name them, in the order of the fields.
    pub options: [&'static str; 3],
    /// Whom to trust, if not whom the system trusts.
    pub ca: Option<Vec<u8>>,
    /// Our own certificate, and those between it and its root.
    pub cert: Option<Vec<u8>>,
    pub key: Option<Vec<u8>>,
}

/// What of the server's certificate is checked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// That the server has its key, and no more: for secrecy from those who only listen.
    Nothing,
    /// That somebody signed it whom we trust.
    Signer,
    /// And that it is made out to the host that we meant.
    SignerAndName,
}

impl TlsFiles {
    /// What `tls=`, `ca=`, `cert=` and `key=` say: `None` for a plain connection.
    pub fn of(url: &Url<'_>) -> Result<Option<Self>> {
        let options = ["ca", "cert", "key"];
        let wanted = url.get_as("tls", |text| text.parse().ok(), "give tls=true or tls=false")?;
        let [ca, cert, key] = options.map(|option| url.get(option).is_some());
        let any = ca || cert || key;
        if wanted == Some(false) && any {
            return Err(Error::invalid(format!(
                "the {}: URL has tls=false and certificates: give one or the other",
                url.form.scheme
            )));
        }
        if !any && wanted != Some(true) {
            return Ok(None);
        }
        if cert != key {
            return Err(apart(options));
        }
        let read = |option: &str| {
            let Some(setting) = url.get(option) else { return Ok(None) };
            let path = &setting.value;
            std::fs::read(path).map(Some).map_err(|error| {
                Error::invalid(format!("can not read \"{path}\" ({option}= in the URL)"))
                    .because(error)
            })
        };
        let (cert, key) = (read("cert")?, read("key")?);
        Ok(Some(Self { options, ca: read("ca")?, cert, key }))
    }

    /// Whom to trust; at least one.
    pub fn roots(&self) -> Result<RootCertStore> {
        let [option, ..] = self.options;
        let mut roots = RootCertStore::empty();
        if let Some(pem) = &self.ca {
            for certificate in certificates(option, pem)? {
                roots.add(certificate).map_err(|error| unusable(option, error))?;
            }
            return Ok(roots);
        }
        // Some of the system's may be odd; what matters is that there are any.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(Error::invalid(format!(
                "this system has no list of trusted CAs: name one with {option}=FILE in the URL"
            )));
        }
        Ok(roots)
    }

    pub fn client_config(&self, verify: Verify) -> Result<ClientConfig> {
        // Named, so that another crate in the program can not change what we use.
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let signer = match verify {
            Verify::Nothing => None,
            Verify::Signer | Verify::SignerAndName => {
                let roots = Arc::new(self.roots()?);
                let signer = WebPkiServerVerifier::builder_with_provider(roots, provider.clone());
                Some(signer.build().map_err(not_set_up)?)
            }
        };
        let verifier: Arc<dyn ServerCertVerifier> = match signer {
            Some(signer) if verify == Verify::SignerAndName => signer,
            signer => Arc::new(Lenient { provider: provider.clone(), signer }),
        };
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .map_err(not_set_up)?
            .dangerous()
            .with_custom_certificate_verifier(verifier);
        let [_, cert, key] = self.options;
        match (&self.cert, &self.key) {
            (None, None) => Ok(config.with_no_client_auth()),
            (Some(chain), Some(secret)) => {
                let secret = PrivateKeyDer::from_pem_slice(secret);
                let secret = secret.map_err(|error| unusable(key, error))?;
                config
                    .with_client_auth_cert(certificates(cert, chain)?, secret)
                    .map_err(|error| unusable(cert, error))
            }
            _ => Err(apart(self.options)),
        }
    }
}

/// The certificates in the file that this option of a URL names; at least one.
fn certificates(option: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
    let found: Vec<_> = CertificateDer::pem_slice_iter(pem)
        .collect::<Result<_, _>>()
        .map_err(|error| unusable(option, error))?;
    if found.is_empty() {
        return Err(Error::invalid(format!(
            "there is no certificate in the file of {option}= in the URL: give a PEM file"
        )));
    }
    Ok(found)
}

fn unusable(option: &str, error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid(format!("can not use the file of {option}= in the URL")).because(error)
}

fn not_set_up(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid("TLS can not be set up").because(error)
}

fn apart([_, cert, key]: [&str; 3]) -> Error {
    Error::invalid(format!("{cert}= and {key}= in the URL belong together: give both or neither"))
}

/// What makes a connection an encrypted one.
#[derive(Clone)]
pub struct Tls(tokio_rustls::TlsConnector);

impl Tls {
    pub fn new(config: ClientConfig) -> Self {
        Self(Arc::new(config).into())
    }

    pub async fn connect<S>(
        &self,
        stream: S,
        host: &str,
    ) -> std::io::Result<tokio_rustls::client::TlsStream<S>>
    where
        S: tokio::io::AsyncRead + tokio::io::AsyncWrite + Unpin,
    {
        let name = ServerName::try_from(host.to_owned()).map_err(std::io::Error::other)?;
        self.0.connect(name, stream).await
    }
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
