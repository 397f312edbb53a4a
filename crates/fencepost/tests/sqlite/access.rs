//! A user who can write a store can forge any grant: so a store belongs to one user, or to a group.

use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, symlink};
use std::path::{Path, PathBuf};

use fencepost::{ErrorKind, Fencepost};
use tempfile::TempDir;

use super::other_process::{OtherProcess, User, ask, url};
use super::{connect, edit, refuses, store_file, used};

const ALICE: User = (65533, 65533);
const MALLORY: User = (65534, 65534);
/// The group of a shared store, and two of its users.
const TEAM: u32 = 65532;
const BOB: User = (65531, TEAM);
const CAROL: User = (65530, TEAM);

fn mode(path: &Path) -> u32 {
    std::fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

fn chmod(path: &Path, mode: u32) {
    std::fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).unwrap();
}

fn beside(path: &Path, end: &str) -> PathBuf {
    PathBuf::from(format!("{}{end}", path.display()))
}

/// Everything below a directory, the directory included.
fn everything(path: &Path) -> Vec<PathBuf> {
    let mut all = vec![path.to_owned()];
    if std::fs::symlink_metadata(path).unwrap().is_dir() {
        let inside = std::fs::read_dir(path).unwrap();
        all.extend(inside.flat_map(|entry| everything(&entry.unwrap().path())));
    }
    all
}

/// Whether this process can be another user.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can be another user");
    }
    root
}

/// A directory with this mode that every user can reach.
fn shared(mode: u32) -> (TempDir, PathBuf) {
    let directory = tempfile::tempdir().unwrap();
    chmod(directory.path(), 0o755);
    let shared = directory.path().join("shared");
    std::fs::create_dir(&shared).unwrap();
    chmod(&shared, mode);
    (directory, shared)
}

/// A store of `user` that it used once.
fn store_of(user: User) -> (TempDir, PathBuf) {
    let (directory, home) = shared(0o755);
    chown(&home, Some(user.0), Some(user.1)).unwrap();
    let path = home.join("locks.db");
    assert_eq!(ask(Some(user), "try", &url(&path)), "granted 1");
    (directory, path)
}

#[tokio::test]
async fn world_writable_file_is_refused() {
    for end in ["", "-wal", "-shm"] {
        let store_file = store_file();
        used(&store_file.path, false).await;
        let path = beside(&store_file.path, end);
        chmod(&path, 0o666);
        let shown = path.display().to_string();
        let remedy = format!("chmod o-w {shown}");
        refuses(connect(&store_file.path).await, ErrorKind::Refused, &[&shown, &remedy]);
        chmod(&path, 0o600);
        connect(&store_file.path).await.unwrap();
    }
}

#[tokio::test]
async fn group_writable_file_is_refused_and_the_option_is_named() {
    for end in ["", "-wal", "-shm"] {
        let store_file = store_file();
        used(&store_file.path, false).await;
        let path = beside(&store_file.path, end);
        chmod(&path, 0o660);
        let option = format!("sqlite:{}?shared=group", store_file.path.display());
        let shown = path.display().to_string();
        refuses(
            connect(&store_file.path).await,
            ErrorKind::Refused,
            &[&shown, &option, "chmod g-w"],
        );
    }
}

#[tokio::test]
async fn directory_in_which_others_can_replace_the_file_is_refused() {
    let store_file = store_file();
    used(&store_file.path, false).await;
    let parent = store_file.path.parent().unwrap();
    let shown = parent.display().to_string();
    chmod(parent, 0o777);
    refuses(
        connect(&store_file.path).await,
        ErrorKind::Refused,
        &[&shown, "chmod go-w", "sqlite:PATH"],
    );
    // Nor can they in a parent directory.
    chmod(parent, 0o700);
    let above = parent.parent().unwrap();
    chmod(above, 0o757);
    let shown = above.display().to_string();
    refuses(connect(&store_file.path).await, ErrorKind::Refused, &[&shown, "chmod go-w"]);
    // In a sticky directory they cannot.
    chmod(above, 0o1777);
    chmod(parent, 0o1777);
    let token = used(&store_file.path, false).await;
    assert_eq!(token, 2, "it is the same store");
    let journal = beside(&store_file.path, "-journal");
    assert_eq!(mode(&journal), 0o600, "nobody else can add what SQLite would play back");
}

#[tokio::test]
async fn link_in_a_directory_that_others_can_write_is_refused() {
    let store_file = store_file();
    used(&store_file.path, false).await;
    let (_directory, shared) = shared(0o1777);
    let file = shared.join("link.db");
    symlink(&store_file.path, &file).unwrap();
    let shown = file.display().to_string();
    refuses(connect(&file).await, ErrorKind::Refused, &[&shown, "symbolic link"]);
    let directory = shared.join("state");
    symlink(store_file.path.parent().unwrap(), &directory).unwrap();
    let shown = directory.display().to_string();
    refuses(
        connect(&directory.join("locks.db")).await,
        ErrorKind::Refused,
        &[&shown, "symbolic link"],
    );
    // A link in a directory of our own leads to the same store.
    let ours = store_file.path.parent().unwrap().join("again");
    symlink(".", &ours).unwrap();
    assert_eq!(used(&ours.join("again/locks.db"), false).await, 2);
}

#[tokio::test]
async fn file_with_a_second_hard_link_is_refused() {
    for end in ["", "-wal"] {
        let store_file = store_file();
        used(&store_file.path, false).await;
        let path = beside(&store_file.path, end);
        std::fs::hard_link(&path, store_file.path.with_file_name("second")).unwrap();
        let shown = path.display().to_string();
        refuses(connect(&store_file.path).await, ErrorKind::Refused, &[&shown, "hard links"]);
    }
}

#[tokio::test]
async fn links_in_place_of_sqlite_files_are_refused() {
    for end in ["-wal", "-shm", "-journal"] {
        let store_file = store_file();
        used(&store_file.path, false).await;
        let path = beside(&store_file.path, end);
        let _ = std::fs::remove_file(&path);
        symlink("elsewhere", &path).unwrap();
        let shown = path.display().to_string();
        refuses(
            connect(&store_file.path).await,
            ErrorKind::Refused,
            &[&shown, "not a regular file"],
        );
    }
}

/// Including those that SQLite creates, and the holder's socket.
#[test]
fn new_files_are_private_whatever_the_umask() {
    for (umask, open) in [("000", 0o700), ("077", 0o700), ("000", 0o1777)] {
        let (_directory, shared) = shared(open);
        let path = shared.join("locks.db");
        let mut holder = OtherProcess::start(None, umask, "hold", &url(&path));
        assert_eq!(holder.says(), "granted 1");
        let mut waiter = OtherProcess::start(None, umask, "hold", &url(&path));
        let sockets = |path: &PathBuf| path.to_string_lossy().contains("/w-");
        super::until(|| everything(&shared).iter().any(sockets));
        for path in everything(&shared) {
            let wanted = match path {
                _ if path == shared => open,
                _ if path.is_dir() => 0o700,
                _ => 0o600,
            };
            // A socket gets its mode slightly after its name; until then its directory protects it.
            super::until(|| mode(&path) == wanted);
        }
        holder.send("release");
        assert_eq!(waiter.says(), "granted 2", "umask {umask}, {open:o}");
    }
}

/// The attack that worked before: Mallory creates the file, makes it writable for all, and sets its counter back
/// under Alice's grant.
#[test]
fn file_planted_by_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let (_directory, shared) = shared(0o1777);
    let path = shared.join("locks.db");
    assert_eq!(ask(Some(MALLORY), "try", &url(&path)), "granted 1");
    let planted = [path.clone(), beside(&path, "-wal"), beside(&path, "-shm")];
    for file in &planted {
        chmod(file, 0o666);
    }
    // The presence directory would reveal the owner.
    std::fs::remove_dir_all(beside(&path, ".d")).unwrap();
    let refused = ask(Some(ALICE), "try", &url(&path));
    assert!(refused.starts_with("error") && refused.contains("any user can write"), "{refused}");
    for file in &planted {
        chmod(file, 0o644);
    }
    let refused = ask(Some(ALICE), "try", &url(&path));
    assert!(refused.contains("belongs to") && refused.contains("?shared=group"), "{refused}");
    // Root refuses too: the owner of the file can write it.
    let refused = ask(None, "try", &url(&path));
    assert!(refused.contains("belongs to") && refused.contains("not lock"), "{refused}");
}

/// Mallory cannot replace Alice's file in a sticky directory, but can create files beside it.
#[test]
fn planted_sqlite_files_are_refused() {
    if !is_root() {
        return;
    }
    for end in ["-wal", "-shm", "-journal", ".d"] {
        let (_directory, shared) = shared(0o1777);
        let path = shared.join("locks.db");
        let planted = beside(&path, end);
        if end == ".d" {
            std::fs::create_dir(&planted).unwrap();
        } else {
            std::fs::write(&planted, "").unwrap();
        }
        chown(&planted, Some(MALLORY.0), Some(MALLORY.1)).unwrap();
        let refused = ask(Some(ALICE), "try", &url(&path));
        let shown = planted.display().to_string();
        assert!(refused.starts_with("error") && refused.contains(&shown), "{end}: {refused}");
        assert!(!path.exists(), "{end}: nothing was made");
    }
}

#[test]
fn directory_of_another_user_is_refused() {
    if !is_root() {
        return;
    }
    let (_directory, shared) = shared(0o777);
    chown(&shared, Some(MALLORY.0), Some(MALLORY.1)).unwrap();
    chmod(&shared, 0o755);
    let refused = ask(None, "try", &url(&shared.join("mine/locks.db")));
    assert!(refused.starts_with("error") && refused.contains("belongs to"), "{refused}");
    assert_eq!(everything(&shared).len(), 1, "nothing was made");
}

/// A group directory, as the docs describe it.
fn group_directory() -> (TempDir, PathBuf) {
    let (directory, shared) = shared(0o2770);
    chown(&shared, None, Some(TEAM)).unwrap();
    chmod(&shared, 0o2770);
    (directory, shared)
}

/// What must hold for every file of a group store.
fn assert_shared(directory: &Path) {
    for path in everything(directory) {
        let found = std::fs::symlink_metadata(&path).unwrap();
        let wanted = if found.is_dir() { 0o2770 } else { 0o660 };
        super::until(|| mode(&path) == wanted);
        assert_eq!(found.gid(), TEAM, "{}", path.display());
    }
}

#[test]
fn users_of_a_group_share_a_store() {
    if !is_root() {
        return;
    }
    let (_directory, shared) = group_directory();
    let path = shared.join("locks.db");
    let option = format!("{}?shared=group", url(&path));
    let mut bob = OtherProcess::start(Some(BOB), "077", "hold", &option);
    assert_eq!(bob.says(), "granted 1");
    assert_eq!(ask(Some(CAROL), "try", &option), "held");
    // A release wakes a waiter of another user.
    let mut carol = OtherProcess::start(Some(CAROL), "077", "hold", &option);
    super::until(|| {
        everything(&shared).iter().any(|path| {
            path.to_string_lossy().contains("/w-")
                && std::fs::symlink_metadata(path).is_ok_and(|found| found.uid() == CAROL.0)
        })
    });
    assert_shared(&shared);
    bob.send("release");
    assert_eq!((bob.says().as_str(), carol.says().as_str()), ("released", "granted 2"));
    // A break reaches a holder of another user, who confirms it.
    super::until(|| everything(&shared).iter().any(|path| path.to_string_lossy().contains("/w-")));
    assert_eq!(ask(Some(BOB), "break", &option), "confirmed true");
    assert!(carol.says().starts_with("lost broken"));
    // Another user notices its death, though the lease continues for minutes.
    let mut carol = OtherProcess::start(Some(CAROL), "022", "hold", &option);
    assert_eq!(carol.says(), "granted 4");
    carol.kill();
    assert_eq!(ask(Some(BOB), "try", &option), "granted 5");
    assert_shared(&shared);
    // Root may use it, and leaves no file that the others cannot use.
    assert_eq!(ask(None, "try", &option), "granted 6");
    assert_shared(&shared);
    assert_eq!(ask(Some(BOB), "try", &option), "granted 7");
}

#[test]
fn only_the_group_shares_a_store() {
    if !is_root() {
        return;
    }
    let (_directory, shared) = group_directory();
    chmod(&shared, 0o2775);
    let path = shared.join("locks.db");
    let option = format!("{}?shared=group", url(&path));
    assert_eq!(ask(Some(BOB), "try", &option), "granted 1");
    let refused = ask(Some(MALLORY), "try", &option);
    assert!(refused.starts_with("error"), "{refused}");
    // A user who forgets the option gets an error, not a second store.
    for user in [Some(CAROL), Some(BOB), None] {
        let refused = ask(user, "try", &url(&path));
        assert!(refused.starts_with("error") && refused.contains("?shared=group"), "{refused}");
    }
    chmod(&shared, 0o2777);
    let refused = ask(Some(BOB), "try", &option);
    assert!(refused.contains("any user") && refused.contains("chmod o-w"), "{refused}");
}

/// Where any user can add files, setgid gives the files of an outsider to the group.
#[test]
fn group_store_with_files_of_an_outsider_is_refused() {
    if !is_root() {
        return;
    }
    let (_directory, shared) = group_directory();
    let path = shared.join("locks.db");
    let option = format!("{}?shared=group", url(&path));
    assert_eq!(ask(Some(BOB), "try", &option), "granted 1");
    for path in everything(&shared) {
        let mode = mode(&path);
        chown(&path, Some(if path == shared { 0 } else { MALLORY.0 }), None).unwrap();
        chmod(&path, mode);
    }
    chmod(&shared, 0o3777);
    let refused = ask(Some(CAROL), "try", &option);
    assert!(refused.contains("any user") && refused.contains("chmod o-w"), "{refused}");
}

/// The same for the directory itself: if any user can write its parent, anybody may own it.
#[test]
fn group_directory_planted_by_an_outsider_is_refused() {
    if !is_root() {
        return;
    }
    for (above, planted) in [(0o755, false), (0o1777, true)] {
        let (_directory, outer) = shared(above);
        let inner = outer.join("team");
        std::fs::create_dir(&inner).unwrap();
        chown(&inner, Some(MALLORY.0), Some(TEAM)).unwrap();
        chmod(&inner, 0o2770);
        let option = format!("{}?shared=group", url(&inner.join("locks.db")));
        let line = ask(Some(BOB), "try", &option);
        if planted {
            assert!(line.starts_with("error") && line.contains("belongs to"), "{line}");
        } else {
            assert_eq!(line, "granted 1", "root let its owner have it");
        }
    }
}

/// Gives a user write access by an access control list, whose mask shows as the group permissions. False if the file
/// system has no such lists.
fn let_write(path: &Path, user: u32) -> bool {
    const ANY: u32 = u32::MAX;
    let rights = (mode(path) & 0o700) as u16 >> 6;
    let entries = [(0x01, rights, ANY), (0x02, rights, user), (0x04, rights, ANY)];
    let mut list = 2_u32.to_le_bytes().to_vec();
    for (tag, rights, user) in entries.into_iter().chain([(0x10, rights, ANY), (0x20, 0, ANY)]) {
        list.extend(u16::to_le_bytes(tag));
        list.extend(rights.to_le_bytes());
        list.extend(user.to_le_bytes());
    }
    let flags = rustix::fs::XattrFlags::empty();
    let set = rustix::fs::setxattr(path, "system.posix_acl_access", &list, flags);
    if set == Err(rustix::io::Errno::NOTSUP) {
        eprintln!("skipped: no access control lists here");
        return false;
    }
    set.unwrap();
    true
}

#[tokio::test]
async fn directory_with_an_access_control_list_is_refused() {
    let store_file = store_file();
    used(&store_file.path, false).await;
    let parent = store_file.path.parent().unwrap();
    if !let_write(parent, MALLORY.0) {
        return;
    }
    assert_eq!(mode(parent), 0o770, "as if its group could write");
    let remedy = format!("setfacl -b {}", parent.display());
    refuses(connect(&store_file.path).await, ErrorKind::Refused, &["access control list", &remedy]);
    // A list without write access is accepted.
    chmod(parent, 0o750);
    connect(&store_file.path).await.unwrap();
}

#[test]
fn group_store_with_an_access_control_list_is_refused() {
    if !is_root() {
        return;
    }
    let directory = [("", 0o2770), ("", 0o3770)];
    let inside = ["/locks.db", "/locks.db-wal", "/locks.db.d"].map(|end| (end, 0o2770));
    for (end, open) in directory.into_iter().chain(inside) {
        let (_directory, shared) = group_directory();
        chmod(&shared, open);
        let option = format!("{}?shared=group", url(&shared.join("locks.db")));
        assert_eq!(ask(Some(BOB), "try", &option), "granted 1");
        let path = PathBuf::from(format!("{}{end}", shared.display()));
        if !let_write(&path, MALLORY.0) {
            return;
        }
        let refused = ask(Some(CAROL), "try", &option);
        let remedy = format!("setfacl -b {}", path.display());
        assert!(refused.starts_with("error") && refused.contains(&remedy), "{end}: {refused}");
    }
}

#[tokio::test]
async fn private_store_is_not_shared() {
    let store_file = store_file();
    used(&store_file.path, false).await;
    let option = format!("{}?shared=group", url(&store_file.path));
    refuses(Fencepost::connect(&option).await, ErrorKind::Refused, &["mkdir", "chgrp", "2770"]);
    chmod(store_file.path.parent().unwrap(), 0o2770);
    refuses(Fencepost::connect(&option).await, ErrorKind::Refused, &["not shared", "chmod 660"]);
    let missing = store_file.path.with_file_name("missing").join("locks.db");
    let option = format!("{}?shared=group", url(&missing));
    refuses(Fencepost::connect(&option).await, ErrorKind::Refused, &["mkdir", "chmod 2770"]);
    assert!(!missing.parent().unwrap().exists());
}

/// Root reads and changes a user's store as that user.
#[test]
fn root_lists_and_breaks_in_a_users_store_and_keeps_its_owner() {
    if !is_root() {
        return;
    }
    let (_directory, path) = store_of(ALICE);
    // Root opens it first.
    edit(&path, "PRAGMA wal_checkpoint(TRUNCATE)");
    for end in ["-wal", "-shm"] {
        let _ = std::fs::remove_file(beside(&path, end));
    }
    std::fs::remove_dir_all(beside(&path, ".d")).unwrap();
    assert_eq!(ask(None, "ls", &url(&path)), "list");
    assert!(!beside(&path, ".d").exists(), "a read creates nothing");
    let mut alice = OtherProcess::start(Some(ALICE), "022", "hold", &url(&path));
    assert_eq!(alice.says(), "granted 2");
    assert_eq!(ask(None, "ls", &url(&path)), "list x");
    super::until(|| {
        everything(path.parent().unwrap()).iter().any(|path| path.to_string_lossy().contains("/w-"))
    });
    assert_eq!(ask(None, "break", &url(&path)), "confirmed true");
    assert!(alice.says().starts_with("lost broken"));
    let refused = ask(None, "try", &url(&path));
    assert!(refused.contains("belongs to") && refused.contains("not lock"), "{refused}");
    for path in everything(path.parent().unwrap()) {
        let found = std::fs::symlink_metadata(&path).unwrap();
        assert_eq!((found.uid(), found.gid()), ALICE, "{}", path.display());
    }
    assert_eq!(ask(Some(ALICE), "try", &url(&path)), "granted 4");
}

/// A row may name any file: root must not remove it, nor take it for a presence file.
#[test]
fn forged_presence_file_is_not_touched() {
    if !is_root() {
        return;
    }
    let (directory, path) = store_of(ALICE);
    let precious = directory.path().join("precious");
    std::fs::write(&precious, "").unwrap();
    let mut alice = OtherProcess::start(Some(ALICE), "022", "hold", &url(&path));
    assert_eq!(alice.says(), "granted 2");
    edit(&path, "UPDATE fencepost_locks SET presence = '../../precious'");
    assert_eq!(ask(None, "ls", &url(&path)), "list x", "it is no presence file: alive");
    assert!(precious.exists());
}

#[test]
fn user_who_may_not_read_a_store_leaves_nothing_there() {
    if !is_root() {
        return;
    }
    let (_directory, path) = store_of(ALICE);
    std::fs::remove_dir_all(beside(&path, ".d")).unwrap();
    let before = everything(path.parent().unwrap());
    for role in ["ls", "try"] {
        let refused = ask(Some(MALLORY), role, &url(&path));
        assert!(refused.starts_with("error") && refused.contains("belongs to"), "{refused}");
    }
    assert_eq!(everything(path.parent().unwrap()), before);
}
