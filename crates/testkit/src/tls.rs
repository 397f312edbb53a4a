//! Certificates for servers that speak TLS, made with the `openssl` command.
//!
//! A test's own certificate authority signs one server certificate for `localhost` and `127.0.0.1`, which clients may also
//! present where a server asks for one. The authority's certificate cannot be the server's: Rust clients refuse a server
//! certificate that is an authority. Keys are elliptic, because an RSA key may take a second to generate.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Our own configuration, because the system's defaults differ.
const CONFIG: &str = "\
[req]
distinguished_name = name
[name]
[authority]
basicConstraints = critical, CA:TRUE
keyUsage = critical, keyCertSign, cRLSign
subjectKeyIdentifier = hash
[server]
basicConstraints = critical, CA:FALSE
keyUsage = critical, digitalSignature
extendedKeyUsage = serverAuth, clientAuth
subjectAltName = DNS:localhost, IP:127.0.0.1
subjectKeyIdentifier = hash
authorityKeyIdentifier = keyid
";

/// An authority and a server certificate, in files, good for a month.
#[derive(Clone, Debug)]
pub struct Certificates {
    directory: PathBuf,
}

impl Certificates {
    /// Creates them in this directory.
    pub fn make(directory: &Path) -> io::Result<Self> {
        let certificates = Self { directory: directory.to_owned() };
        let config = directory.join("openssl.cnf");
        fs::write(&config, CONFIG)?;
        certificates.request(&config, "authority", "ca", "/CN=fencepost testkit")?;
        certificates.request(&config, "server", "server", "/CN=localhost")?;
        Ok(certificates)
    }

    /// The authority's certificate, which a client must trust.
    #[must_use]
    pub fn ca(&self) -> PathBuf {
        self.directory.join("ca.crt")
    }

    /// The server's certificate.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.directory.join("server.crt")
    }

    /// The server's private key.
    #[must_use]
    pub fn key(&self) -> PathBuf {
        self.directory.join("server.key")
    }

    fn request(&self, config: &Path, kind: &str, file: &str, name: &str) -> io::Result<()> {
        let mut command = Command::new("openssl");
        command.args(["req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1"]);
        command.args(["-nodes", "-days", "30", "-extensions", kind, "-subj", name]);
        command.arg("-config").arg(config);
        command.arg("-keyout").arg(self.directory.join(format!("{file}.key")));
        command.arg("-out").arg(self.directory.join(format!("{file}.crt")));
        if kind == "server" {
            command.arg("-CA").arg(self.ca()).arg("-CAkey").arg(self.directory.join("ca.key"));
        }
        let output = command.output().map_err(|error| {
            let message =
                format!("wanted a certificate: install openssl (scripts/test does): {error}");
            io::Error::new(error.kind(), message)
        })?;
        if output.status.success() {
            return Ok(());
        }
        let said = String::from_utf8_lossy(&output.stderr);
        Err(io::Error::other(format!("wanted a certificate, openssl said:\n{said}")))
    }
}
