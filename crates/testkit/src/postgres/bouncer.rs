//! A PgBouncer in front of a server, in transaction mode: a client has a server connection for one transaction, and maybe
//! another for the next.

use std::fmt::Write as _;
use std::fs;
use std::io;
use std::net::TcpStream;
use std::ops::Deref;
use std::path::Path;

use super::builder::directory;
use super::install::{as_user, give};
use super::{Postgres, SUPERUSER};
use crate::ports::on_free_port;
use crate::server::Server;

/// Debian installs it outside of most users' `PATH`.
const PROGRAM: &str = "/usr/sbin/pgbouncer";

/// A running PgBouncer. Dropping it kills it and removes its files.
#[derive(Debug)]
pub struct PgBouncer {
    server: Server,
}

impl PgBouncer {
    /// Starts one for all databases of this server, and waits until it serves. Clients log in as the superuser or as one of
    /// `users`. `pool` is the number of server connections per database and user.
    pub fn start(postgres: &Postgres, users: &[&str], pool: u32) -> io::Result<Self> {
        on_free_port(|port| {
            let directory = directory("fencepost-pgbouncer-")?;
            let path = directory.path();
            let users_file = path.join("users.txt");
            let mut lines = String::new();
            for user in [&[SUPERUSER], users].concat() {
                let _ = writeln!(lines, "\"{user}\" \"\"");
            }
            fs::write(&users_file, lines)?;
            let config_file = path.join("pgbouncer.ini");
            fs::write(&config_file, config(postgres.port(), port, pool, &users_file))?;
            give(&users_file)?;
            give(&config_file)?;
            let mut command = as_user(Path::new(PROGRAM).as_os_str())?;
            command.current_dir(path).arg(&config_file);
            let server =
                Server::spawn("pgbouncer", "pgbouncer and util-linux", command, directory, port)?;
            let bouncer = Self { server };
            // Another process has its port only if it reports so and ends.
            bouncer.server.wait_until(|| Ok(TcpStream::connect(bouncer.address()).is_ok()))?;
            Ok(bouncer)
        })
    }

    /// `postgres://postgres@127.0.0.1:PORT/DATABASE`.
    #[must_use]
    pub fn url_of(&self, database: &str) -> String {
        format!("postgres://{SUPERUSER}@127.0.0.1:{}/{database}", self.port())
    }
}

impl Deref for PgBouncer {
    type Target = Server;

    fn deref(&self) -> &Server {
        &self.server
    }
}

/// Retries a restarting server after one second, not fifteen.
fn config(to: u16, port: u16, pool: u32, users: &Path) -> String {
    format!(
        "[databases]\n\
         * = host=127.0.0.1 port={to}\n\
         [pgbouncer]\n\
         listen_addr = 127.0.0.1\n\
         listen_port = {port}\n\
         unix_socket_dir =\n\
         auth_type = trust\n\
         auth_file = {}\n\
         pool_mode = transaction\n\
         default_pool_size = {pool}\n\
         max_client_conn = 500\n\
         server_login_retry = 1\n",
        users.display()
    )
}
