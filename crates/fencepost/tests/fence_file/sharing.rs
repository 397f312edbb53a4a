//! Who shares a directory shares its fences, whatever umask they have and whoever came first.

use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Command, Output};

use fencepost::fences::file::FileFence;

use super::common::*;

/// Says that this process is a writer: token, path.
const WRITES: &str = "FENCEPOST_TEST_SHARES";
/// A user that has nothing to do with root.
const STRANGER: u32 = 65534;

/// The other process's part.
#[test]
fn writes() {
    let Ok(order) = std::env::var(WRITES) else { return };
    let (number, path) = order.split_once(';').unwrap();
    let file = FileFence::at(path).unwrap();
    file.write(&lock(), token(number.parse().unwrap()), &b"theirs"[..]).unwrap();
}

/// Another process that writes, with a umask that leaves nobody else anything; as another user, if one is named.
fn write_apart(path: &Path, number: u64, user: Option<u32>) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$0\" sharing::writes --exact --nocapture"]);
    command.arg(std::env::current_exe().unwrap());
    command.env(WRITES, format!("{number};{}", path.display())).current_dir("/");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command.output().unwrap()
}

fn assert_done(output: &Output) {
    assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stdout));
}

fn mode(path: &Path) -> u32 {
    std::fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

/// A directory with this mode.
fn shared(scene: &Scene, name: &str, mode: u32) -> std::path::PathBuf {
    let shared = scene.path(name);
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(mode)).unwrap();
    std::fs::set_permissions(scene.directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    shared
}

#[test]
fn the_marks_are_as_open_as_the_directory() {
    let scene = Scene::new();
    for (number, open) in [(1, 0o700), (2, 0o2775), (3, 0o1777), (4, 0o770)] {
        let shared = shared(&scene, &format!("shared-{number}"), open);
        // The first makes them, the second replaces the marks.
        for token in 1..=2 {
            assert_done(&write_apart(&shared.join("report"), token, None));
            let beside = shared.join(".report.fence");
            assert_eq!(mode(&beside), open);
            assert_eq!(mode(&beside.join("lock")), open & 0o666, "lock, {open:o}");
            assert_eq!(mode(&beside.join("marks")), open & 0o666, "marks, {open:o}");
        }
        assert_eq!(mode(&shared.join("report")), 0o600, "the file itself is its writer's");
    }
}

/// Whether this process can be another user.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        eprintln!("skipped: only root can be another user");
    }
    root
}

/// An operator's `fence reset` as root must not shut out the application whose directory it is.
#[test]
fn root_leaves_the_marks_to_the_owner_of_the_directory() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let theirs = shared(&scene, "theirs", 0o700);
    chown(&theirs, Some(STRANGER), Some(STRANGER)).unwrap();
    let path = theirs.join("report");
    let file = FileFence::at(&path).unwrap();
    file.enter(&lock(), token(1)).unwrap();
    assert_done(&write_apart(&path, 2, Some(STRANGER)));
    file.reset(&lock(), Some(token(3)), "ops", "a test").unwrap();
    assert_done(&write_apart(&path, 4, Some(STRANGER)));
    for name in ["", "lock", "marks"] {
        let kept = std::fs::metadata(theirs.join(".report.fence").join(name)).unwrap();
        assert_eq!((kept.uid(), kept.gid()), (STRANGER, STRANGER), "{name:?}");
    }
}

/// A lock that has a second name may be a file of somebody else, laid there for root to open up.
#[test]
fn a_lock_with_a_second_name_is_not_opened_up() {
    let scene = Scene::new();
    let shared = shared(&scene, "shared", 0o777);
    let secret = scene.path("secret");
    std::fs::write(&secret, "").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::create_dir(shared.join(".report.fence")).unwrap();
    std::fs::hard_link(&secret, shared.join(".report.fence/lock")).unwrap();
    FileFence::at(shared.join("report")).unwrap().enter(&lock(), token(1)).unwrap();
    assert_eq!(mode(&secret), 0o600);
}

/// Who can not hand the new file to the old one's group must not hand it to their own.
#[test]
fn a_group_that_could_not_read_the_old_file_can_not_read_the_new_one() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    for (number, (old, new)) in
        [(0o640, 0o600), (0o660, 0o600), (0o644, 0o644)].into_iter().enumerate()
    {
        let shared = shared(&scene, &format!("shared-{number}"), 0o777);
        let path = shared.join("report");
        std::fs::write(&path, "root's").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(old)).unwrap();
        assert_done(&write_apart(&path, 1, Some(STRANGER)));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((mode(&path), meta.gid()), (new, STRANGER), "{old:o}");
    }
}
