//! Who shares a directory shares its fences, whatever umask they have and whoever came first.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use fencepost::ErrorKind;
use fencepost::fences::file::FileFence;

use super::common::*;

/// Says that this process is a writer: token, path.
const WRITES: &str = "FENCEPOST_TEST_SHARES";
/// Says that this process is a reader that locks what it can: the directory beside the file.
const LOCKS: &str = "FENCEPOST_TEST_LOCKS";
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
    command.arg(fencepost_testkit::own_program());
    command.env(WRITES, format!("{number};{}", path.display())).current_dir("/");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command.output().unwrap()
}

/// The reader's part: it locks all that it can open, and goes when its input ends.
#[test]
fn locks() {
    let Ok(beside) = std::env::var(LOCKS) else { return };
    let entries = std::fs::read_dir(&beside).unwrap().map(|entry| entry.unwrap().path());
    let opened = entries.chain([beside.into()]).filter_map(|path| File::open(path).ok());
    let locked: Vec<_> = opened.filter(|file| file.try_lock().is_ok()).collect();
    println!("\nlocked {}", locked.len());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Another user that has locked all that it can open beside the file. Dropping its input ends it.
fn lock_apart(beside: &Path) -> Child {
    let mut command = Command::new(fencepost_testkit::own_program());
    command.args(["sharing::locks", "--exact", "--nocapture"]).uid(STRANGER).gid(STRANGER);
    command.env(LOCKS, beside).current_dir("/").stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.as_mut().unwrap()).lines().map(Result::unwrap);
    let locked = lines.find_map(|line| line.strip_prefix("locked ").map(str::to_owned));
    let locked: usize = locked.expect("it says what it has locked").parse().unwrap();
    assert!(locked >= 2, "the marks and their directory can be read, and so locked: {locked}");
    child
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
    for (number, directory, open, lock) in [
        (1, 0o700, 0o700, 0o600),
        (2, 0o2775, 0o2775, 0o660),
        (3, 0o777, 0o777, 0o666),
        (4, 0o770, 0o770, 0o660),
        (5, 0o755, 0o755, 0o600),
        // Only the owner of a file can replace it there, so only the owner writes its marks.
        (6, 0o1777, 0o755, 0o600),
        (7, 0o3775, 0o2755, 0o600),
    ] {
        let shared = shared(&scene, &format!("shared-{number}"), directory);
        // The first makes them, the second replaces the marks.
        for token in 1..=2 {
            assert_done(&write_apart(&shared.join("report"), token, None));
            let beside = shared.join(".report.fence");
            assert_eq!(mode(&beside), open);
            // Whoever can open the lock can hold it: only writers may.
            assert_eq!(mode(&beside.join("lock")), lock, "lock, {open:o}");
            assert_eq!(mode(&beside.join("marks")), open & 0o666, "marks, {open:o}");
        }
        assert_eq!(mode(&shared.join("report")), 0o600, "the file itself is its writer's");
    }
}

/// Whether this process can be another user.
fn is_root() -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        // Past the test harness, which hides what a test that passes prints.
        let _ = writeln!(std::io::stderr(), "SKIPPED: only root can be another user");
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

/// Whoever may read the directory may see the marks, and must not be able to keep writers waiting.
#[test]
fn reader_cannot_stall_a_writer() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let shared = shared(&scene, "shared", 0o755);
    let (path, beside) = (shared.join("report"), shared.join(".report.fence"));
    let file = FileFence::at(&path).unwrap();
    file.write(&lock(), token(1), &b"one"[..]).unwrap();
    let mut reader = lock_apart(&beside);
    file.write(&lock(), token(2), &b"two"[..]).unwrap();
    drop(reader.stdin.take());
    assert!(reader.wait().unwrap().success());

    // An earlier version left the lock open for readers: the next writer closes it.
    std::fs::set_permissions(beside.join("lock"), PermissionsExt::from_mode(0o644)).unwrap();
    file.enter(&lock(), token(3)).unwrap();
    let mut reader = lock_apart(&beside);
    file.write(&lock(), token(4), &b"four"[..]).unwrap();
    drop(reader.stdin.take());
    assert!(reader.wait().unwrap().success());
}

/// In a sticky directory everybody can make what is not there yet: marks that say what its maker likes.
#[test]
fn marks_planted_by_another_user_are_refused() {
    if !is_root() {
        return;
    }
    let scene = Scene::new();
    let shared = shared(&scene, "shared", 0o1777);
    let (path, beside) = (shared.join("report"), shared.join(".report.fence"));
    chown(&shared, Some(0), Some(0)).unwrap();
    let theirs = FileFence::at(&path).unwrap();
    theirs.enter(&lock(), token(1)).unwrap();
    chown(&beside, Some(STRANGER), Some(STRANGER)).unwrap();
    for planted in [theirs.enter(&lock(), token(2)), theirs.show(None).map(drop)] {
        assert_kind(planted, &ErrorKind::Refused, "belongs to another user");
    }
    assert_kind(theirs.write(&lock(), token(2), &b"x"[..]), &ErrorKind::Refused, "move it away");
    // If the file is theirs as well, so are its marks.
    std::fs::write(&path, "theirs").unwrap();
    chown(&path, Some(STRANGER), Some(STRANGER)).unwrap();
    theirs.enter(&lock(), token(2)).unwrap();
}

/// Earlier versions let everybody write the marks in a sticky directory.
#[test]
fn open_marks_in_a_sticky_directory_are_closed() {
    let scene = Scene::new();
    let shared = shared(&scene, "shared", 0o1777);
    let file = FileFence::at(shared.join("report")).unwrap();
    file.enter(&lock(), token(1)).unwrap();
    let beside = shared.join(".report.fence");
    for (name, open) in [("", 0o1777), ("lock", 0o666), ("marks", 0o666)] {
        std::fs::set_permissions(beside.join(name), PermissionsExt::from_mode(open)).unwrap();
    }
    file.enter(&lock(), token(2)).unwrap();
    for (name, closed) in [("", 0o755), ("lock", 0o600), ("marks", 0o644)] {
        assert_eq!(mode(&beside.join(name)), closed, "{name:?}");
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
