//! A file, and what lies beside it.

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
use super::spool::{Spool, for_strangers};
use super::{explain, shown};

const LOCK: &str = "lock";
pub(super) const MARKS: &str = "marks";
/// No marks are as large as this.
const LARGEST: u64 = 64 << 20;
/// How long we wait for who has the lock. What is done under it takes milliseconds.
const PATIENCE: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(1);

/// Where a file and its marks are.
#[derive(Debug)]
pub(super) struct Place {
    path: PathBuf,
    pub(super) name: OsString,
    /// Where the file is.
    pub(super) directory: File,
    /// `.NAME.fence`, where the marks are.
    beside: OsString,
}

impl Place {
    pub(super) fn find(path: &Path) -> Result<Self> {
        let bad = |why: &str| Error::invalid(format!("{} {why}", shown(path)));
        let end = path.as_os_str().as_bytes();
        let slashed = end.ends_with(b"/") || end.ends_with(b"/.");
        let real = match path.canonicalize() {
            Ok(real) => real,
            Err(error) if error.kind() == Kind::NotFound => {
                // Else "new/" would make the file "new".
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
                parent.map_err(|error| explain("can not find", path, error))?.join(name)
            }
            Err(error) if error.kind() == Kind::NotADirectory => {
                return Err(bad("leads through a file as if it were a directory: name a file"));
            }
            Err(error) if Errno::from_io_error(&error) == Some(Errno::LOOP) => {
                return Err(bad("is a link that leads back to itself: name the file itself"));
            }
            Err(error) => return Err(explain("can not find", path, error)),
        };
        let (Some(parent), Some(name)) = (real.parent(), real.file_name()) else {
            return Err(bad("is a directory: name a file"));
        };
        if let Some(kind) = network_file_system(parent) {
            return Err(Error::refused(format!(
                "{} lies on {kind}, where other machines may write too, and an OS lock does not \
                 exclude them: use a file on a local disk, or a fence in a database",
                shown(&real)
            )));
        }
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory = rustix::fs::open(parent, flags, Mode::empty())
            .map_err(|errno| explain("can not use the directory of", &real, errno.into()))?;
        let (name, mut beside) = (name.to_owned(), OsString::from("."));
        beside.push(&name);
        beside.push(".fence");
        let place = Self { path: real.clone(), name, directory: File::from(directory), beside };
        place.target()?;
        Ok(place)
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn failed(&self, doing: &str, error: impl Into<std::io::Error>) -> Error {
        explain(doing, &self.path, error.into())
    }

    /// What is there now: a regular file or nothing.
    pub(super) fn target(&self) -> Result<Option<Stat>> {
        match rustix::fs::statat(&self.directory, &self.name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => match FileType::from_raw_mode(stat.st_mode) {
                FileType::RegularFile => Ok(Some(stat)),
                _ => Err(Error::invalid(format!(
                    "{} is no regular file: only such a one can be replaced",
                    shown(&self.path)
                ))),
            },
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.failed("can not look at", errno)),
        }
    }

    /// The directory of the marks, if there is one.
    fn beside(&self) -> Result<Option<File>> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let shown = || shown(&self.path.with_file_name(&self.beside));
        match rustix::fs::openat(&self.directory, &self.beside, flags, Mode::empty()) {
            Ok(directory) => match self.planted_by(&directory) {
                Ok(None) => Ok(Some(File::from(directory))),
                Ok(Some(owner)) => Err(Error::refused(format!(
                    "{} belongs to another user (uid {owner}), who decides what its marks say: move it \
                     away, or keep the file where others cannot write",
                    shown()
                ))),
                Err(errno) => Err(self.failed("cannot look at the marks of", errno)),
            },
            Err(Errno::NOENT) => Ok(None),
            Err(Errno::NOTDIR | Errno::LOOP) => Err(Error::refused(format!(
                "{} is no directory of fencepost's: move it away, the marks are kept there",
                shown()
            ))),
            Err(errno) => Err(self.failed("can not open the marks of", errno)),
        }
    }

    /// Whose what lies beside the file is to be, and how open: as the directory. In a sticky one only the owner of a file
    /// can replace it, so there it is that owner's, and nobody else may write it.
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

    /// Who has made the directory of the marks, if that user has no say in the file. In a sticky directory everybody can
    /// make it; elsewhere whoever can make it can replace the file as well.
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

    /// The same, made if it is not there. Who may replace the file may write this one.
    fn beside_made(&self) -> Result<File> {
        let failed = |errno: Errno| self.failed("can not make a place for the marks of", errno);
        loop {
            let like = self.like().map_err(failed)?;
            let mode = Mode::from_raw_mode(like.st_mode & 0o7777);
            if let Some(there) = self.beside()? {
                let found = rustix::fs::fstat(&there).map_err(failed)?.st_mode;
                if found & 0o1000 != 0 && like.st_mode & 0o1000 == 0 {
                    // An earlier version has left it open. Who did not make it may not close it.
                    let _ = rustix::fs::fchmod(&there, mode);
                }
                return Ok(there);
            }
            match rustix::fs::mkdirat(&self.directory, &self.beside, mode) {
                // The umask took its part.
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

    /// The marks as they are now. They are replaced whole, so nobody has to be kept out to read them.
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
            Err(errno) => return Err(self.failed("can not read the marks of", errno)),
        };
        let mut bytes = Vec::new();
        let read = file.take(LARGEST).read_to_end(&mut bytes);
        read.map_err(|error| self.failed("can not read the marks of", error))?;
        let place = shown(&self.path.with_file_name(&self.beside).join(MARKS));
        Marks::read(&bytes).map_err(|why| {
            Error::refused(match why {
                Unreadable::Damaged => format!(
                    "the marks in {place} are damaged, so nobody may enter: restore that file, or \
                     see that no old holder is left and remove it"
                ),
                Unreadable::Version(version) => format!(
                    "the marks in {place} have format {version}, which this fencepost does not \
                     know: use the newer one that wrote it"
                ),
            })
        })
    }

    /// A file for the input.
    pub(super) fn spool(&self) -> Result<Spool> {
        let beside = self.beside_made()?;
        // Nobody shall read the new contents who could not read the old ones.
        let old = self.target()?;
        let mode = if old.is_some() { 0o600 } else { 0o666 };
        let spool = Spool::make(&beside, &self.path, Mode::from_raw_mode(mode))?;
        if let Some(old) = old {
            spool.dress(&old).map_err(|errno| self.failed("can not write beside", errno))?;
        }
        Ok(spool)
    }

    /// Waits for its turn.
    pub(super) fn lock(&self) -> Result<Locked<'_>> {
        let beside = self.beside_made()?;
        let failed = |errno: Errno| self.failed("can not lock", errno);
        let give_up = BootClock.now() + PATIENCE;
        let mut lock = self.open_lock(&beside).map_err(failed)?;
        loop {
            match rustix::fs::flock(&lock, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => {
                    // Somebody may have tidied up: then others lock another file than we have.
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
                        "others have had the lock of {} for {PATIENCE:?}, one of them or many in turn: \
                         see whether one is stopped, and try again",
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
            // It is another user's, made by an earlier version. To lock it, to read it is enough.
            Err(Errno::ACCESS) => {
                return rustix::fs::openat(beside, LOCK, flags | OFlags::RDONLY, Mode::empty());
            }
            opened => opened?,
        };
        // The umask took its part, now or when its maker was killed before it came here; or an earlier version has left
        // it open for readers. What has a second name may be somebody else's file, laid here to be opened.
        if rustix::fs::fstat(&lock)?.st_nlink == 1 {
            self.give(&lock)?;
            let stat = rustix::fs::fstat(&lock)?;
            let open = if stat.st_gid == like.st_gid { open } else { for_strangers(open) };
            if stat.st_mode & 0o777 != open {
                // Who did not make it may not, and does not need to: it is open for them.
                let _ = rustix::fs::fchmod(&lock, Mode::from_raw_mode(open));
            }
        }
        Ok(lock)
    }

    /// Gives what lies beside to those whose directory it is, as far as this process may: else an operator who enters
    /// once as root would lock them out.
    fn give(&self, file: impl AsFd) -> rustix::io::Result<()> {
        let (whose, stat) = (self.like()?, rustix::fs::fstat(&file)?);
        if (stat.st_uid, stat.st_gid) != (whose.st_uid, whose.st_gid) {
            let (owner, group) = (Uid::from_raw(whose.st_uid), Gid::from_raw(whose.st_gid));
            if rustix::fs::fchown(&file, Some(owner), Some(group)).is_err() {
                let _ = rustix::fs::fchown(&file, None, Some(group));
            }
        }
        Ok(())
    }
}

/// Whether many may make files in this directory, and only their owners may replace them.
fn is_sticky(directory: &Stat) -> bool {
    directory.st_mode & 0o1000 != 0 && directory.st_mode & 0o022 != 0
}

/// The mode of the lock in a directory of this mode. Whoever can open it can hold it, so only those may who may write the
/// directory: a reader could keep all writers waiting.
fn for_writers(directory: u32) -> u32 {
    let write = directory & 0o222;
    0o600 | write | (write << 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_writers_can_open_the_lock() {
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
