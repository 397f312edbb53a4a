//! Which paths can have a fence, and under which name.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use fencepost::ErrorKind;
use fencepost::fences::file::FileFence;

use super::common::*;

#[test]
fn two_paths_to_a_file_share_one_mark() {
    let (fixture, lock) = (Fixture::new(), lock());
    fixture.fence().write(&fencing(&lock, 34), &b"x"[..]).unwrap();
    let link = fixture.path("link");
    symlink("report", &link).unwrap();
    let other = fixture.path("elsewhere");
    symlink(fixture.directory.path(), &other).unwrap();
    for path in [&link, &other.join("report"), &other.join("link")] {
        let file = FileFence::at(path).unwrap();
        assert_eq!(file.path(), fixture.target().canonicalize().unwrap());
        assert_kind(file.write(&fencing(&lock, 33), &b"y"[..]), ErrorKind::Stale, "34");
    }
    FileFence::at(&link).unwrap().write(&fencing(&lock, 35), &b"z"[..]).unwrap();
    assert!(link.is_symlink(), "the link is still one");
    assert_eq!(fixture.contents(), "z");
}

#[test]
fn path_that_is_not_a_file_is_refused_and_nothing_is_created() {
    let fixture = Fixture::new();
    let fifo = fixture.path("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let _socket = UnixListener::bind(fixture.path("socket")).unwrap();
    symlink("nothing", fixture.path("dangling")).unwrap();
    symlink("loop", fixture.path("loop")).unwrap();
    std::fs::write(fixture.path("plain"), "x").unwrap();
    let before = names_in(fixture.directory.path());
    for (path, words) in [
        (fifo.as_path(), "not a regular file"),
        (&fixture.path("socket"), "not a regular file"),
        (&fixture.path("dangling"), "link to nothing"),
        (fixture.directory.path(), "not a regular file"),
        (Path::new("/"), "a directory"),
        (Path::new("/dev/null"), "not a regular file"),
        (Path::new(""), "names no file"),
        (&fixture.path("plain/"), "through a file"),
        (&fixture.path("plain/x"), "through a file"),
        (&fixture.path("new/"), "ends with a slash"),
        (&fixture.path("new/."), "ends with a slash"),
        (&fixture.path("loop"), "back to itself"),
    ] {
        assert_kind(FileFence::at(path), ErrorKind::Invalid, words);
    }
    let nowhere = FileFence::at(fixture.path("no/such/directory"));
    assert_kind(nowhere, ErrorKind::Unreachable, "create its directory");
    let long = FileFence::at(fixture.path(&"x".repeat(250))).unwrap();
    assert_kind(long.enter(&fencing(&lock(), 1)), ErrorKind::Refused, "too long");
    assert_eq!(names_in(fixture.directory.path()), before);
}

/// It was a file when the fence was opened.
#[test]
fn file_that_became_something_else_is_not_replaced() {
    let (fixture, lock) = (Fixture::new(), lock());
    let file = fixture.fence();
    std::fs::create_dir(fixture.target()).unwrap();
    assert_kind(
        file.write(&fencing(&lock, 1), &b"x"[..]),
        ErrorKind::Invalid,
        "not a regular file",
    );
    std::fs::remove_dir(fixture.target()).unwrap();
    std::fs::write(fixture.path("other"), "other").unwrap();
    symlink("other", fixture.target()).unwrap();
    assert_kind(
        file.write(&fencing(&lock, 1), &b"x"[..]),
        ErrorKind::Invalid,
        "not a regular file",
    );
    assert_eq!(std::fs::read_to_string(fixture.path("other")).unwrap(), "other");
}

#[test]
fn existing_file_in_place_of_the_fence_directory_is_named() {
    let (fixture, lock) = (Fixture::new(), lock());
    let file = fixture.fence();
    std::fs::write(fixture.path(".report.fence"), "mine").unwrap();
    assert_kind(file.enter(&fencing(&lock, 1)), ErrorKind::Refused, "move it away");
    assert_kind(file.show(None), ErrorKind::Refused, ".report.fence");
}

/// A read creates nothing.
#[test]
fn reads_of_a_file_without_marks_create_nothing() {
    let (fixture, lock) = (Fixture::new(), lock());
    let file = fixture.fence();
    assert!(file.show(None).unwrap().is_empty());
    assert!(file.audit(None).unwrap().is_empty());
    assert!(file.reset(&lock, None, "ops", "a typo").unwrap().is_none());
    assert!(names_in(fixture.directory.path()).is_empty());
}
