//! Checks who can change the file. A user who can write or replace it can forge any grant.
//!
//! *The user's own* (the default): every file belongs to the user or to root and nobody else can write it; nobody else
//! can rename anything on the path to it. *A group's* (`?shared=group`): the members of one group, that of the
//! directory, may do both; others may not, and cannot add files there either, since setgid would give them the group.
//!
//! The mode shows an access control list as rights of the group. So where a group may write, there must be no list.
//!
//! The checks use paths. They still hold when SQLite opens those paths, since after the checks only users who may write
//! the store can change what a path leads to. In a sticky directory others can add files, but not replace ours: so we
//! create the files that SQLite would create or look for there before it opens them (`new_file.rs`).

use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

use rustix::fs::{FileType, Stat};
use rustix::io::Errno;

use super::users::{self, is_own_group, unmapped_user};
use crate::error::{Error, Result};

/// The files that SQLite keeps beside a database.
pub(super) const BESIDE: [&str; 3] = ["-wal", "-shm", "-journal"];
/// The kernel's limit of links in a path.
const MAX_LINKS: usize = 40;

/// Who may write a store.
#[derive(Clone, Copy, Debug)]
pub(super) struct Access {
    pub(super) user: u32,
    /// The group that shares it.
    pub(super) group: Option<u32>,
    /// Others can add files to its directory, though not replace ours.
    pub(super) sticky: bool,
}

/// A path without links, and what was found while resolving it.
struct Walk {
    real: PathBuf,
    directories: Vec<(PathBuf, Stat)>,
    /// Each link with its directory.
    links: Vec<(PathBuf, usize)>,
    /// A part of the path does not exist yet.
    missing: bool,
}

impl Access {
    /// Finds the file that `path` names, links followed, and refuses it if others can change the path to it.
    /// Creates missing directories, for the user alone, if `create`.
    pub(super) fn resolve(path: &Path, shared: bool, create: bool) -> Result<(PathBuf, Self)> {
        let path = std::path::absolute(path).map_err(|error| {
            Error::invalid(format!("{} is not the path of a file", path.display()))
                .with_source(error)
        })?;
        let (Some(parent), Some(_)) = (path.parent(), path.file_name()) else {
            return Err(Error::invalid(format!(
                "{} names no file: write sqlite:PATH",
                path.display()
            )));
        };
        if std::fs::metadata(&path).is_ok_and(|found| !found.is_file()) {
            return Err(Error::invalid(format!(
                "{} is not a regular file: name a regular file, or one to be created (sqlite:PATH)",
                path.display()
            )));
        }
        let mut walk = walk(&path)?;
        if walk.missing && shared {
            return Err(no_group_directory(parent));
        }
        let mut access = Self::judge(&walk, shared)?;
        if walk.missing && create {
            make_directory(walk.real.parent().unwrap_or(parent))?;
            // Another process may have been faster.
            walk = self::walk(&path)?;
            access = Self::judge(&walk, shared)?;
        }
        Ok((walk.real, access))
    }

    fn judge(walk: &Walk, shared: bool) -> Result<Self> {
        let user = rustix::process::geteuid().as_raw();
        let parent = walk.directories.last();
        let mut access = Self { user, group: None, sticky: false };
        let (trusted, unmapped_user) = ([user, 0], unmapped_user());
        let mut giver = None;
        if let Some((path, stat)) = parent
            && shared
            && !walk.missing
        {
            if stat.st_mode & 0o2020 != 0o2020 {
                return Err(no_group_directory(path));
            }
            access.group = Some(stat.st_gid);
            if stat.st_mode & 0o002 != 0 {
                let path = path.display();
                return Err(Error::refused(format!(
                    "any user can write to {path}, and could have put a store there in the group's \
                     name: chmod o-w {path}, or name a file in another directory (sqlite:PATH)"
                )));
            }
            if has_access_list(path) {
                return Err(refused_access_list(path));
            }
            // The user who gave the directory to the group.
            giver = Some(stat.st_uid);
        }
        for (path, stat) in &walk.directories {
            let real = walk.real.display();
            let shown = path.display();
            // If any user can add a directory there, its owner may be anybody.
            let is_givers = giver == Some(stat.st_uid)
                && !walk
                    .directories
                    .iter()
                    .any(|(above, stat)| path.parent() == Some(above) && stat.st_mode & 0o002 != 0);
            if !trusted.contains(&stat.st_uid) && !is_givers && stat.st_uid != unmapped_user {
                return Err(Error::refused(format!(
                    "{shown} belongs to {}, who could replace {real}: name a file in a directory of \
                     your own (sqlite:PATH)",
                    users::user(stat.st_uid)
                )));
            }
            if access.others_can_write(path, stat) && stat.st_mode & 0o1000 == 0 {
                let any = stat.st_mode & 0o002 != 0;
                if !any && has_access_list(path) {
                    return Err(refused_access_list(path));
                }
                let who = if any { "any user".into() } else { users::group(stat.st_gid) };
                let fix = if any { "go-w" } else { "g-w" };
                let share = if !any && walk.real.parent() == Some(path) {
                    format!(
                        "connect with sqlite:{real}?shared=group if the group shares this store; else "
                    )
                } else {
                    String::new()
                };
                return Err(Error::refused(format!(
                    "{who} can write to {shown}, and could replace {real}: {share}chmod {fix} {shown}, \
                     or name a file in a directory of your own (sqlite:PATH)"
                )));
            }
        }
        for (link, directory) in &walk.links {
            if walk
                .directories
                .get(*directory)
                .is_none_or(|(path, stat)| access.others_can_write(path, stat))
            {
                return Err(Error::refused(format!(
                    "{} is a symbolic link in a directory that others can write: name the file \
                     itself (sqlite:PATH)",
                    link.display()
                )));
            }
        }
        access.sticky =
            !walk.missing && parent.is_some_and(|(path, stat)| access.others_can_write(path, stat));
        Ok(access)
    }

    /// Whether a user who may not write the store can write to a directory.
    fn others_can_write(&self, path: &Path, stat: &Stat) -> bool {
        let may_group = || self.group == Some(stat.st_gid) || is_own_group(self.user, stat.st_gid);
        let group = stat.st_mode & 0o020 != 0 && (!may_group() || has_access_list(path));
        group || stat.st_mode & 0o002 != 0
    }

    /// Whether a socket in the store's own directory belongs to a user who may write the store.
    pub(super) fn is_own_socket(&self, stat: &Stat) -> bool {
        let is_own = match self.group {
            None => stat.st_uid == self.user,
            Some(group) => stat.st_gid == group,
        };
        is_own && FileType::from_raw_mode(stat.st_mode) == FileType::Socket
    }

    /// Refuses a database that others could have written, and the files that SQLite keeps beside it likewise.
    pub(super) fn check(&self, database: &Path) -> Result<()> {
        self.check_file(database, database)?;
        for end in BESIDE {
            self.check_file(&beside(database, end), database)?;
        }
        Ok(())
    }

    fn check_file(&self, path: &Path, database: &Path) -> Result<()> {
        let shown = path.display();
        let stat = match rustix::fs::lstat(path) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => {
                return Err(Error::unreachable(format!(
                    "cannot inspect {shown}: check the permissions of its directory"
                ))
                .with_source(std::io::Error::from(errno)));
            }
        };
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Error::refused(format!(
                "{shown} is not a regular file: remove it, or name another file (sqlite:PATH)"
            )));
        }
        if stat.st_nlink > 1 {
            return Err(Error::refused(format!(
                "{shown} has {} names (hard links), and the others bypass its lock: remove them, \
                 or name another file (sqlite:PATH)",
                stat.st_nlink
            )));
        }
        let database = database.display();
        if stat.st_mode & 0o002 != 0 {
            return Err(Error::refused(format!(
                "any user can write to {shown}, and could have changed grants and tokens: if you \
                 trust what is in it, chmod o-w {shown}; else name another file (sqlite:PATH)"
            )));
        }
        match self.group {
            None => {
                if ![self.user, 0].contains(&stat.st_uid) {
                    return Err(Error::refused(format!(
                        "{shown} belongs to {}, and a store is for its owner alone: name a file of your \
                        own, or share one with a group (sqlite:PATH?shared=group)",
                        users::user(stat.st_uid)
                    )));
                }
                if stat.st_mode & 0o020 != 0 {
                    return Err(Error::refused(format!(
                        "{} can write to {shown}: connect with sqlite:{database}?shared=group if the \
                         group shares this store; else chmod g-w {shown}",
                        users::group(stat.st_gid)
                    )));
                }
            }
            Some(group) => {
                if stat.st_gid != group || stat.st_mode & 0o660 != 0o660 {
                    return Err(Error::refused(format!(
                        "{shown} is not shared with {}: chgrp and chmod 660 it, or connect without \
                         ?shared=group",
                        users::group(group)
                    )));
                }
                if has_access_list(path) {
                    return Err(refused_access_list(path));
                }
            }
        }
        Ok(())
    }
}

/// Whether an access control list adds writers. True if that cannot be read.
pub(super) fn has_access_list(path: &Path) -> bool {
    let size = rustix::fs::lgetxattr_query(path, "system.posix_acl_access");
    !matches!(size, Err(Errno::NODATA | Errno::NOTSUP | Errno::NOSYS))
}

pub(super) fn refused_access_list(path: &Path) -> Error {
    let path = path.display();
    Error::refused(format!(
        "{path} has an access control list that lets others write (getfacl {path}): setfacl -b {path}, \
         or name a file in another directory (sqlite:PATH)"
    ))
}

/// `PATH-wal`, `PATH-shm` and `PATH-journal`.
pub(super) fn beside(database: &Path, end: &str) -> PathBuf {
    let mut path = database.as_os_str().to_owned();
    path.push(end);
    path.into()
}

fn no_group_directory(path: &Path) -> Error {
    let path = path.display();
    Error::refused(format!(
        "{path} is not a directory that a group shares: mkdir {path}; chgrp GROUP {path}; chmod \
         2770 {path}"
    ))
}

fn make_directory(path: &Path) -> Result<()> {
    use std::os::unix::fs::DirBuilderExt as _;
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path).map_err(|error| {
        Error::unreachable(format!(
            "cannot create the directory {}: make its parent writable, or name another file \
             (sqlite:PATH)",
            path.display()
        ))
        .with_source(error)
    })
}

/// Follows an absolute path, link by link.
fn walk(path: &Path) -> Result<Walk> {
    let failed = |path: &Path, errno: Errno| {
        Error::unreachable(format!(
            "cannot reach {}: check its permissions, or name another file (sqlite:PATH)",
            path.display()
        ))
        .with_source(std::io::Error::from(errno))
    };
    let mut todo: VecDeque<OsString> = names(path).collect();
    let mut real = PathBuf::from("/");
    let root = rustix::fs::stat(&real).map_err(|errno| failed(&real, errno))?;
    let mut walk = Walk {
        real: real.clone(),
        directories: vec![(real.clone(), root)],
        links: Vec::new(),
        missing: false,
    };
    while let Some(name) = todo.pop_front() {
        if name == ".." {
            // Everything here is a directory that was checked before.
            real.pop();
            continue;
        }
        let inside = walk.directories.iter().rposition(|(path, _)| *path == real);
        real.push(&name);
        let stat = match rustix::fs::lstat(&real) {
            Ok(stat) => stat,
            Err(errno @ (Errno::NOENT | Errno::NOTDIR)) => {
                // If a file is in the way, creating the directory reports it.
                walk.missing = errno == Errno::NOTDIR || !todo.is_empty();
                real.extend(todo);
                break;
            }
            Err(errno) => return Err(failed(&real, errno)),
        };
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => {
                walk.links.push((real.clone(), inside.unwrap_or(usize::MAX)));
                if walk.links.len() > MAX_LINKS {
                    return Err(failed(&real, Errno::LOOP));
                }
                let target = std::fs::read_link(&real)
                    .map_err(|error| Error::unreachable("cannot read a link").with_source(error))?;
                real.pop();
                if target.is_absolute() {
                    real = PathBuf::from("/");
                }
                for name in names(&target).collect::<Vec<_>>().into_iter().rev() {
                    todo.push_front(name);
                }
            }
            FileType::Directory => walk.directories.push((real.clone(), stat)),
            _ => {}
        }
    }
    // The file's own directory comes last, whichever was checked last.
    if let Some(parent) = real.parent()
        && let Some(found) = walk.directories.iter().rposition(|(path, _)| path == parent)
    {
        let parent = walk.directories[found].clone();
        walk.directories.push(parent);
    }
    walk.real = real;
    Ok(walk)
}

/// The names in a path, `..` as one of them.
fn names(path: &Path) -> impl Iterator<Item = OsString> + '_ {
    path.components().filter_map(|component| match component {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    })
}
