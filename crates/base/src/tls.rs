//! TLS to a store: which roots to trust, our own certificate, and how much of the server's to check.

use std::path::{Path, PathBuf};
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

/// Whether to encrypt, and with which files: what the setters of a store's options and its URL say.
#[derive(Clone, Debug, Default)]
pub struct TlsOptions {
    /// Unset: encrypt if there are files.
    pub enabled: Option<bool>,
    /// The roots to trust instead of the system's.
    pub ca: Option<PemFile>,
    /// Our own certificate and its intermediates.
    pub cert: Option<PemFile>,
    pub key: Option<PemFile>,
}

/// A file, and the option or variable that names it.
#[derive(Clone, Debug)]
pub struct PemFile {
    pub option: &'static str,
    pub path: PathBuf,
}

/// The files, read.
pub struct TlsFiles {
    pub ca: Option<Pem>,
    pub cert: Option<Pem>,
    pub key: Option<Pem>,
}

/// The contents of a file.
pub struct Pem {
    file: PemFile,
    pub bytes: Vec<u8>,
}

/// What to check of the server's certificate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verify {
    /// That the server has its key, no more: enough against eavesdroppers.
    Nothing,
    /// That a trusted root signed it.
    Signer,
    /// Also that it names the right host.
    SignerAndName,
}

impl TlsOptions {
    /// What `tls=`, `ca=`, `cert=` and `key=` of a URL say.
    pub fn of(url: &Url<'_>) -> Result<Self> {
        let enabled = url.get_as("tls", |text| text.parse().ok(), "give tls=true or tls=false")?;
        let file = |option| url.text(option).map(|path| PemFile::new(option, path));
        Ok(Self { enabled, ca: file("ca"), cert: file("cert"), key: file("key") })
    }

    pub fn set_ca(&mut self, path: &Path) {
        self.ca = Some(PemFile::new("ca", path));
    }

    pub fn set_client_certificate(&mut self, cert: &Path, key: &Path) {
        (self.cert, self.key) = (Some(PemFile::new("cert", cert)), Some(PemFile::new("key", key)));
    }

    /// Whether the connection is encrypted.
    pub fn is_enabled(&self) -> Result<bool> {
        let files = [&self.ca, &self.cert, &self.key].into_iter().flatten().next();
        match (self.enabled, files) {
            (Some(false), Some(PemFile { option, .. })) => Err(Error::invalid(format!(
                "TLS is off, but {option} names a file for it: turn it on (rediss://, tls=true), or leave {option} out"
            ))),
            (enabled, files) => Ok(enabled.unwrap_or(files.is_some())),
        }
    }

    /// The contents of the files; `None` for a plain connection.
    pub fn read(&self) -> Result<Option<TlsFiles>> {
        self.is_enabled()?.then(|| self.read_files()).transpose()
    }

    pub fn read_files(&self) -> Result<TlsFiles> {
        match (&self.cert, &self.key) {
            (Some(one), None) | (None, Some(one)) => {
                return Err(Error::invalid(format!(
                    "{} is given alone: a client certificate and its key belong together; give both or \
                     neither",
                    one.option
                )));
            }
            _ => {}
        }
        let read = |file: &Option<PemFile>| file.as_ref().map(PemFile::read).transpose();
        Ok(TlsFiles { ca: read(&self.ca)?, cert: read(&self.cert)?, key: read(&self.key)? })
    }
}

impl PemFile {
    pub fn new(option: &'static str, path: impl Into<PathBuf>) -> Self {
        Self { option, path: path.into() }
    }

    fn read(&self) -> Result<Pem> {
        let bytes = std::fs::read(&self.path)
            .map_err(|error| self.bad("cannot read this file").with_source(error))?;
        Ok(Pem { file: self.clone(), bytes })
    }

    fn bad(&self, why: &str) -> Error {
        let (option, path) = (self.option, self.path.to_string_lossy());
        Error::invalid(format!("\"{option}={}\": {why}", path.escape_debug()))
    }
}

impl Pem {
    /// The certificates; at least one.
    fn certificates(&self) -> Result<Vec<CertificateDer<'static>>> {
        let found: Vec<_> = CertificateDer::pem_slice_iter(&self.bytes)
            .collect::<Result<_, _>>()
            .map_err(|error| self.unusable(error))?;
        if found.is_empty() {
            return Err(self.file.bad("this file has no certificate: give a PEM file"));
        }
        Ok(found)
    }

    fn unusable(&self, error: impl std::error::Error + Send + Sync + 'static) -> Error {
        self.file.bad("cannot use this file").with_source(error)
    }
}

impl TlsFiles {
    /// The roots to trust; at least one.
    pub fn roots(&self) -> Result<RootCertStore> {
        let mut roots = RootCertStore::empty();
        if let Some(ca) = &self.ca {
            for certificate in ca.certificates()? {
                roots.add(certificate).map_err(|error| ca.unusable(error))?;
            }
            return Ok(roots);
        }
        // Some of the system's may be unusable; one is enough.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if roots.is_empty() {
            return Err(Error::invalid(
                "this system has no trusted CAs: name a file of them (ca, for postgres: sslrootcert)",
            ));
        }
        Ok(roots)
    }

    pub fn client_config(&self, verify: Verify) -> Result<ClientConfig> {
        // Explicit, so that another crate in the program cannot change it.
        let provider = Arc::new(rustls::crypto::ring::default_provider());
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
        let (Some(cert), Some(key)) = (&self.cert, &self.key) else {
            return Ok(config.with_no_client_auth());
        };
        let secret = PrivateKeyDer::from_pem_slice(&key.bytes);
        let secret = secret.map_err(|error| key.unusable(error))?;
        let with_client = config.with_client_auth_cert(cert.certificates()?, secret);
        with_client.map_err(|error| cert.unusable(error))
    }
}

fn not_set_up(error: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::invalid("cannot set up TLS").with_source(error)
}

/// Encrypts connections.
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

/// Checks the signer at most, never the name.
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
            // The name is checked last, so the signer is trusted.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::url::Form;

    #[test]
    fn files_of_a_url_are_checked() {
        let form = Form::ensemble("etcd", &["tls", "ca", "cert", "key"]);
        let read = |rest: &str| TlsOptions::of(&form.parse(rest)?)?.read();
        assert!(read("//a").unwrap().is_none() && read("//a?tls=false").unwrap().is_none());
        assert!(read("//a?tls=true").unwrap().is_some());
        assert!(read("//a?ca=/dev/null").unwrap().is_some(), "a file turns TLS on");
        for (bad, why) in [
            ("//a?tls=yes", "give tls=true"),
            ("//a?ca=/nowhere/ca.pem", "\"ca=/nowhere/ca.pem\": cannot read"),
            ("//a?cert=/dev/null", "belong together"),
            ("//a?tls=false&ca=/dev/null", "TLS is off"),
        ] {
            let error = read(bad).err().expect(bad);
            assert_eq!(error.kind(), crate::ErrorKind::Invalid, "{bad}");
            assert!(error.one_line().contains(why), "{error}");
        }
    }
}
