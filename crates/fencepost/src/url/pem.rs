//! Certificates in files that a URL names.

use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

use crate::error::{Error, Result};

/// The certificates in the file that this option of a URL names; at least one.
pub(crate) fn certificates(option: &str, pem: &[u8]) -> Result<Vec<CertificateDer<'static>>> {
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

/// The error of such a file.
pub(crate) fn unusable(
    option: &str,
    error: impl std::error::Error + Send + Sync + 'static,
) -> Error {
    Error::invalid(format!("can not use the file of {option}= in the URL")).because(error)
}
