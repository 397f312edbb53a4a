//! A fenced file, and the directory beside it.

use std::ffi::OsString;
use std::fs::File;
use std::io::{ErrorKind as Kind, Read as _};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::time::Duration;

use fencepost_base::clock::{BootClock, Clock as _, pause};
use fencepost_base::disk::network_file_system;
use fencepost_base::{Error, Result};
use rustix::fs::{AtFlags, FileType, FlockOperation, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;

use super::locked::Locked;
use super::record::{Marks, Unreadable};
use super::spool::{Spool, for_other_users};
use super::{explain, shown};

const LOCK: &str = "lock";
pub(super) const MARKS: &str = "marks";
/// More than the marks can ever take.
const LARGEST: u64 = 64 << 20;
/// How long to wait for the OS lock. What is done under it takes milliseconds.
const LOCK_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(1);

/// A file, and where its marks are.
#[derive(Debug)]
pub(super) struct FencedFile {
    path: PathBuf,
    pub(super) name: OsString,
    /// The directory of the file.
    pub(super) directory: File,
    /// `.NAME.fence`, where the marks are.
    beside: OsString,
}

impl FencedFile {
    pub(super) fn find(path: &Path) -> Result<Self> {
        let bad = |why: &str| Error::invalid(format!("{} {why}", shown(path)));
        let end = path.as_os_str().as_bytes();
        let slashed = end.ends_with(b"/") || end.ends_with(b"/.");
        let real = match path.canonicalize() {
            Ok(real) => real,
            Err(error) if error.kind() == Kind::NotFound => {
                // Otherwise "new/" would create the file "new".
                if slashed {
                    return Err(bad("ends with a slash, as a directory does: name a file"));
                }
                if path.is_symlink() {
                    return Err(bad("is a link to nothing: name the file itself"));
                }
                let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
                    return Err(bad("names no file: give its path"));
                };
                let parent = if parent.as_os_str().is_empty() { Path::new(".") } else { parent };
                let parent = parent.canonicalize();
                parent.map_err(|error| explain("cannot find", path, error))?.join(name)
            }
            Err(error) if error.kind() == Kind::NotADirectory => {
                return Err(bad("leads through a file as if it were a directory: name a file"));
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
                return Err(bad("is a link that leads back to itself: name the file itself"));
            }
            Err(error) => return Err(explain("cannot find", path, error)),
        };
        let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(bad("is a directory: name a file"));
        };
        if let Some(kind) = network_file_system(parent) {
            return Err(Error::refused(format!(
                "{} is on {kind}, where other machines may write too, and an OS lock does not \
                 exclude them: use a file on a local disk, or a fence in a database",
                shown(&real)
            )));
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty())
            .map_err(|errno| explain("cannot use the directory of", &real, errno.into()))?;
        let (name, mut beside) = (name.to_owned(), OsString::from("."));
        beside.push(&name);
        beside.push(".fence");
        let found = Self { path: real.clone(), name, directory: File::from(directory), beside };
        found.target()?;
        Ok(found)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn failed(&self, doing: &str, error: impl Into<std::io::Error>) -> Error {
        explain(doing, &self.path, error.into())
    }

    /// What is at the path now: a regular file or nothing.
    pub(super) fn target(&self) -> Result<Option<Stat>> {
        match rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Ok(Some(stat)),
                _ => Err(Error::invalid(format!(
                    "{} is not a regular file: name a regular file",
                    shown(&self.path)
                ))),
            },
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("cannot inspect", errno)),
        }
    }

    /// The directory of the marks, if it exists.
    fn beside(&self) -> Result<Option<File>> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let shown = || shown(&self.path.with_file_name(&self.beside));
        match rustix::fs::openat(&self.directory, &self.beside, flags, Mode::empty()) {
            Ok(directory) => match self.planted_by(&directory) {
                Ok(None) => Ok(Some(File::from(directory))),
                Ok(Some(owner)) => Err(Error::refused(format!(
                    "{} belongs to another user (uid {owner}), who can change the marks: move it \
                     away, or keep the file in a directory that others cannot write",
                    shown()
                ))),
                Err(errno) => Err(self.failed("cannot inspect the marks of", errno)),
            },
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(Error::refused(format!(
                "{} is not a directory, and the marks belong there: move it away",
                shown()
            ))),
            Err(errno) => Err(self.failed("cannot open the marks of", errno)),
        }
    }

    /// Owner, group and mode for what is beside the file: those of the directory. In a sticky directory only the owner
    /// of a file can replace it, so there they are that owner's, and nobody else may write.
    pub(super) fn like(&self) -> rustix::io::Result<Stat> {
        let mut like = rustix::fs::fstat(&self.directory)?;
        if is_sticky(&like) {
            let target = rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW);
            if let Ok(target) = target {
                (like.st_uid, like.st_gid) = (target.st_uid, target.st_gid);
            }
            like.st_mode &= !0o1022;
        }
        Ok(like)
    }

    /// The owner of the directory of the marks, if that user may not replace the file. In a sticky directory any user can
    /// create it; elsewhere a user who can create it can replace the file as well.
    fn planted_by(&self, beside: &OwnedFd) -> rustix::io::Result<Option<u32>> {
        let directory = rustix::fs::fstat(&self.directory)?;
        if !is_sticky(&directory) {
            return Ok(None);
        }
        let owner = rustix::fs::fstat(beside)?.st_uid;
        let ours = rustix::process::geteuid().as_raw();
        let may = [0, ours, directory.st_uid, self.like()?.st_uid];
        Ok((!may.contains(&owner)).then_some(owner))
    }

    /// The directory of the marks, created if needed. Users who may replace the file may write it.
    fn beside_made(&self) -> Result<File> {
        let failed =
            |errno: Errno| self.failed("cannot create the directory of the marks of", errno);
        loop {
            let like = self.like().map_err(failed)?;
            let mode = Mode::from_raw_mode(like.st_mode & 0o7777);
            if let Some(there) = self.beside()? {
                let found = rustix::fs::fstat(&there).map_err(failed)?.st_mode;
                if found & 0o1000 != 0 && like.st_mode & 0o1000 == 0 {
                    // An earlier version left it open. Only its owner may change the mode.
                    let _ = rustix::fs::fchmod(&there, mode);
                }
                return Ok(there);
            }
            match rustix::fs::mkdirat(&self.directory, &self.beside, mode) {
                // The umask removed bits.
                Ok(()) => {
                    if let Some(there) = self.beside()? {
                        self.give(&there).map_err(failed)?;
                        rustix::fs::fchmod(&there, mode).map_err(failed)?;
                    }
                }
                Err(Errno::EXIST) => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    /// Reads the marks. They are replaced as a whole, so reading needs no lock.
    pub(super) fn marks(&self) -> Result<Marks> {
        match self.beside()? {
            Some(beside) => self.marks_in(&beside),
            None => Ok(Marks::default()),
        }
    }

    pub(super) fn marks_in(&self, beside: &File) -> Result<Marks> {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = match rustix::fs::openat(beside, MARKS, flags, Mode::empty()) {
            Ok(file) => File::from(file),
            Err(Errno::NOENT) => return Ok(Marks::default()),
            Err(errno) => return Err(self.failed("cannot read the marks of", errno)),
        };
        let mut bytes = Vec::new();
        let read = file.take(LARGEST).read_to_end(&mut bytes);
        read.map_err(|error| self.failed("cannot read the marks of", error))?;
        let path = shown(&self.path.with_file_name(&self.beside).join(MARKS));
        Marks::read(&bytes).map_err(|why| {
            Error::refused(match why {
                Unreadable::Damaged => format!(
                    "the marks in {path} are damaged, so every token is refused: restore that file, or \
                     make sure that no old holder is left and remove it"
                ),
                Unreadable::Version(version) => format!(
                    "the marks in {path} have format {version}, which this fencepost does not \
                     know: use the newer version that wrote them"
                ),
            })
        })
    }

    /// A spool for the input.
    pub(super) fn spool(&self) -> Result<Spool> {
        let beside = self.beside_made()?;
        // Users who could not read the old contents must not read the new ones.
        let old = self.target()?;
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let spool = Spool::make(&beside, &self.path, Mode::from_raw_mode(mode))?;
        if let Some(old) = old {
            spool.dress(&old).map_err(|errno| self.failed("cannot write beside", errno))?;
        }
        Ok(spool)
    }

    /// Takes the OS lock, and waits for it if needed.
    pub(super) fn lock(&self) -> Result<Locked<'_>> {
        let beside = self.beside_made()?;
        let failed = |errno: Errno| self.failed("cannot lock", errno);
        let give_up = BootClock.now() + LOCK_TIMEOUT;
        let mut lock = self.open_lock(&beside).map_err(failed)?;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    // The lock file may have been deleted: then other processes lock another file.
                    let (ours, there) = (
                        rustix::fs::fstat(&lock).map_err(failed)?,
                        rustix::fs::statat(&beside, LOCK, AtFlags::SYMLINK_NOFOLLOW),
                    );
                    if there.is_ok_and(|there| there.st_ino == ours.st_ino) {
                        return Ok(Locked::new(self, beside, lock));
                    }
                    lock = self.open_lock(&beside).map_err(failed)?;
                }
                Err(Errno::WOULDBLOCK | Errno::INTR) if BootClock.now() < give_up => pause(POLL),
                Err(Errno::WOULDBLOCK | Errno::INTR) => {
                    return Err(Error::unreachable(format!(
                        "other processes have held the lock of {} for {LOCK_TIMEOUT:?}, one of them or many in turn: \
                         check whether one is stopped, and try again",
                        shown(&self.path)
                    )));
                }
                Err(errno) => return Err(failed(errno)),
            }
        }
    }

    fn open_lock(&self, beside: &File) -> rustix::io::Result<OwnedFd> {
        let flags = OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let like = self.like()?;
        let open = for_writers(like.st_mode);
        let making = flags | OFlags::CREATE | OFlags::RDWR;
        let lock = match rustix::fs::openat(beside, LOCK, making, Mode::from_raw_mode(open)) {
            // Another user's, made by an earlier version. Opening it for reading is enough to lock it.
            Err(Errno::ACCESS) => {
                return rustix::fs::openat(beside, LOCK, flags | OFlags::RDONLY, Mode::empty());
            }
            opened => opened?,
        };
        // The umask removed bits, now or in a process that was killed before it came here; or an earlier version left it
        // open for readers. A file with a second hard link may be another user's, linked here as a trap: leave it alone.
        if rustix::fs::fstat(&lock)?.st_nlink == 1 {
            self.give(&lock)?;
            let stat = rustix::fs::fstat(&lock)?;
            let open = if stat.st_gid == like.st_gid { open } else { for_other_users(open) };
            if stat.st_mode & 0o777 != open {
                // Only its owner may, and others do not need it: the lock is open for them.
                let _ = rustix::fs::fchmod(&lock, Mode::from_raw_mode(open));
            }
        }
        Ok(lock)
    }

    /// Changes the owner and group to those of `like`, as far as this process may. Otherwise an operator who enters
    /// once as root would lock the users out.
    fn give(&self, file: impl AsFd) -> rustix::io::Result<()> {
        let (like, stat) = (self.like()?, rustix::fs::fstat(&file)?);
        if (stat.st_uid, stat.st_gid) != (like.st_uid, like.st_gid) {
            let (owner, group) = (Uid::from_raw(like.st_uid), Gid::from_raw(like.st_gid));
            if rustix::fs::fchown(&file, Some(owner), Some(group)).is_err() {
                let _ = rustix::fs::fchown(&file, None, Some(group));
            }
        }
        Ok(())
    }
}

/// Whether several users may create files in this directory, and only a file's owner may replace it.
fn is_sticky(directory: &Stat) -> bool {
    directory.st_mode & 0o1000 != 0 && directory.st_mode & 0o022 != 0
}

/// The mode of the lock file in a directory of this mode. A user who can open it can hold it, and block all writers: so
/// only users who may write the directory can open it.
fn for_writers(directory: u32) -> u32 {
    let write = directory & 0o222;
    0o600 | write | (write << 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_can_be_opened_by_writers_only() {
        for (directory, lock) in [
            (0o700, 0o600),
            (0o755, 0o600),
            (0o555, 0o600),
            (0o2775, 0o660),
            (0o770, 0o660),
            (0o757, 0o606),
            (0o777, 0o666),
        ] {
            assert_eq!(for_writers(directory), lock, "{directory:o}");
        }
    }
}
