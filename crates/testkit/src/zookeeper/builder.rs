//! A server's options and its configuration file.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::process::Command;

use tempfile::TempDir;

use super::ZooKeeper;
use crate::cluster::Clustered as _;
use crate::java::{JAVA, zookeeper_classpath};
use crate::ports::{free_port, on_free_port};
use crate::server::Server;
use crate::tls::Certificates;

const CONFIG: &str = "zoo.cfg";
const MAIN: &str = "org.apache.zookeeper.server.quorum.QuorumPeerMain";

/// As little memory as a server needs; quick to start rather than fast later.
const MACHINE: [&str; 10] = [
    "-Xmx128m",
    "-Xss512k",
    "-XX:+UseSerialGC",
    "-XX:TieredStopAtLevel=1",
    "-Xshare:auto",
    // It would leave a file behind when killed.
    "-XX:-UsePerfData",
    // The number of threads depends on the processors.
    "-XX:ActiveProcessorCount=1",
    "-Dzookeeper.admin.enableServer=false",
    "-Djava.net.preferIPv4Stack=true",
    // How often a lone member retries the others, in milliseconds. The default is up to a minute.
    "-Dzookeeper.fastleader.maxNotificationInterval=1000",
];

/// Collects options; [`start`](Self::start) starts the server.
#[derive(Clone, Debug)]
pub struct Builder {
    tick_time: u32,
    min_session_timeout: Option<u32>,
    max_session_timeout: u32,
    tls: bool,
    lines: Vec<(String, String)>,
}

impl Default for Builder {
    fn default() -> Self {
        Self {
            tick_time: 500,
            min_session_timeout: None,
            max_session_timeout: 60_000,
            tls: false,
            lines: Vec::new(),
        }
    }
}

impl Builder {
    /// The length of a tick in milliseconds; the default is 500.
    #[must_use]
    pub fn tick_time(mut self, milliseconds: u32) -> Self {
        self.tick_time = milliseconds;
        self
    }

    /// The shortest session timeout, in milliseconds; the default is two ticks.
    #[must_use]
    pub fn min_session_timeout(mut self, milliseconds: u32) -> Self {
        self.min_session_timeout = Some(milliseconds);
        self
    }

    /// The longest session timeout, in milliseconds; the default is a minute, as ZooKeeper's is with its own ticks.
    #[must_use]
    pub fn max_session_timeout(mut self, milliseconds: u32) -> Self {
        self.max_session_timeout = milliseconds;
        self
    }

    /// The server also listens at [`ZooKeeper::tls_address`], with a certificate signed by
    /// [`ZooKeeper::ca_path`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Adds a line of configuration.
    #[must_use]
    pub fn config(mut self, name: &str, value: &str) -> Self {
        self.lines.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server and waits until it serves.
    pub fn start(self) -> io::Result<ZooKeeper> {
        on_free_port(|port| {
            let directory = directory()?;
            let zookeeper = self.launch(directory, port, None)?;
            zookeeper.wait_until_up()?;
            Ok(zookeeper)
        })
    }

    /// Starts the server without waiting. `door` is the SOCKS5 server through which it reaches the others.
    pub(super) fn launch(
        &self,
        directory: TempDir,
        port: u16,
        door: Option<SocketAddr>,
    ) -> io::Result<ZooKeeper> {
        let place = directory.path();
        let certificates = self.tls.then(|| Certificates::make(place)).transpose()?;
        let tls = match certificates {
            Some(certificates) => Some((free_port()?, certificates)),
            None => None,
        };
        let mut config = self.configuration(place, port);
        if let Some((port, certificates)) = &tls {
            config += &secure(place, *port, certificates)?;
        }
        fs::write(place.join(CONFIG), config)?;
        let mut command = Command::new("java");
        command.current_dir(place).args(["-cp", &zookeeper_classpath()?]).args(MACHINE);
        if let Some(door) = door {
            command.arg(format!("-DsocksProxyHost={}", door.ip()));
            command.arg(format!("-DsocksProxyPort={}", door.port()));
            // Otherwise Java would not use the door for loopback addresses.
            command.arg("-DsocksNonProxyHosts=");
        }
        command.arg(MAIN).arg(place.join(CONFIG));
        // Java takes options from these variables, and logs that it does.
        command.env_remove("JAVA_TOOL_OPTIONS").env_remove("JDK_JAVA_OPTIONS");
        let server = Server::spawn("zookeeper", JAVA, command, directory, port)?;
        Ok(ZooKeeper { server, tls })
    }

    fn configuration(&self, directory: &Path, port: u16) -> String {
        let mut text = String::new();
        let mut line = |name: &str, value: &str| {
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{name}={value}");
        };
        line("dataDir", &directory.join("data").display().to_string());
        line("clientPortAddress", "127.0.0.1");
        line("clientPort", &port.to_string());
        line("tickTime", &self.tick_time.to_string());
        let shortest = self.min_session_timeout.unwrap_or(2 * self.tick_time);
        line("minSessionTimeout", &shortest.to_string());
        line("maxSessionTimeout", &self.max_session_timeout.to_string());
        line("maxClientCnxns", "0");
        line("forceSync", "yes");
        // In kilobytes. The default is 64 MB for each server.
        line("preAllocSize", "1024");
        line("admin.enableServer", "false");
        line("4lw.commands.whitelist", "*");
        for (name, value) in &self.lines {
            line(name, value);
        }
        text
    }
}

/// A directory for a server.
pub(super) fn directory() -> io::Result<TempDir> {
    let directory = tempfile::Builder::new().prefix("fencepost-zookeeper-").tempdir()?;
    fs::create_dir(directory.path().join("data"))?;
    Ok(directory)
}

/// The configuration lines for TLS. Key and certificate must be in one file.
fn secure(directory: &Path, port: u16, certificates: &Certificates) -> io::Result<String> {
    let both = directory.join("server.pem");
    let key = fs::read_to_string(certificates.key())?;
    fs::write(&both, key + &fs::read_to_string(certificates.certificate())?)?;
    Ok(format!(
        "secureClientPort={port}\n\
         secureClientPortAddress=127.0.0.1\n\
         serverCnxnFactory=org.apache.zookeeper.server.NettyServerCnxnFactory\n\
         ssl.keyStore.location={}\n\
         ssl.keyStore.type=PEM\n\
         ssl.clientAuth=none\n\
         ssl.enabledProtocols=TLSv1.3,TLSv1.2\n",
        both.display()
    ))
}
