//! A file that is being written beside its place, and then renamed there.
//!
//! Its writer has it locked (`flock`), so that what a killed one left can be told from what is still on its way.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};

use fencepost_base::{Error, Result};
use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::explain;

const PREFIX: &str = "new-";

/// A file on its way. Dropped, it is removed.
pub(super) struct Spool {
    directory: File,
    name: OsString,
    file: File,
    /// What it is for, for messages.
    path: PathBuf,
    renamed: bool,
}

impl Spool {
    /// An empty one in `directory`, which is tidied up on the way.
    pub(super) fn make(directory: &File, path: &Path, mode: Mode) -> Result<Self> {
        Self::make_with(directory, path, mode, |file| {
            rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
        })
    }

    fn make_with(
        directory: &File,
        path: &Path,
        mode: Mode,
        mut lock: impl FnMut(&File) -> rustix::io::Result<()>,
    ) -> Result<Self> {
        let failed = |error: std::io::Error| explain("can not write beside", path, error);
        sweep(directory);
        loop {
            let mut bits = [0; 8];
            getrandom::fill(&mut bits).map_err(|error| {
                Error::unreachable("the system has no random numbers").because(error)
            })?;
            let name = OsString::from(format!("{PREFIX}{:016x}", u64::from_ne_bytes(bits)));
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let directory = directory.try_clone().map_err(failed)?;
            let file = match rustix::fs::openat(&directory, &name, flags, mode) {
                Err(Errno::EXIST) => continue,
                opened => File::from(opened.map_err(|errno| failed(errno.into()))?),
            };
            // From here on it is removed, unless it is handed out.
            let spool = Self { directory, name, file, path: path.to_owned(), renamed: false };
            match lock(&spool.file) {
                Ok(()) => {}
                // A sweep has caught it; we try again.
                Err(Errno::WOULDBLOCK | Errno::INTR) => continue,
                Err(errno) => return Err(failed(errno.into())),
            }
            // Or had caught it before: then it is gone by now.
            let stat = rustix::fs::fstat(&spool.file).map_err(|errno| failed(errno.into()))?;
            if stat.st_nlink > 0 {
                return Ok(spool);
            }
        }
    }

    /// Takes all that `data` has, and syncs it.
    pub(super) fn fill(&mut self, mut data: impl Read) -> Result<u64> {
        let failed = |error: std::io::Error| explain("can not write", &self.path, error);
        let (mut buffer, mut bytes) = (vec![0; 128 << 10], 0_u64);
        loop {
            let count = match data.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    let message = "the input can not be read to its end, so nothing was written";
                    return Err(Error::unreachable(message).because(error));
                }
            };
            self.file.write_all(&buffer[..count]).map_err(failed)?;
            bytes += count as u64;
        }
        self.file.sync_all().map_err(failed)?;
        Ok(bytes)
    }

    pub(super) fn sync(&self) -> std::io::Result<()> {
        self.file.sync_all()
    }

    /// Takes over what the old file's owner had set; whether anything had to be changed. It is not synced yet.
    pub(super) fn dress(&self, old: &Stat) -> rustix::io::Result<bool> {
        let new = rustix::fs::fstat(&self.file)?;
        let mut mode = old.st_mode & 0o7777;
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid) {
            let (owner, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
            if rustix::fs::fchown(&self.file, Some(owner), Some(group)).is_err() {
                // Not everybody may give a file away. The group may be one's own.
                let shared = new.st_gid == old.st_gid
                    || rustix::fs::fchown(&self.file, None, Some(group)).is_ok();
                // Under another owner the other bits would mean something else.
                mode &= 0o777;
                if !shared {
                    mode = for_strangers(mode);
                }
            }
        }
        if rustix::fs::fstat(&self.file)?.st_mode & 0o7777 != mode {
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
        }
        let now = rustix::fs::fstat(&self.file)?;
        Ok((now.st_mode, now.st_uid, now.st_gid) != (new.st_mode, new.st_uid, new.st_gid))
    }

    /// Takes the place of `name`.
    pub(super) fn rename(mut self, directory: &File, name: &OsStr) -> rustix::io::Result<()> {
        rustix::fs::renameat(&self.directory, &self.name, directory, name)?;
        self.renamed = true;
        Ok(())
    }
}

/// The mode of a file whose group is another one than it was. The new group is strange to it, and the old one is among
/// all others now: both get what both had.
pub(super) fn for_strangers(mode: u32) -> u32 {
    let both = (mode >> 3) & mode & 0o7;
    (mode & 0o700) | (both << 3) | both
}

/// Removes what killed processes have left. What can not be removed is only untidy.
fn sweep(directory: &File) {
    let Ok(entries) = rustix::fs::Dir::read_from(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let Ok(file) = rustix::fs::openat(directory, name, flags, Mode::empty()) else {
            continue;
        };
        // Locked while it is removed, so that its maker, if it was only just made, notices.
        if rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).is_ok() {
            let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
        }
    }
}

impl Drop for Spool {
    fn drop(&mut self) {
        if !self.renamed {
            let _ = rustix::fs::unlinkat(&self.directory, &self.name, AtFlags::empty());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Where the file system has no locks: the story is one of a full directory and a writer that never came back.
    #[test]
    fn a_lock_that_can_not_be_had_is_told_and_leaves_nothing() {
        let scene = tempfile::tempdir().unwrap();
        let directory = File::open(scene.path()).unwrap();
        let attempt = |lock: &mut dyn FnMut() -> rustix::io::Result<()>| {
            let mode = Mode::from_raw_mode(0o600);
            let done = Spool::make_with(&directory, Path::new("report"), mode, |_| lock());
            let left = scene.path().read_dir().unwrap().count();
            (done.map(|_| ()), left)
        };
        for errno in [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS, Errno::IO] {
            let mut times = 0;
            let (done, left) = attempt(&mut || {
                times += 1;
                assert!(times < 10, "it is tried over and over");
                Err(errno)
            });
            let error = done.unwrap_err().to_string();
            assert!(error.contains("report"), "{error}");
            assert_eq!((left, times), (0, 1));
        }
        // What a sweep of another process has caught.
        let mut answers = [Err(Errno::WOULDBLOCK), Err(Errno::INTR), Ok(())].into_iter();
        let (done, left) = attempt(&mut || answers.next().unwrap());
        done.unwrap();
        assert_eq!(left, 1, "only the one that was handed out");
        assert_eq!(scene.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn strangers_get_no_more_than_they_had() {
        for (old, new) in [
            (0o640, 0o600),
            (0o660, 0o600),
            (0o664, 0o644),
            (0o755, 0o755),
            (0o604, 0o600),
            (0o666, 0o666),
        ] {
            assert_eq!(for_strangers(old), new, "{old:o}");
        }
    }
}
