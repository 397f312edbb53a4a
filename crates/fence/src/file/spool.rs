//! A file that is written beside its target, and then renamed over it.
//!
//! Its writer keeps it locked (`flock`), so that garbage collection can tell a spool of a killed process from one in use.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{ErrorKind, Read, Write as _};
use std::path::{Path, PathBuf};

use fencepost_base::{Error, Result, random};
use rustix::fs::{AtFlags, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::explain;

const PREFIX: &str = "new-";

/// A file that is being written. Removed when dropped, unless it was renamed.
pub(super) struct Spool {
    directory: File,
    name: OsString,
    file: File,
    /// The target, for messages.
    path: PathBuf,
    renamed: bool,
}

impl Spool {
    /// An empty spool in `directory`. Removes what killed processes left there.
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
        let failed = |error: std::io::Error| explain("cannot write beside", path, error);
        gc(directory);
        loop {
            let bits = u64::from_ne_bytes(random::bytes()?);
            let name = OsString::from(format!("{PREFIX}{bits:016x}"));
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let directory = directory.try_clone().map_err(failed)?;
            let file = match rustix::fs::openat(&directory, &name, flags, mode) {
                Err(Errno::EXIST) => continue,
                opened => File::from(opened.map_err(|errno| failed(errno.into()))?),
            };
            // From here on it is removed on drop.
            let spool = Self { directory, name, file, path: path.to_owned(), renamed: false };
            match lock(&spool.file) {
                Ok(()) => {}
                // The gc of another process has locked it to remove it: try again.
                Err(Errno::WOULDBLOCK | Errno::INTR) => continue,
                Err(errno) => return Err(failed(errno.into())),
            }
            // Or removed it before we locked it.
            let stat = rustix::fs::fstat(&spool.file).map_err(|errno| failed(errno.into()))?;
            if stat.st_nlink > 0 {
                return Ok(spool);
            }
        }
    }

    /// Writes all of `data`, and syncs it.
    pub(super) fn fill(&mut self, mut data: impl Read) -> Result<u64> {
        let failed = |error: std::io::Error| explain("cannot write", &self.path, error);
        let (mut buffer, mut bytes) = (vec![0; 128 << 10], 0_u64);
        loop {
            let count = match data.read(&mut buffer) {
                Ok(0) => break,
                Ok(count) => count,
                Err(error) if error.kind() == ErrorKind::Interrupted => continue,
                Err(error) => {
                    let message = "cannot read the input to its end, so nothing was written";
                    return Err(Error::unreachable(message).with_source(error));
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

    /// Copies owner, group and mode of the old file. Returns whether anything changed; it is not synced yet.
    pub(super) fn dress(&self, old: &Stat) -> rustix::io::Result<bool> {
        let new = rustix::fs::fstat(&self.file)?;
        let mut mode = old.st_mode & 0o7777;
        if (new.st_uid, new.st_gid) != (old.st_uid, old.st_gid) {
            let (owner, group) = (Uid::from_raw(old.st_uid), Gid::from_raw(old.st_gid));
            if rustix::fs::fchown(&self.file, Some(owner), Some(group)).is_err() {
                // Only root may change the owner. The group can be changed to one of the process's own.
                let shared = new.st_gid == old.st_gid
                    || rustix::fs::fchown(&self.file, None, Some(group)).is_ok();
                // setuid and setgid would have another meaning under another owner.
                mode &= 0o777;
                if !shared {
                    mode = for_other_users(mode);
                }
            }
        }
        if rustix::fs::fstat(&self.file)?.st_mode & 0o7777 != mode {
            rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode))?;
        }
        let now = rustix::fs::fstat(&self.file)?;
        Ok((now.st_mode, now.st_uid, now.st_gid) != (new.st_mode, new.st_uid, new.st_gid))
    }

    /// Renames it to `name`.
    pub(super) fn rename(mut self, directory: &File, name: &OsStr) -> rustix::io::Result<()> {
        rustix::fs::renameat(&self.directory, &self.name, directory, name)?;
        self.renamed = true;
        Ok(())
    }
}

/// The mode of a file whose group has changed. The members of the new group were "others" before, and those of the old
/// group are "others" now: both get only what both had.
pub(super) fn for_other_users(mode: u32) -> u32 {
    let both = (mode >> 3) & mode & 0o7;
    (mode & 0o700) | (both << 3) | both
}

/// Removes what killed processes have left. What cannot be removed does no harm.
fn gc(directory: &File) {
    let Ok(entries) = rustix::fs::Dir::read_from(directory) else { return };
    for entry in entries.flatten() {
        let name = entry.file_name();
        if !name.to_bytes().starts_with(PREFIX.as_bytes()) {
            continue;
        }
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let Ok(file) = rustix::fs::openat(directory, name, flags, Mode::empty()) else { continue };
        // Locked during the removal, so that a process that has just created it notices.
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

    /// On a file system without locks a writer retried for ever, and filled the directory.
    #[test]
    fn failing_flock_is_an_error_and_leaves_no_file() {
        let fixture = tempfile::tempdir().unwrap();
        let directory = File::open(fixture.path()).unwrap();
        let attempt = |lock: &mut dyn FnMut() -> rustix::io::Result<()>| {
            let mode = Mode::from_raw_mode(0o600);
            let done = Spool::make_with(&directory, Path::new("report"), mode, |_| lock());
            let left = fixture.path().read_dir().unwrap().count();
            (done.map(|_| ()), left)
        };
        for errno in [Errno::NOLCK, Errno::OPNOTSUPP, Errno::NOSYS, Errno::IO] {
            let mut times = 0;
            let (done, left) = attempt(&mut || {
                times += 1;
                assert!(times < 10, "it retries without end");
                Err(errno)
            });
            let error = done.unwrap_err().one_line();
            assert!(error.contains("report"), "{error}");
            assert_eq!((left, times), (0, 1));
        }
        // Locked by the gc of another process.
        let mut answers = [Err(Errno::WOULDBLOCK), Err(Errno::INTR), Ok(())].into_iter();
        let (done, left) = attempt(&mut || answers.next().unwrap());
        done.unwrap();
        assert_eq!(left, 1, "only the returned one");
        assert_eq!(fixture.path().read_dir().unwrap().count(), 0);
    }

    #[test]
    fn changed_group_grants_no_new_rights() {
        for (old, new) in [
            (0o640, 0o600),
            (0o660, 0o600),
            (0o664, 0o644),
            (0o755, 0o755),
            (0o604, 0o600),
            (0o666, 0o666),
        ] {
            assert_eq!(for_other_users(old), new, "{old:o}");
        }
    }
}
