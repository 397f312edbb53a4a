//! A directory for test files. On many systems `/tmp` is memory, where no store that must survive a reboot is allowed.

use std::io;
use std::path::Path;

use tempfile::TempDir;

/// tmpfs, ramfs, overlay and AUFS: file systems that end with a reboot or a container.
const VOLATILE: [u64; 4] = [0x0102_1994, 0x8584_58f6, 0x794c_7630, 0x6175_6673];

/// A new directory on a disk: among the temporary files, otherwise beside the test program. If neither is on a disk, as in a
/// container without volumes, it prints that, and tests that need a disk will fail.
pub fn directory_on_disk() -> io::Result<TempDir> {
    let temporary = std::env::temp_dir();
    if is_on_disk(&temporary) {
        return tempfile::tempdir();
    }
    let program = std::env::current_exe()?;
    match program.parent() {
        Some(beside) if is_on_disk(beside) => tempfile::tempdir_in(beside),
        _ => {
            eprintln!("neither {} nor the test program is on a disk", temporary.display());
            tempfile::tempdir()
        }
    }
}

fn is_on_disk(directory: &Path) -> bool {
    #[expect(clippy::cast_sign_loss, reason = "the number's bits, whatever their sign")]
    let kind = |stat: rustix::fs::StatFs| stat.f_type as u64 & 0xffff_ffff;
    rustix::fs::statfs(directory).is_ok_and(|stat| !VOLATILE.contains(&kind(stat)))
}
