//! Files whose lock shows that a holder is alive.
//!
//! A process that takes a grant, or waits for one, has a file here open and locked (`flock`). The kernel drops the lock
//! with the last process that has the file open, however it ended, so a process that can lock the file knows that they
//! are all gone. What must hold, so that a live holder never counts as dead:
//!
//! - a file is locked before any row names it, and only its creator ever keeps it locked;
//! - a missing file means alive: if somebody deletes too much, others only have to wait for the lease.
//!
//! A file serves one grant after the other, since creating one costs as much as a small transaction. One that a child
//! has inherited is not used again: the child may outlive the grant.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use fencepost_core::OwnerId;
use parking_lot::Mutex;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use super::access::Access;
use crate::backend::Presence;
use crate::random;
use crate::store_error::StoreError;

/// How many idle files a client keeps.
const IDLE: usize = 64;

/// A locked file and its name.
#[derive(Clone, Debug)]
pub(super) struct PresenceFile {
    pub(super) name: Arc<str>,
    pub(super) presence: Presence,
}

/// The directory of these files, and those of this client.
#[derive(Debug)]
pub(super) struct PresenceDir {
    path: PathBuf,
    access: Access,
    /// `None` until it is created: then no holder has a presence file.
    directory: OnceLock<OwnedFd>,
    ours: Mutex<OwnFiles>,
}

#[derive(Debug, Default)]
struct OwnFiles {
    idle: Vec<PresenceFile>,
    used: HashMap<OwnerId, Used>,
}

#[derive(Debug)]
struct Used {
    presence_file: PresenceFile,
    takers: usize,
}

impl PresenceDir {
    pub(super) fn open(path: &Path, access: Access, create: bool) -> crate::Result<Self> {
        let directory = OnceLock::new();
        if let Some(found) = access.open_directory(path, create)? {
            let _ = directory.set(found);
        }
        Ok(Self { path: path.to_owned(), access, directory, ours: Mutex::default() })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The directory, if it exists.
    pub(super) fn directory(&self) -> Option<&OwnedFd> {
        if self.directory.get().is_none()
            && let Ok(Some(found)) = self.access.open_directory(&self.path, false)
        {
            let _ = self.directory.set(found);
        }
        self.directory.get()
    }

    /// The directory, created if it is missing.
    pub(super) fn ensure(&self) -> Result<&OwnedFd, StoreError> {
        if let Some(directory) = self.directory() {
            return Ok(directory);
        }
        if let Some(made) = self.access.open_directory(&self.path, true)? {
            let _ = self.directory.set(made);
        }
        self.directory.get().ok_or_else(|| {
            StoreError::unusable(format!("{} is gone: connect again", self.path.display()))
        })
    }

    /// The permissions of the store's files and sockets.
    pub(super) const fn access(&self) -> Access {
        self.access
    }

    /// A locked file for `owner`, the same one if it has one already. Each `take` is matched by a `give_back`, or all of
    /// them by one `give_back_all`.
    pub(super) fn take(&self, owner: OwnerId) -> Result<PresenceFile, StoreError> {
        if let Some(used) = self.ours.lock().used.get_mut(&owner) {
            used.takers += 1;
            return Ok(used.presence_file.clone());
        }
        let idle = self.ours.lock().idle.pop();
        let presence_file = match idle {
            Some(presence_file) => presence_file,
            // Not under the lock: the disk may hang, and the client's own thread must not.
            None => self.make()?,
        };
        let mut ours = self.ours.lock();
        let used = ours.used.entry(owner).or_insert_with(|| Used { presence_file, takers: 0 });
        used.takers += 1;
        Ok(used.presence_file.clone())
    }

    /// One caller of `take` no longer needs the file.
    pub(super) fn give_back(&self, owner: OwnerId) {
        let last = {
            let mut ours = self.ours.lock();
            let Some(used) = ours.used.get_mut(&owner) else { return };
            used.takers -= 1;
            used.takers == 0
        };
        if last {
            self.give_back_all(owner);
        }
    }

    /// `owner` no longer needs its file. It stays locked as long as this process lives, so at worst a row that still names
    /// it ends with its lease. May wait for the disk.
    pub(super) fn give_back_all(&self, owner: OwnerId) {
        let unwanted = {
            let mut ours = self.ours.lock();
            let Some(Used { presence_file, .. }) = ours.used.remove(&owner) else { return };
            if !presence_file.presence.inherited() && ours.idle.len() < IDLE {
                ours.idle.push(presence_file);
                return;
            }
            presence_file
        };
        self.remove(&unwanted.name);
    }

    fn make(&self) -> Result<PresenceFile, StoreError> {
        let failed = |errno: Errno| {
            let path = self.path.display();
            let remedy = match errno {
                Errno::MFILE | Errno::NFILE => {
                    "each lock and each waiter needs an open file, raise ulimit -n"
                }
                Errno::NOENT => "it was removed, connect again",
                Errno::NOSPC | Errno::DQUOT => "the disk is full, free some space",
                _ => "check its permissions",
            };
            let message = format!("cannot create a presence file in {path}: {remedy}");
            let error = match errno {
                Errno::MFILE | Errno::NOENT | Errno::ACCESS | Errno::PERM | Errno::ROFS => {
                    StoreError::unusable(message)
                }
                _ => StoreError::unavailable(message),
            };
            error.with_source(std::io::Error::from(errno))
        };
        let directory = self.ensure()?;
        loop {
            let bits = u64::from_ne_bytes(random::bytes()?);
            let name = format!("p-{bits:016x}");
            let file = self.access.make_file(directory, Path::new(&name)).map_err(failed)?;
            let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            // The gc may have removed the file before it was locked; then try again.
            let linked = rustix::fs::fstat(&file).map_err(failed)?.st_nlink > 0;
            if locked.is_ok() && linked {
                return Ok(PresenceFile { name: name.into(), presence: Presence::new(file) });
            }
        }
    }

    /// Whether every process that had the file is gone. False for a missing file.
    pub(super) fn is_dead(&self, name: &str) -> bool {
        self.lock_dead(name).is_some()
    }

    /// Removes the file if every process that had it is gone.
    pub(super) fn remove_dead(&self, name: &str) {
        // Locked while it is removed, so that a process that has just created it notices.
        if let Some(_locked) = self.lock_dead(name) {
            self.remove(name);
        }
    }

    fn lock_dead(&self, name: &str) -> Option<OwnedFd> {
        // The name comes from a row, and the process that wrote it may have fewer rights than we have.
        let plain = name.strip_prefix("p-")?.bytes().all(|byte| byte.is_ascii_alphanumeric());
        let directory = self.directory().filter(|_| plain)?;
        let flags = OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let file = rustix::fs::openat(directory, name, flags, Mode::empty()).ok()?;
        // A shared lock, so that two processes that check do not mistake each other for the holder.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
        Some(file)
    }

    pub(super) fn remove(&self, name: &str) {
        // A file that cannot be removed does no harm.
        if let Some(directory) = self.directory() {
            let _ = rustix::fs::unlinkat(directory, name, AtFlags::empty());
        }
    }

    /// The names in the directory.
    pub(super) fn names(&self) -> Vec<String> {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return Vec::new() };
        entries.flatten().filter_map(|entry| entry.file_name().into_string().ok()).collect()
    }

    /// Removes the files of processes that are gone, except those that a row names (`named`): without its file that row
    /// would count as alive until its lease ends.
    pub(super) fn gc<E>(
        &self,
        named: impl FnOnce() -> Result<HashSet<String>, E>,
    ) -> Result<(), E> {
        let (presences, others): (Vec<_>, Vec<_>) =
            self.names().into_iter().partition(|name| name.starts_with("p-"));
        let dead: Vec<_> = presences.into_iter().filter(|name| self.is_dead(name)).collect();
        if !dead.is_empty() {
            // Read after the files: a dead process adds no rows.
            let named = named()?;
            for name in dead.iter().filter(|name| !named.contains(*name)) {
                self.remove_dead(name);
            }
        }
        for name in others.iter().filter(|name| name.starts_with("w-")) {
            if super::wake_socket::is_dead(self, name) {
                self.remove(name);
            }
        }
        Ok(())
    }
}

impl Drop for PresenceDir {
    fn drop(&mut self) {
        let ours = std::mem::take(&mut *self.ours.lock());
        for presence_file in ours.idle {
            self.remove(&presence_file.name);
        }
        // Files in use stay: an inherited one still has a holder, and gc removes the others later.
    }
}
