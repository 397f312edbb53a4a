//! One server, and the driver's client for it.

use std::fmt;

use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, IntoConnectionInfo as _, RedisConnectionInfo,
    TlsCertificates,
};

use crate::error::{Error, Result};
use crate::tls::{TlsFiles, TlsOptions, Verify};
use crate::url::Host;

/// One server and its client.
#[derive(Clone)]
pub struct Address {
    pub client: Client,
    /// `host:port` or the socket's path, without secrets, for people.
    pub shown: String,
}

impl Address {
    /// The addresses of these servers, which are valid and have ports.
    pub(super) fn all(
        hosts: &[Host],
        tls: &TlsOptions,
        settings: &RedisConnectionInfo,
    ) -> Result<Vec<Self>> {
        let files = tls.read()?;
        let encrypted = files.is_some();
        let certificates = files.map(certificates).transpose()?.flatten();
        let address = |host: &Host| {
            let shown = host.to_string();
            let failed = |error: redis::RedisError| {
                Error::invalid(format!("invalid connection options for {shown}: check them"))
                    .with_source(error)
            };
            let info = location(host, encrypted)?.into_connection_info().map_err(failed)?;
            let tcp = TcpSettings::default().set_nodelay(true);
            let info = info.set_tcp_settings(tcp).set_redis_settings(settings.clone());
            let client = match &certificates {
                Some(certificates) => Client::build_with_tls(info, certificates.clone()),
                None => Client::open(info),
            };
            Ok(Self { client: client.map_err(failed)?, shown })
        };
        hosts.iter().map(address).collect()
    }

    /// The number of the database.
    pub fn db(&self) -> i64 {
        self.client.get_connection_info().redis_settings().db()
    }
}

fn location(host: &Host, encrypted: bool) -> Result<ConnectionAddr> {
    let Host { name, port } = host.clone();
    match (name.as_str(), port) {
        ("0.0.0.0" | "::", _) => {
            Err(Error::invalid(format!("\"{name}\" is a wildcard address: name the server")))
        }
        (_, Some(port)) if !host.is_socket() => Ok(if encrypted {
            ConnectionAddr::TcpTls { host: name, port, insecure: false, tls_params: None }
        } else {
            ConnectionAddr::Tcp(name, port)
        }),
        _ if encrypted => Err(Error::invalid(format!(
            "there is no TLS on the socket {name}: leave out tls, ca and the client certificate"
        ))),
        _ => Ok(ConnectionAddr::Unix(name.into())),
    }
}

/// The certificates for the driver; none without files.
fn certificates(files: TlsFiles) -> Result<Option<TlsCertificates>> {
    if files.ca.is_none() && files.cert.is_none() {
        return Ok(None);
    }
    // The driver checks some of it only when it connects.
    files.client_config(Verify::SignerAndName)?;
    let client_tls = match (files.cert, files.key) {
        (Some(cert), Some(key)) => {
            Some(ClientTlsConfig { client_cert: cert.bytes, client_key: key.bytes })
        }
        _ => None,
    };
    Ok(Some(TlsCertificates { client_tls, root_cert: files.ca.map(|ca| ca.bytes) }))
}

/// Explains why an address does not answer like a Redis, for the servers that are often named by mistake.
pub async fn answers_like(address: &Address) -> Option<String> {
    let ConnectionAddr::Tcp(host, port) = address.client.get_connection_info().addr() else {
        return None;
    };
    let shown = &address.shown;
    let answer = first_bytes(host, *port, b"GET / HTTP/1.0\r\n\r\n").await;
    if answer.is_ok_and(|answer| answer.starts_with(b"HTTP/")) {
        return Some(format!(
            "{shown} answered like an HTTP server: the URL must name a Redis server"
        ));
    }
    let answer = first_bytes(host, *port, &client_hello()).await.ok()?;
    // An alert or a handshake, of any version.
    let tls = matches!(*answer, [0x15 | 0x16, 0x03, ..]);
    tls.then(|| format!("{shown} answered with TLS: write rediss:// (redlock: add tls=true)"))
}

/// The shortest TLS 1.2 greeting: every TLS server replies, if only to ask for another version.
fn client_hello() -> Vec<u8> {
    // A handshake record of 45 bytes with a ClientHello of 41: the version; 32 bytes that need not be random here; no
    // session, one cipher suite, no compression.
    let (start, end) = ([0x16, 3, 1, 0, 45, 1, 0, 0, 41, 3, 3], [0, 0, 2, 0xc0, 0x2f, 1, 0]);
    [&start[..], &[0; 32], &end[..]].concat()
}

async fn first_bytes(host: &str, port: u16, question: &[u8]) -> std::io::Result<Vec<u8>> {
    let stream = tokio::net::TcpStream::connect((host, port)).await?;
    stream.writable().await?;
    // Short, and the connection is new: all of it fits.
    stream.try_write(question)?;
    let mut answer = vec![0; 8];
    loop {
        stream.readable().await?;
        match stream.try_read(&mut answer) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            length => {
                answer.truncate(length?);
                return Ok(answer);
            }
        }
    }
}

// The client has the password.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown)
    }
}
