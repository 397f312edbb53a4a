//! TLS to a PostgreSQL server, which starts in the middle of a plain connection. The URL chooses what is checked, as in
//! libpq.
//!
//! A SCRAM login is bound to the server's certificate (RFC 5929, `tls-server-end-point`): a man in the middle with another
//! certificate cannot forward the login, even where the certificate is not checked.

use std::future::Future;
use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use ring::digest;
use rustls::pki_types::{InvalidDnsNameError, ServerName};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio_postgres::Socket;
use tokio_postgres::tls::{
    ChannelBinding, MakeTlsConnect, TlsConnect, TlsStream as PostgresStream,
};

use crate::tls::Tls;

/// Creates TLS connections; `None` if the URL disables TLS.
#[derive(Clone)]
pub(super) struct MakeTls(pub(super) Option<Tls>);

/// TLS with one host, not yet started.
pub(super) struct Handshake {
    tls: Option<Tls>,
    host: String,
}

impl MakeTlsConnect<Socket> for MakeTls {
    type Stream = TlsStream;
    type TlsConnect = Handshake;
    type Error = InvalidDnsNameError;

    fn make_tls_connect(&mut self, host: &str) -> Result<Handshake, Self::Error> {
        // A socket has neither a host nor TLS, so this name is not used.
        let host = if host.is_empty() { "localhost" } else { host };
        ServerName::try_from(host)?;
        Ok(Handshake { tls: self.0.clone(), host: host.to_owned() })
    }
}

impl TlsConnect<Socket> for Handshake {
    type Stream = TlsStream;
    type Error = io::Error;
    type Future = Pin<Box<dyn Future<Output = io::Result<TlsStream>> + Send>>;

    fn connect(self, stream: Socket) -> Self::Future {
        Box::pin(async move {
            let none = || io::Error::other("TLS was not asked for");
            let tls = self.tls.ok_or_else(none)?;
            Ok(TlsStream(Box::new(tls.connect(stream, &self.host).await?)))
        })
    }
}

/// An encrypted connection.
pub struct TlsStream(Box<tokio_rustls::client::TlsStream<Socket>>);

impl PostgresStream for TlsStream {
    fn channel_binding(&self) -> ChannelBinding {
        let (_, connection) = self.0.get_ref();
        let certificate = connection.peer_certificates().and_then(|chain| chain.first());
        match certificate.and_then(|certificate| end_point(certificate)) {
            Some(hash) => ChannelBinding::tls_server_end_point(hash),
            None => ChannelBinding::none(),
        }
    }
}

/// The hash of a certificate, with the hash function of its signature; SHA-256 in place of MD5 and SHA-1. None for a
/// signature without such a function (Ed25519): the binding is not defined for it.
fn end_point(certificate: &[u8]) -> Option<Vec<u8>> {
    // Certificate ::= SEQUENCE { tbsCertificate SEQUENCE, signatureAlgorithm SEQUENCE { OBJECT IDENTIFIER, .. }, .. }
    let (certificate_body, _) = der(SEQUENCE, certificate)?;
    let (_, rest) = der(SEQUENCE, certificate_body)?;
    let (algorithm, _) = der(SEQUENCE, rest)?;
    let (name, parameters) = der(OBJECT_IDENTIFIER, algorithm)?;
    let hash = match name {
        // RSASSA-PSS names its hash function in a parameter; the default is SHA-1.
        RSA_PSS => match pss_hash(parameters) {
            Some(SHA_384) => &digest::SHA384,
            Some(SHA_512) => &digest::SHA512,
            None | Some(SHA_1 | SHA_256) => &digest::SHA256,
            Some(_) => return None,
        },
        MD5_WITH_RSA | SHA1_WITH_RSA | SHA256_WITH_RSA | SHA1_WITH_ECDSA | SHA256_WITH_ECDSA => {
            &digest::SHA256
        }
        SHA384_WITH_RSA | SHA384_WITH_ECDSA => &digest::SHA384,
        SHA512_WITH_RSA | SHA512_WITH_ECDSA => &digest::SHA512,
        _ => return None,
    };
    Some(digest::digest(hash, certificate).as_ref().to_vec())
}

const SEQUENCE: u8 = 0x30;
const OBJECT_IDENTIFIER: u8 = 0x06;
/// `[0]`, the tag of the first parameter of RSASSA-PSS.
const FIRST: u8 = 0xa0;
// Object identifiers, encoded.
const MD5_WITH_RSA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x04";
const SHA1_WITH_RSA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x05";
const RSA_PSS: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0a";
const SHA256_WITH_RSA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0b";
const SHA384_WITH_RSA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0c";
const SHA512_WITH_RSA: &[u8] = b"\x2a\x86\x48\x86\xf7\x0d\x01\x01\x0d";
const SHA1_WITH_ECDSA: &[u8] = b"\x2a\x86\x48\xce\x3d\x04\x01";
const SHA256_WITH_ECDSA: &[u8] = b"\x2a\x86\x48\xce\x3d\x04\x03\x02";
const SHA384_WITH_ECDSA: &[u8] = b"\x2a\x86\x48\xce\x3d\x04\x03\x03";
const SHA512_WITH_ECDSA: &[u8] = b"\x2a\x86\x48\xce\x3d\x04\x03\x04";
const SHA_1: &[u8] = b"\x2b\x0e\x03\x02\x1a";
const SHA_256: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x02\x01";
const SHA_384: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x02\x02";
const SHA_512: &[u8] = b"\x60\x86\x48\x01\x65\x03\x04\x02\x03";

/// The hash function in the parameters of RSASSA-PSS.
fn pss_hash(parameters: &[u8]) -> Option<&[u8]> {
    let (parameters, _) = der(SEQUENCE, parameters)?;
    let (first, _) = der(FIRST, parameters)?;
    let (algorithm, _) = der(SEQUENCE, first)?;
    Some(der(OBJECT_IDENTIFIER, algorithm)?.0)
}

/// The contents of the first value in `bytes`, if it has this tag, and what follows it.
fn der(tag: u8, bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (&found, rest) = bytes.split_first()?;
    let (&first, rest) = rest.split_first()?;
    let (length, rest) = match usize::from(first) {
        short @ 0..=127 => (short, rest),
        long => {
            let digits = long - 128;
            if digits == 0 || digits > 4 || digits > rest.len() {
                return None;
            }
            let (digits, rest) = rest.split_at(digits);
            (digits.iter().fold(0, |length, digit| length << 8 | usize::from(*digit)), rest)
        }
    };
    (found == tag && length <= rest.len()).then(|| rest.split_at(length))
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

#[cfg(test)]
mod tests {
    use ring::digest::{self, Algorithm};

    use super::{
        FIRST, OBJECT_IDENTIFIER, RSA_PSS, SEQUENCE, SHA_512, SHA1_WITH_RSA, SHA256_WITH_ECDSA,
        SHA384_WITH_ECDSA, SHA512_WITH_RSA, end_point,
    };

    fn value(tag: u8, contents: &[u8]) -> Vec<u8> {
        let length = u16::try_from(contents.len()).unwrap().to_be_bytes();
        [&[tag, 0x82][..], &length, contents].concat()
    }

    /// The parts of a certificate that are read.
    fn certificate(algorithm: &[u8], parameters: &[u8]) -> Vec<u8> {
        let body = value(SEQUENCE, &[7; 300]);
        let name = value(OBJECT_IDENTIFIER, algorithm);
        let algorithm = value(SEQUENCE, &[name, parameters.to_vec()].concat());
        value(SEQUENCE, &[body, algorithm, vec![3, 2, 0, 1]].concat())
    }

    fn hashed(algorithm: &'static Algorithm, certificate: &[u8]) -> Vec<u8> {
        digest::digest(algorithm, certificate).as_ref().to_vec()
    }

    #[test]
    fn certificate_is_hashed_like_its_signature() {
        for (name, hash) in [
            (SHA1_WITH_RSA, &digest::SHA256),
            (SHA256_WITH_ECDSA, &digest::SHA256),
            (SHA384_WITH_ECDSA, &digest::SHA384),
            (SHA512_WITH_RSA, &digest::SHA512),
            (RSA_PSS, &digest::SHA256),
        ] {
            let certificate = certificate(name, &[5, 0]);
            assert_eq!(end_point(&certificate), Some(hashed(hash, &certificate)));
        }
        let inner = value(SEQUENCE, &value(OBJECT_IDENTIFIER, SHA_512));
        let pss = certificate(RSA_PSS, &value(SEQUENCE, &value(FIRST, &inner)));
        assert_eq!(end_point(&pss), Some(hashed(&digest::SHA512, &pss)));
        let ed25519 = certificate(b"\x2b\x65\x70", &[]);
        assert_eq!(end_point(&ed25519), None);
    }

    #[test]
    fn malformed_certificate_is_not_hashed() {
        let good = certificate(SHA256_WITH_ECDSA, &[]);
        for end in 0..good.len() {
            assert_eq!(end_point(&good[..end]), None, "{end}");
        }
        for odd in [&[0x30, 0x80, 0, 0][..], &[0x30, 0x85, 1, 1, 1, 1, 1], &[0x30, 0x84, 255, 255]]
        {
            assert_eq!(end_point(odd), None);
        }
    }
}
