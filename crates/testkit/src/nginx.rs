//! The installed `nginx`: an HTTP service behind a gateway, and a reverse proxy for comparison.
//!
//! Each is one process without a master (`master_process off`): a killed master would leave its workers behind. For two
//! workers start two that share a port (`reuseport`).

use std::fs;
use std::io;
use std::net::TcpStream;
use std::ops::Deref;
use std::process::Command;

use crate::ports::on_free_port;
use crate::server::Server;

/// Debian installs it outside of most users' `PATH`.
const PROGRAM: &str = "/usr/sbin/nginx";

/// A running nginx. Dropping it kills it and removes its files.
#[derive(Debug)]
pub struct Nginx {
    server: Server,
}

impl Nginx {
    /// A server of files for WebDAV clients: PUT, DELETE, MKCOL, COPY and MOVE on files in its directory `files`.
    pub fn dav() -> io::Result<Self> {
        on_free_port(|port| {
            Self::start(
                port,
                "",
                "root files; location / { dav_methods PUT DELETE MKCOL COPY MOVE; \
                 create_full_put_path on; client_max_body_size 64m; }",
            )
        })
    }

    /// One that listens on `port`, with these lines in its blocks `http` and `server`.
    pub fn start(port: u16, http: &str, server: &str) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("fencepost-nginx-").tempdir()?;
        let path = directory.path();
        fs::create_dir(path.join("files"))?;
        let temporary: String = ["client_body", "proxy", "fastcgi", "uwsgi", "scgi"]
            .map(|kind| format!("{kind}_temp_path {kind};\n"))
            .concat();
        let config = format!(
            "user root;\nmaster_process off;\ndaemon off;\npid nginx.pid;\nerror_log stderr;\n\
             events {{ worker_connections 4096; }}\n\
             http {{\naccess_log off;\nkeepalive_requests 1000000000;\n{temporary}{http}\n\
             server {{ listen 127.0.0.1:{port} reuseport; {server} }}\n}}\n"
        );
        let file = path.join("nginx.conf");
        fs::write(&file, config)?;
        let mut command = Command::new(PROGRAM);
        command.arg("-e").arg("stderr").arg("-p").arg(path).arg("-c").arg(&file);
        let server = Server::spawn("nginx", "nginx", command, directory, port)?;
        let nginx = Self { server };
        nginx.server.wait_until(|| Ok(TcpStream::connect(nginx.address()).is_ok()))?;
        Ok(nginx)
    }
}

impl Deref for Nginx {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}
