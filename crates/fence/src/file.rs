//! The fence of a file, for the processes of one host.
//!
//! ```
//! use fencepost::fences::file::FileFence;
//! # use fencepost::{LockName, Token};
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let directory = tempfile::tempdir()?;
//! # let path = directory.path().join("report.json");
//! # let (name, token) = (LockName::new("report")?, Token::new(33)?);
//! // `name` is the lock's, `token` is `guard.token()`.
//! let file = FileFence::at(&path)?;
//! let old = file.read(&name, token)?; // enters first
//! # assert!(old.is_none());
//! file.write(&name, token, &b"{}"[..])?; // all of it, or nothing
//! # Ok(()) }
//! ```
//!
//! *What must hold:* the file never takes the contents of a token below its mark, and is at any moment one whole
//! write, whoever is killed when. *Why it does:* the input is first spooled beside the file, as long as it takes,
//! with nothing held. Then, under an OS lock (`flock`), the token is checked, the mark is raised and synced, and
//! only then the spooled file is renamed over the old one. Who comes later finds the mark. A crash in between leaves
//! a mark that is too high, never one that is too low.
//!
//! *Where that ends:* with the host. An OS lock does not reach another machine, so a file on a network file system is
//! refused. And with those who do not ask: `echo > file`, an editor, `mv` are not stopped. A process that is
//! stopped in the few milliseconds under the lock holds others up until it goes on or is gone; they give up after
//! ten seconds. So does anybody who holds the lock on purpose: only those can open it who may write the directory.
//! Readers that do not enter see a whole file, but perhaps the one before.
//!
//! *What lies beside a file* `NAME`, hidden, in the same directory. Who may write that directory may write these, or in a
//! sticky one (`/tmp`) who owns the file; who may only read it may read the marks:
//!
//! ```text
//! .NAME.fence/
//!   lock    empty; locked while somebody checks and renames; never removed, never renamed; closed to readers
//!   marks   the marks, one per lock name, and the resets (the map is in file/record.rs)
//!   new-*   input on its way, or marks on theirs; locked by who writes it, removed later if that one was killed
//! ```
//!
//! Links are followed once, when the fence is made: two paths to a file have one mark. A hard link is another file
//! with a mark of its own, and a write leaves it with the old contents. To delete `.NAME.fence` is to forget the marks.
//!
//! All calls block, mostly on the disk: in async code use `spawn_blocking`.

mod locked;
mod place;
mod record;
mod spool;

use std::fs::File;
use std::io::Read;
use std::path::Path;

use fencepost_base::label::default_label;
use fencepost_base::{Error, Result};
use fencepost_core::{Label, LockName, Token};

use self::locked::Locked;
use self::place::Place;
use super::contract::{Admission, Mark, Reset, admit, checked_reset};

/// A file with a fence.
#[derive(Debug)]
pub struct FileFence {
    place: Place,
}

impl FileFence {
    /// The fence of the file at `path`, which need not be there yet; its directory must. Refuses what is no regular
    /// file, and network file systems. Nothing is written.
    pub fn at(path: impl AsRef<Path>) -> Result<Self> {
        Ok(Self { place: Place::find(path.as_ref())? })
    }

    /// The file, links followed.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.place.path()
    }

    /// Enters with `token`: raises the mark of `name`, or refuses. A holder's first act, before it reads. When it
    /// returns, the mark is on disk.
    pub fn enter(&self, name: &LockName, token: Token) -> Result<()> {
        self.enter_as(name, token, &default_label()?)
    }

    /// [`enter`](Self::enter), with what a person shall read as the one who entered.
    pub fn enter_as(&self, name: &LockName, token: Token, who: &Label) -> Result<()> {
        self.entered(name, token, who).map(drop)
    }

    /// Enters, and keeps everybody else out until what this returns is dropped.
    fn entered(&self, name: &LockName, token: Token, who: &Label) -> Result<Locked<'_>> {
        let locked = self.place.lock()?;
        locked.raise(name, token, who)?;
        Ok(locked)
    }

    /// Enters, and opens the file; none if there is none. What is open stays as it is: a later write is another file.
    pub fn open(&self, name: &LockName, token: Token) -> Result<Option<File>> {
        self.entered(name, token, &default_label()?)?.open()
    }

    /// Enters, and reads the file; none if there is none.
    pub fn read(&self, name: &LockName, token: Token) -> Result<Option<Vec<u8>>> {
        let Some(mut file) = self.open(name, token)? else { return Ok(None) };
        let mut contents = Vec::new();
        match file.read_to_end(&mut contents) {
            Ok(_) => Ok(Some(contents)),
            Err(error) => Err(self.place.failed("can not read", error)),
        }
    }

    /// Replaces the file by all that `data` has, if `token` may; enters by itself, too. Returns how many bytes they are.
    ///
    /// On an error the file is as it was. Permissions are kept, and the owner where this process may give files
    /// away; what else is attached to a file (extended attributes, ACLs) is not.
    pub fn write(&self, name: &LockName, token: Token, data: impl Read) -> Result<u64> {
        // A stale token is refused before all the input is read.
        if let Admission::Stale(mark) = admit(self.place.marks()?.mark(name), token) {
            return Err(mark.refuses(token));
        }
        let mut spool = self.place.spool()?;
        let bytes = spool.fill(data)?;
        self.entered(name, token, &default_label()?)?.replace(spool)?;
        Ok(bytes)
    }

    /// The mark of `name`, if anybody has entered.
    pub fn mark(&self, name: &LockName) -> Result<Option<Mark>> {
        Ok(self.place.marks()?.mark(name).cloned())
    }

    /// The mark of `name`, or all of them.
    pub fn show(&self, name: Option<&LockName>) -> Result<Vec<Mark>> {
        let mut marks = self.place.marks()?.marks;
        marks.retain(|mark| name.is_none_or(|name| *name == mark.name));
        Ok(marks)
    }

    /// Sets the mark of `name` to `to`, or forgets it, and keeps a record of it. Returns the mark that was there.
    ///
    /// A mark that is lowered or forgotten lets holders in that it had kept out: see that none is left.
    pub fn reset(
        &self,
        name: &LockName,
        to: Option<Token>,
        by: &str,
        why: &str,
    ) -> Result<Option<Mark>> {
        checked_reset(by, why)?;
        // Without anything to forget nothing is made, not even the directory of the marks.
        if to.is_none() && self.mark(name)?.is_none() {
            return Ok(None);
        }
        let locked = self.place.lock()?;
        let mut marks = self.place.marks()?;
        let old = marks.mark(name).cloned();
        if let Some(reset) = Reset::of(old.as_ref(), name, to, (by, why)) {
            marks.reset(reset);
            locked.keep(&marks)?;
        }
        Ok(old)
    }

    /// The records of resets, oldest first: those of `name`, or all. The last 1000 are kept.
    pub fn audit(&self, name: Option<&LockName>) -> Result<Vec<Reset>> {
        let mut resets = self.place.marks()?.resets;
        resets.retain(|reset| name.is_none_or(|name| *name == reset.name));
        Ok(resets)
    }
}

/// What an error of the system means, and that the file is as it was.
fn explain(doing: &str, path: &Path, error: std::io::Error) -> Error {
    use std::io::ErrorKind as Kind;
    let shown = shown(path);
    let (refused, remedy) = match error.kind() {
        Kind::StorageFull | Kind::QuotaExceeded => (false, "free some disk space"),
        Kind::FileTooLarge => (true, "it is larger than this system allows (ulimit -f)"),
        Kind::PermissionDenied => (true, "see the permissions of its directory"),
        Kind::ReadOnlyFilesystem => (true, "its file system can only be read"),
        Kind::InvalidFilename => (true, "its name is too long: .NAME.fence has to fit as well"),
        Kind::NotFound => (false, "make its directory first"),
        Kind::Unsupported => (true, "its file system has no OS locks (flock)"),
        _ => (false, "see to the disk"),
    };
    let message = format!("{doing} {shown}: {remedy}");
    let made = if refused { Error::refused(message) } else { Error::unreachable(message) };
    made.because(error)
}

/// A path on one line.
fn shown(path: &Path) -> String {
    path.to_string_lossy().escape_debug().to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A fenced read is the check and the open in one step: in between nobody else can raise the mark.
    #[test]
    fn who_has_entered_keeps_others_out_until_the_file_is_open() {
        let scene = tempfile::tempdir().unwrap();
        let file = FileFence::at(scene.path().join("report")).unwrap();
        let (name, who) = (LockName::new("report").unwrap(), Label::new("a").unwrap());
        let other = || File::open(scene.path().join(".report.fence/lock")).unwrap();
        file.write(&name, Token::new(33).unwrap(), &b"x"[..]).unwrap();
        let locked = file.entered(&name, Token::new(33).unwrap(), &who).unwrap();
        assert!(matches!(other().try_lock(), Err(std::fs::TryLockError::WouldBlock)));
        let open = locked.open().unwrap();
        assert!(matches!(other().try_lock(), Err(std::fs::TryLockError::WouldBlock)));
        drop(locked);
        other().try_lock().unwrap();
        assert!(open.is_some());
    }
}
