//! The installed version and the user that runs it.

use std::ffi::OsStr;
use std::fs;
use std::io;
use std::os::unix::fs::chown;
use std::path::{Path, PathBuf};
use std::process::Command;

use rustix::process::geteuid;

use crate::server::missing;

/// Where Debian installs the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The users that may run a server if the tests run as root, which may not.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// The newest PostgreSQL of this machine.
#[derive(Clone, Debug)]
pub(super) struct Installed {
    bin: PathBuf,
}

impl Installed {
    pub(super) fn find() -> io::Result<Self> {
        let none = || {
            let message = format!("wanted PostgreSQL: there is none in {VERSIONS}");
            missing(io::Error::new(io::ErrorKind::NotFound, message), "postgresql")
        };
        let entries = fs::read_dir(VERSIONS).map_err(|_| none())?;
        let versions = entries.filter_map(|entry| {
            let path = entry.ok()?.path();
            let version: u32 = path.file_name()?.to_str()?.parse().ok()?;
            let bin = path.join("bin");
            bin.join("postgres").is_file().then_some((version, bin))
        });
        let (_, bin) = versions.max().ok_or_else(none)?;
        Ok(Self { bin })
    }

    /// One of its programs, run as the user that owns the server's files.
    pub(super) fn command(&self, program: &str) -> io::Result<Command> {
        as_user(self.bin.join(program).as_os_str())
    }
}

/// The program as a user that is not root.
///
/// It gets `QUIT` when the test process ends: PostgreSQL then ends its connections and frees its shared memory, which after
/// a `KILL` nobody would. It is requested here, because the kernel forgets it when a process changes its user.
pub(super) fn as_user(program: &OsStr) -> io::Result<Command> {
    let mut command = Command::new("setpriv");
    command.args(["--pdeathsig", "QUIT"]);
    if let Some(user) = user()? {
        command.args([format!("--reuid={}", user.uid), format!("--regid={}", user.gid)]);
        command.arg("--clear-groups");
    }
    command.arg("--").arg(program);
    // libpq looks for certificates there, and may lack permission.
    command.env("HOME", "/");
    for (name, _) in std::env::vars_os() {
        // A user's settings for psql must not change the results.
        if name.to_str().is_some_and(|name| name.starts_with("PG")) {
            command.env_remove(name);
        }
    }
    Ok(command)
}

/// Gives a file or directory to the server's user.
pub(super) fn give(path: &Path) -> io::Result<()> {
    match user()? {
        Some(user) => chown(path, Some(user.uid), Some(user.gid)),
        None => Ok(()),
    }
}

/// Runs a program to its end and returns its output.
pub(super) fn run(command: &mut Command) -> io::Result<String> {
    let output = command.output().map_err(|error| missing(error, "postgresql and util-linux"))?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(io::Error::other(format!("{command:?}: {said}")))
}

/// Runs `psql` with this SQL.
pub(super) fn psql(url: &str, sql: &str) -> io::Result<String> {
    let mut command = Installed::find()?.command("psql")?;
    command.args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-d", url, "-c", sql]);
    // The server's user may not enter the current directory.
    run(command.current_dir("/"))
}

struct User {
    uid: u32,
    gid: u32,
}

/// The server's user; none if the tests do not run as root.
fn user() -> io::Result<Option<User>> {
    if !geteuid().is_root() {
        return Ok(None);
    }
    let users = fs::read_to_string("/etc/passwd")?;
    let found = USERS.iter().find_map(|name| {
        let mut fields = users.lines().map(|line| line.split(':'));
        let mut line = fields.find_map(|mut line| (line.next() == Some(name)).then_some(line))?;
        let uid = line.nth(1)?.parse().ok()?;
        let gid = line.next()?.parse().ok()?;
        Some(User { uid, gid })
    });
    let none =
        || io::Error::other(format!("PostgreSQL does not run as root; wanted one of {USERS:?}"));
    Ok(Some(found.ok_or_else(none)?))
}
