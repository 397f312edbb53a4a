//! A server's options and its files.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::Path;
use std::process::Command;
use std::sync::{Arc, Weak};

use tempfile::TempDir;

use super::install::{give, run};
use super::{Postgres, SUPERUSER, program};
use crate::ports::on_free_port;
use crate::server::{Server, missing};
use crate::shared::{Slot, shared};
use crate::tls::Certificates;

/// Collects options; [`start`](Self::start) starts the server.
#[derive(Clone, Debug, Default)]
pub struct Builder {
    tls: bool,
    settings: Vec<(String, String)>,
}

impl Builder {
    /// Clients may speak TLS; the server's certificate is signed by [`Postgres::ca_path`].
    #[must_use]
    pub fn tls(mut self) -> Self {
        self.tls = true;
        self
    }

    /// Adds a line of configuration, such as `fsync`, `off`. It overrides the testkit's, and `ALTER SYSTEM` overrides both.
    #[must_use]
    pub fn setting(mut self, name: &str, value: &str) -> Self {
        self.settings.push((name.to_owned(), value.to_owned()));
        self
    }

    /// Starts the server and waits until it serves.
    pub fn start(self) -> io::Result<Postgres> {
        let template = Template::made()?;
        on_free_port(|port| {
            let directory = directory("fencepost-postgres-")?;
            let data = directory.path().join("data");
            run(Command::new("cp").arg("-a").arg(template.0.path().join("data")).arg(&data))?;
            let settings = self.settings.clone();
            let tls = self.tls.then(|| certificates(directory.path())).transpose()?;
            launch(directory, port, settings, tls, Some(template.clone()))
        })
    }
}

/// The output of `initdb`. That takes a second, a copy of it does not.
#[derive(Debug)]
pub(super) struct Template(TempDir);

impl Template {
    fn made() -> io::Result<Arc<Self>> {
        static MADE: Slot<Template> = Slot::new(Weak::new());
        shared(&MADE, || {
            let directory = directory("fencepost-postgres-template-")?;
            let mut command = program("initdb")?;
            command.current_dir(directory.path()).arg("-D").arg(directory.path().join("data"));
            command.args(["-U", SUPERUSER, "--auth=trust", "--no-sync", "--no-instructions"]);
            run(command.args(["--encoding=UTF8", "--no-locale"]))?;
            Ok(Self(directory))
        })
    }
}

/// A directory owned by the server's user.
pub(super) fn directory(prefix: &str) -> io::Result<TempDir> {
    let directory = tempfile::Builder::new().prefix(prefix).tempdir()?;
    give(directory.path())?;
    Ok(directory)
}

fn certificates(directory: &Path) -> io::Result<Certificates> {
    let certificates = Certificates::make(directory)?;
    for file in [certificates.certificate(), certificates.key()] {
        give(&file)?;
    }
    Ok(certificates)
}

fn launch(
    directory: TempDir,
    port: u16,
    mut settings: Vec<(String, String)>,
    certificates: Option<Certificates>,
    template: Option<Arc<Template>>,
) -> io::Result<Postgres> {
    let path = directory.path();
    let mut ours = vec![
        ("port", port.to_string()),
        ("listen_addresses", "127.0.0.1".into()),
        ("unix_socket_directories", path.display().to_string()),
        ("max_connections", "400".into()),
        ("shared_buffers", "16MB".into()),
        ("logging_collector", "off".into()),
    ];
    if let Some(certificates) = &certificates {
        ours.push(("ssl", "on".into()));
        ours.push(("ssl_cert_file", certificates.certificate().display().to_string()));
        ours.push(("ssl_key_file", certificates.key().display().to_string()));
    }
    // The last line of a setting counts.
    settings.splice(..0, ours.into_iter().map(|(name, value)| (name.to_owned(), value)));
    let data = path.join("data");
    let mut lines = String::from("\n");
    for (name, value) in settings {
        let _ = writeln!(lines, "{name} = '{}'", value.replace('\'', "''"));
    }
    OpenOptions::new()
        .append(true)
        .open(data.join("postgresql.conf"))?
        .write_all(lines.as_bytes())?;
    let mut command = program("postgres")?;
    command.current_dir(path).arg("-D").arg(data);
    let server = Server::spawn("postgres", "postgresql and util-linux", command, directory, port)?;
    let postgres = Postgres {
        server,
        frozen: parking_lot::Mutex::default(),
        certificates,
        _template: template,
    };
    postgres.wait_until_up()?;
    Ok(postgres)
}

pub(super) fn standby_of(primary: &Postgres, name: &str) -> io::Result<Postgres> {
    on_free_port(|port| {
        let directory = directory("fencepost-postgres-standby-")?;
        let data = directory.path().join("data");
        let mut command = program("pg_basebackup")?;
        command.current_dir(directory.path()).arg("-D").arg(&data);
        command.args(["-R", "-X", "stream", "--checkpoint=fast", "--no-sync"]);
        run(command.args(["-d", &primary.url()])).map_err(|error| missing(error, "postgresql"))?;
        // On a slow machine the primary must not remove the log that it needs: it follows by its own slot.
        let slot = format!("standby_{}", name.replace(|c: char| !c.is_ascii_alphanumeric(), "_"));
        primary.psql(&format!("select pg_create_physical_replication_slot('{slot}')"))?;
        // The copy names the primary's socket directory, which does not exist here.
        fs::remove_file(data.join("postmaster.pid")).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        let settings = [("cluster_name", name), ("primary_slot_name", &slot)];
        let settings = settings.map(|(name, value)| (name.to_owned(), value.to_owned()));
        launch(directory, port, settings.into(), None, None)
    })
}
