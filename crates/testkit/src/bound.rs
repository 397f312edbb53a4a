//! Starting servers so that none outlives the test run.
//!
//! A handle kills its server on drop, but a test process that is killed, or ends with a server in a `static`, drops nothing.
//! So servers are started through `setpriv --pdeathsig KILL` (util-linux): it asks the kernel to kill this process when its
//! parent ends, and then becomes the server, with the same pid. Doing that between fork and exec ourselves would need
//! unsafe code.
//!
//! Without `setpriv` only the handle ends a server.

use std::ffi::OsStr;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The same command, through `setpriv` if it is installed.
pub(crate) fn bound(command: &Command) -> io::Result<Command> {
    // Looked up here, because a failure inside `setpriv` would be an exit status, not an error.
    let program = find(command.get_program())?;
    let mut bound = match find(OsStr::new("setpriv")) {
        Ok(setpriv) if cfg!(target_os = "linux") => {
            let mut bound = Command::new(setpriv);
            bound.args(["--pdeathsig", "KILL", "--"]).arg(program);
            bound
        }
        _ => Command::new(program),
    };
    bound.args(command.get_args());
    for (name, value) in command.get_envs() {
        match value {
            Some(value) => bound.env(name, value),
            None => bound.env_remove(name),
        };
    }
    if let Some(directory) = command.get_current_dir() {
        bound.current_dir(directory);
    }
    Ok(bound)
}

/// The program's file: the name itself if it is a path, otherwise the first of that name on `PATH`.
fn find(program: &OsStr) -> io::Result<PathBuf> {
    let named = Path::new(program);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = if named.components().count() > 1 {
        named.is_file().then(|| named.to_owned())
    } else {
        std::env::split_paths(&path).map(|place| place.join(named)).find(|file| file.is_file())
    };
    found.ok_or_else(|| {
        let message = format!("wanted to start {}: there is no such program", named.display());
        io::Error::new(io::ErrorKind::NotFound, message)
    })
}
