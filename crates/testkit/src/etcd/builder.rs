//! A server's options and its arguments.

use std::io;
use std::net::SocketAddr;
use std::process::Command;

use tempfile::TempDir;

use super::{Credentials, Etcd};
use crate::cluster::Clustered as _;
use crate::ports::{free_port, on_free_port};
use crate::server::Server;
use crate::tls::Certificates;

/// Collects options; [`start`](Self::start) starts the server.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    tls: bool,
    auth: Option<Credentials>,
    args: Vec<String>,
}

impl Builder {
    /// Clients have to speak TLS; the server's certificate is signed by [`Etcd::ca_path`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Clients must log in. This user may read and write every key; root has the same password.
    #[must_use]
    pub fn auth(mut self, user: &str, password: &str) -> Self {
        self.auth = Some(Credentials { user: user.to_owned(), password: password.to_owned() });
        self
    }

    /// Adds an argument, such as `--max-txn-ops=64`, which overrides the testkit's.
    #[must_use]
    pub fn arg(mut self, arg: &str) -> Self {
        self.args.push(arg.to_owned());
        self
    }

    /// Starts the server and waits until it serves and, if configured, requires a login.
    pub fn start(self) -> io::Result<Etcd> {
        let mut etcd = on_free_port(|port| {
            let peer_url = format!("http://127.0.0.1:{}", free_port()?);
            let place = ServerFiles::new(port)?;
            let others = format!("{}={peer_url}", place.name);
            let mut args = vec![
                format!("--listen-peer-urls={peer_url}"),
                format!("--initial-advertise-peer-urls={peer_url}"),
                // A lone member waits this long before it elects itself.
                "--heartbeat-interval=10".into(),
                "--election-timeout=100".into(),
            ];
            args.extend(self.args.iter().cloned());
            let etcd = launch(place, self.tls, &others, &args, None)?;
            etcd.wait_until_up()?;
            Ok(etcd)
        })?;
        if let Some(auth) = self.auth {
            demand_login(&etcd, &auth)?;
            etcd.credentials = Some(auth);
        }
        Ok(etcd)
    }
}

/// Where a server will be.
pub(super) struct ServerFiles {
    directory: TempDir,
    pub(super) name: String,
    port: u16,
}

impl ServerFiles {
    pub(super) fn new(port: u16) -> io::Result<Self> {
        let directory = tempfile::Builder::new().prefix("fencepost-etcd-").tempdir()?;
        // No two directories have the same name while both exist.
        let name = directory.path().file_name().unwrap_or_default().to_string_lossy().into_owned();
        Ok(Self { directory, name, port })
    }
}

/// Starts a server without waiting. `door` is the SOCKS5 server through which it reaches the others.
pub(super) fn launch(
    place: ServerFiles,
    tls: bool,
    initial_cluster: &str,
    args: &[String],
    door: Option<SocketAddr>,
) -> io::Result<Etcd> {
    let ServerFiles { directory, name, port } = place;
    let path = directory.path();
    let certificates = tls.then(|| Certificates::make(path)).transpose()?;
    let client_url = format!("{}://127.0.0.1:{port}", if tls { "https" } else { "http" });
    let mut command = Command::new("etcd");
    command.current_dir(path).arg(format!("--data-dir={}", path.join("data").display()));
    command.arg(format!("--name={name}"));
    command.arg(format!("--listen-client-urls={client_url}"));
    command.arg(format!("--advertise-client-urls={client_url}"));
    command.arg(format!("--initial-cluster={initial_cluster}"));
    command.args(["--initial-cluster-token=fencepost-testkit", "--initial-cluster-state=new"]);
    // A password need not be hard to guess here.
    command.args(["--bcrypt-cost=4", "--logger=zap", "--log-outputs=stderr"]);
    if let Some(certificates) = &certificates {
        command.arg(format!("--cert-file={}", certificates.certificate().display()));
        command.arg(format!("--key-file={}", certificates.key().display()));
    }
    command.args(args);
    for (variable, _) in std::env::vars_os() {
        let Some(name) = variable.to_str() else { continue };
        // etcd refuses a setting that comes twice, and the door must be the only way out.
        if name.starts_with("ETCD_") || name.to_lowercase().ends_with("_proxy") {
            command.env_remove(name);
        }
    }
    if let Some(door) = door {
        command.env("HTTP_PROXY", format!("socks5://{door}"));
    }
    let server = Server::spawn("etcd", "etcd-server", command, directory, port)?;
    Ok(Etcd { server, name, certificates, credentials: None })
}

fn demand_login(etcd: &Etcd, auth: &Credentials) -> io::Result<()> {
    let Credentials { user, password } = auth;
    let add = |user: &str| {
        etcd.etcdctl(&["user", "add", user, &format!("--new-user-password={password}")])
    };
    add("root")?;
    if user != "root" {
        add(user)?;
        etcd.etcdctl(&["role", "add", "everything"])?;
        let all = ["--prefix=true", "everything", "readwrite", ""];
        etcd.etcdctl(&[&["role", "grant-permission"][..], &all].concat())?;
        etcd.etcdctl(&["user", "grant-role", user, "everything"])?;
    }
    // This also gives root its role.
    etcd.etcdctl(&["auth", "enable"])?;
    Ok(())
}
