//! What is done to a file and its marks under the OS lock: check and raise the mark, read, replace.

use std::fs::File;
use std::os::fd::OwnedFd;

use fencepost_base::Result;
use fencepost_core::{FencingToken, Label};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::fenced_file::{FencedFile, MARKS};
use super::record::Marks;
use super::spool::Spool;

/// A fenced file under its OS lock. The kernel releases the lock when this is dropped, or when the process ends.
pub(super) struct Locked<'p> {
    fenced_file: &'p FencedFile,
    beside: File,
    _lock: OwnedFd,
}

impl<'p> Locked<'p> {
    /// Takes over `lock`, which is locked.
    pub(super) fn new(fenced_file: &'p FencedFile, beside: File, lock: OwnedFd) -> Self {
        Self { fenced_file, beside, _lock: lock }
    }

    /// Checks the token and raises the mark. When it returns, a mark of at least `token` is on disk.
    pub(super) fn raise(&self, fencing: &FencingToken, who: &Label) -> Result<()> {
        let mut marks = self.fenced_file.marks_in(&self.beside)?;
        if marks.raise(fencing, who)? {
            return self.keep(&marks);
        }
        // The process that raised it may have been killed before the sync.
        self.sync()
    }

    /// Replaces the marks, and syncs them.
    pub(super) fn keep(&self, marks: &Marks) -> Result<()> {
        let failed =
            |error: std::io::Error| self.fenced_file.failed("cannot keep the marks of", error);
        // Permissions as those of the old marks, limited by the directory's. The umask does not count: other users need
        // them.
        let directory = self.fenced_file.like().map_err(|errno| failed(errno.into()))?;
        let old = rustix::fs::statat(&self.beside, MARKS, AtFlags::SYMLINK_NOFOLLOW);
        let mut like = old.unwrap_or(directory);
        like.st_mode &= (directory.st_mode | 0o600) & 0o666;
        let mut new =
            Spool::make(&self.beside, self.fenced_file.path(), Mode::from_raw_mode(0o600))?;
        new.dress(&like).map_err(|errno| failed(errno.into()))?;
        new.fill(marks.text().as_bytes())?;
        new.rename(&self.beside, MARKS.as_ref()).map_err(|errno| failed(errno.into()))?;
        self.sync()
    }

    /// Syncs both directories: the directory of the marks may be a new entry in the file's.
    fn sync(&self) -> Result<()> {
        self.beside
            .sync_all()
            .and_then(|()| self.fenced_file.directory.sync_all())
            .map_err(|error| self.fenced_file.failed("cannot sync the marks of", error))
    }

    /// Opens the file before another holder can enter.
    pub(super) fn open(&self) -> Result<Option<File>> {
        self.fenced_file.target()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match rustix::fs::openat(
            &self.fenced_file.directory,
            &self.fenced_file.name,
            flags,
            Mode::empty(),
        ) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.fenced_file.failed("cannot read", errno)),
        }
    }

    /// Renames the spooled file over the old one. The mark is on disk already.
    pub(super) fn replace(&self, spool: Spool) -> Result<()> {
        let failed = |error: std::io::Error| self.fenced_file.failed("cannot replace", error);
        // Its owner and mode were copied before the input was read, which may be long ago.
        if let Some(old) = self.fenced_file.target()?
            && spool.dress(&old).map_err(|errno| failed(errno.into()))?
        {
            spool.sync().map_err(failed)?;
        }
        let (directory, name) = (&self.fenced_file.directory, &self.fenced_file.name);
        spool.rename(directory, name).map_err(|errno| failed(errno.into()))?;
        directory.sync_all().map_err(|error| {
            let doing = "the file is replaced, but a crash of the machine may undo it: cannot sync";
            self.fenced_file.failed(doing, error)
        })
    }
}
