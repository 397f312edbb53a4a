//! The path of this test program for another user.

use std::fs::File;
use std::os::fd::AsRawFd as _;
use std::path::PathBuf;
use std::sync::LazyLock;

use rustix::io::{FdFlags, fcntl_setfd};

/// The path of this program for a process of another user, started from here. A checkout may be in a directory that
/// other users cannot enter, so the path goes through an open file that the process inherits.
pub fn own_program() -> PathBuf {
    static PROGRAM: LazyLock<File> = LazyLock::new(|| {
        let program = File::open(std::env::current_exe().unwrap()).unwrap();
        fcntl_setfd(&program, FdFlags::empty()).unwrap();
        program
    });
    format!("/proc/self/fd/{}", PROGRAM.as_raw_fd()).into()
}
