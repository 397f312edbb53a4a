//! Users who share a directory share its fences, whatever their umask and whoever comes first.

use std::fs::File;
use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::os::unix::process::CommandExt as _;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use fencepost::ErrorKind;
use fencepost::fences::file::FileFence;

use super::common::*;

/// The orders of a writer process: token, path.
const WRITES: &str = "FENCEPOST_TEST_SHARES";
/// The orders of a reader process that locks what it can: the fence directory.
const LOCKS: &str = "FENCEPOST_TEST_LOCKS";
/// A user unrelated to root.
const OTHER_USER: u32 = 65534;

/// The writer process.
#[test]
fn writes() {
    let Ok(order) = std::env::var(WRITES) else { return };
    let (number, path) = order.split_once(';').unwrap();
    let file = FileFence::at(path).unwrap();
    file.write(&fencing(&lock(), number.parse().unwrap()), &b"theirs"[..]).unwrap();
}

/// Writes in another process whose umask denies everything to others; as another user, if given.
fn write_in_other_process(path: &Path, number: u64, user: Option<u32>) -> Output {
    let mut command = Command::new("sh");
    command.args(["-c", "umask 077; exec \"$0\" sharing::writes --exact --nocapture"]);
    command.arg(fencepost_testkit::own_program());
    command.env(WRITES, format!("{number};{}", path.display())).current_dir("/");
    if let Some(user) = user {
        command.uid(user).gid(user);
    }
    command.output().unwrap()
}

/// The reader process: locks all that it can open, and ends when its input is closed.
#[test]
fn locks() {
    let Ok(beside) = std::env::var(LOCKS) else { return };
    let entries = std::fs::read_dir(&beside).unwrap().map(|entry| entry.unwrap().path());
    let opened = entries.chain([beside.into()]).filter_map(|path| File::open(path).ok());
    let locked: Vec<_> = opened.filter(|file| file.try_lock().is_ok()).collect();
    println!("\nlocked {}", locked.len());
    std::io::stdin().read_to_end(&mut Vec::new()).unwrap();
}

/// Another user that has locked all that it can open beside the file. Closing its input ends it.
fn lock_in_other_process(beside: &Path) -> Child {
    let mut command = Command::new(fencepost_testkit::own_program());
    command.args(["sharing::locks", "--exact", "--nocapture"]).uid(OTHER_USER).gid(OTHER_USER);
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
fn shared(fixture: &Fixture, name: &str, mode: u32) -> std::path::PathBuf {
    let shared = fixture.path(name);
    std::fs::create_dir(&shared).unwrap();
    std::fs::set_permissions(&shared, PermissionsExt::from_mode(mode)).unwrap();
    std::fs::set_permissions(fixture.directory.path(), PermissionsExt::from_mode(0o755)).unwrap();
    shared
}

#[test]
fn marks_have_the_permissions_of_the_directory() {
    let fixture = Fixture::new();
    for (number, directory, open, lock) in [
        (1, 0o700, 0o700, 0o600),
        (2, 0o2775, 0o2775, 0o660),
        (3, 0o777, 0o777, 0o666),
        (4, 0o770, 0o770, 0o660),
        (5, 0o755, 0o755, 0o600),
        // Only the owner of a file can replace it there, so only the owner may write its marks.
        (6, 0o1777, 0o755, 0o600),
        (7, 0o3775, 0o2755, 0o600),
    ] {
        let shared = shared(&fixture, &format!("shared-{number}"), directory);
        // The first write creates the marks, the second replaces them.
        for token in 1..=2 {
            assert_done(&write_in_other_process(&shared.join("report"), token, None));
            let beside = shared.join(".report.fence");
            assert_eq!(mode(&beside), open);
            // Whoever can open the lock file can lock it: only writers may.
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
        // Bypasses the test harness, which hides the output of a passing test.
        let _ = writeln!(std::io::stderr(), "SKIPPED: only root can be another user");
    }
    root
}

/// An operator's `fence reset` as root must not lock out the application that owns the directory.
#[test]
fn root_leaves_the_marks_to_the_owner_of_the_directory() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let theirs = shared(&fixture, "theirs", 0o700);
    chown(&theirs, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    let path = theirs.join("report");
    let file = FileFence::at(&path).unwrap();
    file.enter(&fencing(&lock(), 1)).unwrap();
    assert_done(&write_in_other_process(&path, 2, Some(OTHER_USER)));
    file.reset(&lock(), Some(token(3)), "ops", "a test").unwrap();
    assert_done(&write_in_other_process(&path, 4, Some(OTHER_USER)));
    for name in ["", "lock", "marks"] {
        let kept = std::fs::metadata(theirs.join(".report.fence").join(name)).unwrap();
        assert_eq!((kept.uid(), kept.gid()), (OTHER_USER, OTHER_USER), "{name:?}");
    }
}

/// Users who may read the directory may read the marks, but must not be able to block writers.
#[test]
fn reader_cannot_stall_a_writer() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let shared = shared(&fixture, "shared", 0o755);
    let (path, beside) = (shared.join("report"), shared.join(".report.fence"));
    let file = FileFence::at(&path).unwrap();
    file.write(&fencing(&lock(), 1), &b"one"[..]).unwrap();
    let mut reader = lock_in_other_process(&beside);
    file.write(&fencing(&lock(), 2), &b"two"[..]).unwrap();
    drop(reader.stdin.take());
    assert!(reader.wait().unwrap().success());

    // Earlier versions left the lock file readable: the next writer closes it.
    std::fs::set_permissions(beside.join("lock"), PermissionsExt::from_mode(0o644)).unwrap();
    file.enter(&fencing(&lock(), 3)).unwrap();
    let mut reader = lock_in_other_process(&beside);
    file.write(&fencing(&lock(), 4), &b"four"[..]).unwrap();
    drop(reader.stdin.take());
    assert!(reader.wait().unwrap().success());
}

/// In a sticky directory everybody can create missing files: marks with any contents.
#[test]
fn marks_planted_by_another_user_are_refused() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    let shared = shared(&fixture, "shared", 0o1777);
    let (path, beside) = (shared.join("report"), shared.join(".report.fence"));
    chown(&shared, Some(0), Some(0)).unwrap();
    let theirs = FileFence::at(&path).unwrap();
    theirs.enter(&fencing(&lock(), 1)).unwrap();
    chown(&beside, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    for planted in [theirs.enter(&fencing(&lock(), 2)), theirs.show(None).map(drop)] {
        assert_kind(planted, ErrorKind::Refused, "belongs to another user");
    }
    assert_kind(theirs.write(&fencing(&lock(), 2), &b"x"[..]), ErrorKind::Refused, "move it away");
    // If the other user also owns the file, its marks are trusted.
    std::fs::write(&path, "theirs").unwrap();
    chown(&path, Some(OTHER_USER), Some(OTHER_USER)).unwrap();
    theirs.enter(&fencing(&lock(), 2)).unwrap();
}

/// Earlier versions left the marks in a sticky directory writable for everybody.
#[test]
fn writable_marks_in_a_sticky_directory_are_closed() {
    let fixture = Fixture::new();
    let shared = shared(&fixture, "shared", 0o1777);
    let file = FileFence::at(shared.join("report")).unwrap();
    file.enter(&fencing(&lock(), 1)).unwrap();
    let beside = shared.join(".report.fence");
    for (name, open) in [("", 0o1777), ("lock", 0o666), ("marks", 0o666)] {
        std::fs::set_permissions(beside.join(name), PermissionsExt::from_mode(open)).unwrap();
    }
    file.enter(&fencing(&lock(), 2)).unwrap();
    for (name, closed) in [("", 0o755), ("lock", 0o600), ("marks", 0o644)] {
        assert_eq!(mode(&beside.join(name)), closed, "{name:?}");
    }
}

/// A lock file with a second hard link may be another user's file, planted so that root changes its mode.
#[test]
fn hard_linked_lock_file_keeps_its_permissions() {
    let fixture = Fixture::new();
    let shared = shared(&fixture, "shared", 0o777);
    let secret = fixture.path("secret");
    std::fs::write(&secret, "").unwrap();
    std::fs::set_permissions(&secret, PermissionsExt::from_mode(0o600)).unwrap();
    std::fs::create_dir(shared.join(".report.fence")).unwrap();
    std::fs::hard_link(&secret, shared.join(".report.fence/lock")).unwrap();
    FileFence::at(shared.join("report")).unwrap().enter(&fencing(&lock(), 1)).unwrap();
    assert_eq!(mode(&secret), 0o600);
}

/// A writer that cannot give the new file to the old group must not give it to its own group.
#[test]
fn new_file_is_not_readable_by_a_group_that_could_not_read_the_old_one() {
    if !is_root() {
        return;
    }
    let fixture = Fixture::new();
    for (number, (old, new)) in
        [(0o640, 0o600), (0o660, 0o600), (0o644, 0o644)].into_iter().enumerate()
    {
        let shared = shared(&fixture, &format!("shared-{number}"), 0o777);
        let path = shared.join("report");
        std::fs::write(&path, "root's").unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(old)).unwrap();
        assert_done(&write_in_other_process(&path, 1, Some(OTHER_USER)));
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "theirs");
        let meta = std::fs::metadata(&path).unwrap();
        assert_eq!((mode(&path), meta.gid()), (new, OTHER_USER), "{old:o}");
    }
}
