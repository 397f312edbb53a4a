//! Files whose lock shows that a holder lives.
//!
//! A process that takes a grant, or waits for one, has a file here open and locked (`flock`). The kernel
//! drops the lock with the last process that has the file open, however it ended, so whoever can lock the
//! file knows that they are all gone. What must hold, for a live holder never to be taken for dead:
//!
//! - a file is locked before any row names it, and nobody but its maker ever locks it for good;
//! - a missing file means alive: somebody who tidies up too much only makes others wait for the lease.
//!
//! A file serves one grant after the other, since making one costs as much as a small transaction. One
//! that a child has inherited is not used again: the child may outlive the grant.

use std::collections::{HashMap, HashSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use fencepost_core::OwnerId;
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags};
use rustix::io::Errno;

use crate::backend::Presence;
use crate::error::{Error, Result};

/// How many idle files a client keeps.
const IDLE: usize = 64;

/// A locked file and its name.
#[derive(Clone, Debug)]
pub(super) struct Mark {
    pub(super) name: Arc<str>,
    pub(super) presence: Presence,
}

/// The directory of these files, and those of this client.
#[derive(Debug)]
pub(super) struct Marks {
    path: PathBuf,
    directory: OwnedFd,
    ours: Mutex<Ours>,
}

#[derive(Debug, Default)]
struct Ours {
    idle: Vec<Mark>,
    used: HashMap<OwnerId, Used>,
}

#[derive(Debug)]
struct Used {
    mark: Mark,
    takers: usize,
}

impl Marks {
    pub(super) fn open(path: &Path) -> Result<Self> {
        use std::os::unix::fs::DirBuilderExt as _;
        let failed = |error: std::io::Error| {
            Error::unreachable(format!(
                "can not use the directory {}: make it writable, or name another file (sqlite:PATH)",
                path.display()
            ))
            .because(error)
        };
        // Who can write here can pass for a holder, so it is the user's alone.
        std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(failed)?;
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let directory =
            rustix::fs::open(path, flags, Mode::empty()).map_err(|errno| failed(errno.into()))?;
        let stat = rustix::fs::fstat(&directory).map_err(|errno| failed(errno.into()))?;
        if stat.st_uid != rustix::process::geteuid().as_raw() || stat.st_mode & 0o022 != 0 {
            return Err(Error::refused(format!(
                "others can write to {}, and could pass for a holder: make it yours alone (chown, \
                 chmod 700), or name another file (sqlite:PATH)",
                path.display()
            )));
        }
        Ok(Self { path: path.to_owned(), directory, ours: Mutex::default() })
    }

    pub(super) fn directory(&self) -> &OwnedFd {
        &self.directory
    }

    /// A locked file for `owner`, the one it has already if it asks again. Each `take` is matched by a
    /// `give_back`, or all of them by one `give_back_all`.
    pub(super) fn take(&self, owner: OwnerId) -> Result<Mark> {
        if let Some(used) = self.ours().used.get_mut(&owner) {
            used.takers += 1;
            return Ok(used.mark.clone());
        }
        let idle = self.ours().idle.pop();
        let mark = match idle {
            Some(mark) => mark,
            // Not under the lock: the disk may hang, and the client's own thread must not.
            None => self.make()?,
        };
        let mut ours = self.ours();
        let used = ours.used.entry(owner).or_insert_with(|| Used { mark, takers: 0 });
        used.takers += 1;
        Ok(used.mark.clone())
    }

    /// One taker of `owner` needs the file no longer.
    pub(super) fn give_back(&self, owner: OwnerId) {
        let last = {
            let mut ours = self.ours();
            let Some(used) = ours.used.get_mut(&owner) else { return };
            used.takers -= 1;
            used.takers == 0
        };
        if last {
            self.give_back_all(owner);
        }
    }

    /// `owner` needs its file no longer. It stays locked as long as this process lives, so a row that still
    /// names it is at worst freed by its lease. May wait for the disk.
    pub(super) fn give_back_all(&self, owner: OwnerId) {
        let unwanted = {
            let mut ours = self.ours();
            let Some(Used { mark, .. }) = ours.used.remove(&owner) else { return };
            if !mark.presence.inherited() && ours.idle.len() < IDLE {
                ours.idle.push(mark);
                return;
            }
            mark
        };
        self.remove(&unwanted.name);
    }

    fn ours(&self) -> MutexGuard<'_, Ours> {
        self.ours.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn make(&self) -> Result<Mark> {
        let failed = |errno: Errno| {
            let path = self.path.display();
            let remedy = match errno {
                Errno::MFILE | Errno::NFILE => {
                    "each lock and each waiter needs an open file, raise ulimit -n"
                }
                _ => "see its permissions",
            };
            Error::unreachable(format!("can not make a presence file in {path}: {remedy}"))
                .because(std::io::Error::from(errno))
        };
        loop {
            let mut bits = [0; 8];
            getrandom::fill(&mut bits).map_err(|error| {
                Error::unreachable("the system has no random numbers").because(error)
            })?;
            let name = format!("p-{:016x}", u64::from_ne_bytes(bits));
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::RDWR | OFlags::CLOEXEC;
            let file = rustix::fs::openat(&self.directory, &name, flags, Mode::RUSR | Mode::WUSR)
                .map_err(failed)?;
            let locked = rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive);
            // A sweep may have caught the file before it was locked; then it is gone, and we try again.
            let linked = rustix::fs::fstat(&file).map_err(failed)?.st_nlink > 0;
            if locked.is_ok() && linked {
                return Ok(Mark { name: name.into(), presence: Presence::new(file) });
            }
        }
    }

    /// Whether every process that had the file is gone. No for a file that is not there.
    pub(super) fn is_dead(&self, name: &str) -> bool {
        self.lock_dead(name).is_some()
    }

    /// Removes the file if every process that had it is gone.
    pub(super) fn remove_dead(&self, name: &str) {
        // Locked while it is removed, so that its maker, if it was only just made, notices.
        if let Some(_locked) = self.lock_dead(name) {
            self.remove(name);
        }
    }

    fn lock_dead(&self, name: &str) -> Option<OwnedFd> {
        let flags = OFlags::RDWR | OFlags::CLOEXEC;
        let file = rustix::fs::openat(&self.directory, name, flags, Mode::empty()).ok()?;
        // Shared, so that two who ask do not take each other for the holder.
        rustix::fs::flock(&file, FlockOperation::NonBlockingLockShared).ok()?;
        Some(file)
    }

    pub(super) fn remove(&self, name: &str) {
        // A file that can not be removed is only untidy.
        let _ = rustix::fs::unlinkat(&self.directory, name, AtFlags::empty());
    }

    /// Removes what processes that are gone have left, but for files that a row names (`named`):
    /// without its file that row would count as alive until its lease ends.
    pub(super) fn sweep<E>(
        &self,
        named: impl FnOnce() -> Result<HashSet<String>, E>,
    ) -> Result<(), E> {
        let Ok(entries) = std::fs::read_dir(&self.path) else { return Ok(()) };
        let found = entries.flatten().filter_map(|entry| entry.file_name().into_string().ok());
        let (presences, others): (Vec<_>, Vec<_>) = found.partition(|name| name.starts_with("p-"));
        let dead: Vec<_> = presences.into_iter().filter(|name| self.is_dead(name)).collect();
        if !dead.is_empty() {
            // Asked after the files: a dead one gets no new rows.
            let named = named()?;
            for name in dead.iter().filter(|name| !named.contains(*name)) {
                self.remove_dead(name);
            }
        }
        for name in others.iter().filter(|name| name.starts_with("w-")) {
            if super::wake::is_dead(&self.directory, name) {
                self.remove(name);
            }
        }
        Ok(())
    }
}

impl Drop for Marks {
    fn drop(&mut self) {
        let ours = std::mem::take(&mut *self.ours());
        for mark in ours.idle {
            self.remove(&mark.name);
        }
        // Files in use stay: an inherited one still has a holder, and the others are swept later.
    }
}
