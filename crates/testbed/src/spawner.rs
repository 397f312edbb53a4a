//! Starting servers so that none outlives the test run.
//!
//! A handle kills its server when it is dropped, but a test process that is killed, or ends with a server
//! in a `static`, drops nothing. So servers are started through `setpriv --pdeathsig KILL` (util-linux): it
//! asks the kernel to kill this process when its parent ends, and then becomes the server; the pid stays.
//! Doing the same between fork and exec ourselves would need unsafe code.
//!
//! To the kernel the parent is the *thread* that started the process, and a test's thread ends with the
//! test. Hence one thread for all of them, which lives as long as the process.
//!
//! Without `setpriv` a server is started as it is, and only its handle ends it.

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::LazyLock;
use std::sync::mpsc::{Sender, channel};

struct Order {
    command: Command,
    answer: Sender<io::Result<Child>>,
}

static SPAWNER: LazyLock<Sender<Order>> = LazyLock::new(|| {
    let (sender, orders) = channel::<Order>();
    std::thread::spawn(move || {
        for mut order in orders {
            // Whoever asked waits for the answer.
            let _ = order.answer.send(order.command.spawn());
        }
    });
    sender
});

/// Starts the command, with what it says going to `log`. The child ends with this process.
pub(crate) fn spawn(command: &Command, log: &File) -> io::Result<Child> {
    let mut command = bound(command)?;
    command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log.try_clone()?);
    let (answer, child) = channel();
    let gone = || io::Error::other("the thread that starts servers has ended");
    SPAWNER.send(Order { command, answer }).map_err(|_| gone())?;
    child.recv().map_err(|_| gone())?
}

/// The same command, through `setpriv` where there is one.
fn bound(command: &Command) -> io::Result<Command> {
    // Looked up here because a failure inside `setpriv` would be an exit status, not an error.
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

/// The program's file: as named if the name is a path, else the first of that name on `PATH`.
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
