//! The fence of a file, for the processes of one host.
//!
//! ```
//! use fencepost::fences::file::FileFence;
//! # use fencepost::{FencingToken, LockName, Token};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("report.json");
//! # let fencing = FencingToken::new(LockName::new("report")?, Token::new(33)?);
//! // `fencing` is `guard.fencing()`.
//! let file = FileFence::at(&path)?;
//! let old = file.read(&fencing)?; // enters first
//! # assert!(old.is_none());
//! file.write(&fencing, &b"{}"[..])?; // all of it, or nothing
//! # Ok(()) }
//! ```
//!
//! *What must hold:* the file never takes contents written with a token below its mark, and is at any moment one whole
//! write, whichever process is killed at whichever point. *Why it does:* the input is first spooled beside the file,
//! for as long as it takes, with nothing held. Then, under an OS lock (`flock`), the token is checked, the mark is
//! raised and synced, and only then the spooled file is renamed over the old one. A later holder finds the mark. A
//! crash in between leaves a mark that is too high, never one that is too low.
//!
//! *What it does not cover:* other hosts. An OS lock does not reach another machine, so a file on a network file system
//! is refused. Programs that do not enter: `echo > file`, an editor or `mv` are not stopped. A process that is stopped
//! in the few milliseconds under the lock blocks the others until it continues or ends; they give up after ten seconds.
//! So does a process that holds the lock on purpose, but only users who may write the directory can open the lock.
//! Readers that do not enter see a whole file, which may be the previous one.
//!
//! *What is beside a file* `NAME`, hidden, in the same directory. Users who may write that directory may write these
//! files; in a sticky directory (`/tmp`) only the owner of the file may. Users who may read the directory may read the
//! marks:
//!
//! ```text
//! .NAME.fence/
//!   lock    empty; locked during a check and rename; never removed or renamed; readers cannot open it
//!   marks   the marks, one per lock name, and the resets (the format is in file/record.rs)
//!   new-*   a spooled input, or new marks; locked by its writer, removed later if that was killed
//! ```
//!
//! Links are followed once, when the fence is made: two paths to a file have one mark. A hard link is another file
//! with a mark of its own, and a write leaves it with the old contents. Deleting `.NAME.fence` deletes the marks.
//!
//! All calls block, mostly on the disk: in async code use `spawn_blocking`.

mod fenced_file;
mod locked;
mod record;
mod spool;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use fencepost_base::label::default_label;
use fencepost_base::{Error, Result};
use fencepost_core::{FencingToken, Label, LockName, Token};

use self::fenced_file::FencedFile;
use self::locked::Locked;
use super::contract::{Admission, Mark, Reset, admit, checked_reset};

/// A file with a fence.
#[derive(Debug)]
pub struct FileFence {
    fenced_file: FencedFile,
}

impl FileFence {
    /// The fence of the file at `path`, which need not exist yet; its directory must. Refuses anything but a regular
    /// file, and network file systems. Writes nothing.
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self { fenced_file: FencedFile::find(path.as_ref())? })
    }

    /// The path of the file, links followed.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.fenced_file.path()
    }

    /// Enters: raises the mark of the lock to the token, or refuses. A holder calls it first, before it reads. When it
    /// returns, the mark is on disk.
    pub fn enter(&self, fencing: &FencingToken) -> Result<()> {
        self.enter_as(fencing, &default_label()?)
    }

    /// [`enter`](Self::enter), with a label that says who entered, for people.
    pub fn enter_as(&self, fencing: &FencingToken, who: &Label) -> Result<()> {
        self.entered(fencing, who).map(drop)
    }

    /// Enters, and keeps the OS lock until the returned value is dropped.
    fn entered(&self, fencing: &FencingToken, who: &Label) -> Result<Locked<'_>> {
        let locked = self.fenced_file.lock()?;
        locked.raise(fencing, who)?;
        Ok(locked)
    }

    /// Enters and opens the file; none if it does not exist. A later write does not change the open file: it makes a
    /// new one.
    pub fn open(&self, fencing: &FencingToken) -> Result<Option<File>> {
        self.entered(fencing, &default_label()?)?.open()
    }

    /// Enters and reads the file; none if it does not exist.
    pub fn read(&self, fencing: &FencingToken) -> Result<Option<Vec<u8>>> {
        let Some(mut file) = self.open(fencing)? else { return Ok(None) };
        let mut contents = Vec::new();
        match file.read_to_end(&mut contents) {
            Ok(_) => Ok(Some(contents)),
            Err(error) => Err(self.fenced_file.failed("cannot read", error)),
        }
    }

    /// Enters, and replaces the contents of the file by all of `data`. Returns the number of bytes.
    ///
    /// On an error the file is unchanged. Permissions are kept, and so is the owner where this process may change it;
    /// extended attributes and ACLs are not.
    pub fn write(&self, fencing: &FencingToken, data: impl Read) -> Result<u64> {
        // Refuse a stale token before reading the input.
        if let Admission::Stale(mark) =
            admit(self.fenced_file.marks()?.mark(fencing.name()), fencing)
        {
            return Err(mark.refuses(fencing));
        }
        let mut spool = self.fenced_file.spool()?;
        let bytes = spool.fill(data)?;
        self.entered(fencing, &default_label()?)?.replace(spool)?;
        Ok(bytes)
    }

    /// The mark of `name`, if any holder has entered.
    pub fn mark(&self, name: &LockName) -> Result<Option<Mark>> {
        Ok(self.fenced_file.marks()?.mark(name).cloned())
    }

    /// The mark of `name`, or all marks.
    pub fn show(&self, name: Option<&LockName>) -> Result<Vec<Mark>> {
        let mut marks = self.fenced_file.marks()?.marks;
        marks.retain(|mark| name.is_none_or(|name| *name == mark.name));
        Ok(marks)
    }

    /// Sets the mark of `name` to `to`, or deletes it, and logs the reset. Returns the previous mark.
    ///
    /// A lowered or deleted mark lets in holders that it refused before: first make sure that none is left.
    pub fn reset(
        &self,
        name: &LockName,
        to: Option<Token>,
        by: &str,
        why: &str,
    ) -> Result<Option<Mark>> {
        checked_reset(by, why)?;
        // With nothing to delete, create nothing, not even the directory of the marks.
        if to.is_none() && self.mark(name)?.is_none() {
            return Ok(None);
        }
        let locked = self.fenced_file.lock()?;
        let mut marks = self.fenced_file.marks()?;
        let old = marks.mark(name).cloned();
        if let Some(reset) = Reset::of(old.as_ref(), name, to, (by, why)) {
            marks.reset(reset);
            locked.keep(&marks)?;
        }
        Ok(old)
    }

    /// The logged resets, oldest first: those of `name`, or all. The last 1000 are kept.
    pub fn audit(&self, name: Option<&LockName>) -> Result<Vec<Reset>> {
        let mut resets = self.fenced_file.marks()?.resets;
        resets.retain(|reset| name.is_none_or(|name| *name == reset.name));
        Ok(resets)
    }
}

/// Explains an error of the operating system. The file is unchanged then.
fn explain(doing: &str, path: &Path, error: std::io::Error) -> Error {
    use std::io::ErrorKind as Kind;
    let shown = shown(path);
    let (refused, remedy) = match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded => (false, "free some disk space"),
        Kind::FileTooLarge => (true, "it is larger than this system allows (ulimit -f)"),
        Kind::PermissionDenied => (true, "check the permissions of its directory"),
        Kind::ReadOnlyFilesystem => (true, "its file system is read-only"),
        Kind::InvalidFilename => (true, "its name is too long: .NAME.fence has to fit as well"),
        Kind::NotFound => (false, "create its directory first"),
        Kind::Unsupported => (true, "its file system has no OS locks (flock)"),
        _ => (false, "check the disk"),
    };
    let message = format!("{doing} {shown}: {remedy}");
    let made = if refused { Error::refused(message) } else { Error::unreachable(message) };
    made.with_source(error)
}

/// A path on one line.
fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fenced read checks and opens in one step: no other holder can raise the mark in between.
    #[test]
    fn lock_is_kept_from_the_check_until_the_file_is_open() {
        let fixture = tempfile::tempdir().unwrap();
        let file = FileFence::at(fixture.path().join("report")).unwrap();
        let name = LockName::new("report").unwrap();
        let (fencing, who) =
            (FencingToken::new(name, Token::new(33).unwrap()), Label::new("a").unwrap());
        let other = || File::open(fixture.path().join(".report.fence/lock")).unwrap();
        file.write(&fencing, &b"x"[..]).unwrap();
        let locked = file.entered(&fencing, &who).unwrap();
        assert!(matches!(other().try_lock(), Err(std::fs::TryLockError::WouldBlock)));
        let open = locked.open().unwrap();
        assert!(matches!(other().try_lock(), Err(std::fs::TryLockError::WouldBlock)));
        drop(locked);
        other().try_lock().unwrap();
        assert!(open.is_some());
    }
}
