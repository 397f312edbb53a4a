//! What one at a time does with a file and its marks: check, mark, read, replace.

use std::fs::File;
use std::os::fd::OwnedFd;

use fencepost_base::Result;
use fencepost_core::{Label, LockName, Token};
use rustix::fs::{AtFlags, Mode, OFlags};
use rustix::io::Errno;

use super::place::{MARKS, Place};
use super::record::Marks;
use super::spool::Spool;

/// The place, while nobody else changes it. The kernel lets go of the lock when this is dropped, or its process ends.
pub(super) struct Locked<'p> {
    place: &'p Place,
    beside: File,
    _lock: OwnedFd,
}

impl<'p> Locked<'p> {
    /// `lock` is locked.
    pub(super) fn new(place: &'p Place, beside: File, lock: OwnedFd) -> Self {
        Self { place, beside, _lock: lock }
    }

    /// Checks the token and raises the mark. When it returns, a mark of at least `token` is on disk.
    pub(super) fn raise(&self, name: &LockName, token: Token, who: &Label) -> Result<()> {
        let mut marks = self.place.marks_in(&self.beside)?;
        if marks.raise(name, token, who)? {
            return self.keep(&marks);
        }
        // Who set it may have been killed before it was synced.
        self.sync()
    }

    /// Replaces the marks, and syncs them.
    pub(super) fn keep(&self, marks: &Marks) -> Result<()> {
        let failed = |error: std::io::Error| self.place.failed("can not keep the marks of", error);
        // As the old ones, and as open as the directory: a umask is not for what others need too.
        let place = self.place.like().map_err(|errno| failed(errno.into()))?;
        let old = rustix::fs::statat(&self.beside, MARKS, AtFlags::SYMLINK_NOFOLLOW);
        let mut like = old.unwrap_or(place);
        like.st_mode &= (place.st_mode | 0o600) & 0o666;
        let mut new = Spool::make(&self.beside, self.place.path(), Mode::from_raw_mode(0o600))?;
        new.dress(&like).map_err(|errno| failed(errno.into()))?;
        new.fill(marks.text().as_bytes())?;
        new.rename(&self.beside, MARKS.as_ref()).map_err(|errno| failed(errno.into()))?;
        self.sync()
    }

    /// Both directories: the marks' own name may be new in the file's.
    fn sync(&self) -> Result<()> {
        self.beside
            .sync_all()
            .and_then(|()| self.place.directory.sync_all())
            .map_err(|error| self.place.failed("can not sync the marks of", error))
    }

    /// Opens the file, before anybody else can enter.
    pub(super) fn open(&self) -> Result<Option<File>> {
        self.place.target()?;
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        match rustix::fs::openat(&self.place.directory, &self.place.name, flags, Mode::empty()) {
            Ok(file) => Ok(Some(File::from(file))),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(self.place.failed("can not read", errno)),
        }
    }

    /// Puts the spooled file where the old one is. The mark is on disk by now.
    pub(super) fn replace(&self, spool: Spool) -> Result<()> {
        let failed = |error: std::io::Error| self.place.failed("can not replace", error);
        // It was dressed before its input came, which may be long ago.
        if let Some(old) = self.place.target()?
            && spool.dress(&old).map_err(|errno| failed(errno.into()))?
        {
            spool.sync().map_err(failed)?;
        }
        let (directory, name) = (&self.place.directory, &self.place.name);
        spool.rename(directory, name).map_err(|errno| failed(errno.into()))?;
        directory.sync_all().map_err(|error| {
            let doing =
                "the file is replaced, but a crash of the machine may undo it: can not sync";
            self.place.failed(doing, error)
        })
    }
}
