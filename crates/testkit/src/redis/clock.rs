//! A movable wall clock for one server, with a preloaded libfaketime.
//!
//! The offset is in a file that the library reads at each read of the clock. The monotonic clock is unchanged: a test
//! moves what an administrator or NTP moves, the wall clock.
//!
//! Debian's `redis-server` allocates with jemalloc, which reads the time while it initialises. libfaketime then needs
//! memory to initialise itself, asks jemalloc, and the two wait for each other for ever (wolfcw/libfaketime#130). So libc is
//! preloaded too, after libfaketime: the server then allocates with libc, and jemalloc stays idle.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::client::Client;
use crate::wait::wall_clock;

/// The clock of one server.
#[derive(Debug)]
pub(super) struct FakeClock {
    library: PathBuf,
    file: PathBuf,
}

impl FakeClock {
    /// A clock that shows the host's time, with its file in this directory.
    pub(super) fn new(directory: &Path) -> io::Result<Self> {
        let clock = Self { library: library()?, file: directory.join("clock") };
        clock.set(0)?;
        Ok(clock)
    }

    /// Makes a server that is started by this command use the clock.
    pub(super) fn preload(&self, command: &mut Command) {
        let mut libraries = self.library.clone().into_os_string();
        libraries.push(":libc.so.6");
        command
            .env("LD_PRELOAD", libraries)
            .env("FAKETIME_TIMESTAMP_FILE", &self.file)
            .env("FAKETIME_NO_CACHE", "1")
            // The name differs between versions.
            .env("DONT_FAKE_MONOTONIC", "1")
            .env("FAKETIME_DONT_FAKE_MONOTONIC", "1")
            .env("NO_FAKE_STAT", "1");
    }

    /// Sets the offset. The file is replaced as a whole, so the server never reads half of it.
    pub(super) fn set(&self, seconds: i64) -> io::Result<()> {
        let fresh = self.file.with_extension("new");
        fs::write(&fresh, format!("{seconds:+}"))?;
        fs::rename(&fresh, &self.file)
    }
}

/// Whether the server's clock is this many seconds from the host's.
pub(super) fn shows(seconds: i64, client: &mut Client) -> io::Result<bool> {
    let host = || i128::from(wall_clock().as_micros() as u64);
    let before = host();
    let reply = client.command(&["TIME"])?;
    let after = host();
    let [whole, micros] = reply.items()? else {
        return Err(io::Error::other(format!("wanted the time of redis, got {reply:?}")));
    };
    let shown = i128::from(whole.int()?) * 1_000_000 + i128::from(micros.int()?);
    Ok((before..=after).contains(&(shown - i128::from(seconds) * 1_000_000)))
}

/// Removes the names of the memory that libfaketime would share with child processes of the server.
///
/// A killed server would leave them in `/dev/shm` for ever. A running one keeps what it has mapped.
pub(super) fn forget_shared_memory(pid: u32) {
    for name in [format!("faketime_shm_{pid}"), format!("sem.faketime_sem_{pid}")] {
        // Not every version of the library creates them.
        let _ = fs::remove_file(Path::new("/dev/shm").join(name));
    }
}

fn library() -> io::Result<PathBuf> {
    let multiarch = format!("/usr/lib/{}-linux-gnu/faketime", std::env::consts::ARCH);
    [multiarch.as_str(), "/usr/lib/faketime", "/usr/lib64/faketime"]
        .iter()
        .map(|place| Path::new(place).join("libfaketime.so.1"))
        .find(|file| file.is_file())
        .ok_or_else(|| {
            let message = "wanted a server with a clock of its own: \
                           install libfaketime (scripts/test does)";
            io::Error::new(io::ErrorKind::NotFound, message)
        })
}
