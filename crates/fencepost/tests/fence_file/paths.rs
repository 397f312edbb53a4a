//! Which files can have a fence, and under which name.

use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::Path;

use fencepost::ErrorKind;
use fencepost::fences::file::FileFence;

use super::common::*;

#[test]
fn two_paths_to_a_file_have_one_mark() {
    let (scene, lock) = (Scene::new(), lock());
    scene.fence().write(&lock, token(34), &b"x"[..]).unwrap();
    let link = scene.path("link");
    symlink("report", &link).unwrap();
    let other = scene.path("elsewhere");
    symlink(scene.directory.path(), &other).unwrap();
    for path in [&link, &other.join("report"), &other.join("link")] {
        let file = FileFence::at(path).unwrap();
        assert_eq!(file.path(), scene.target().canonicalize().unwrap());
        assert_kind(file.write(&lock, token(33), &b"y"[..]), &ErrorKind::Stale, "34");
    }
    FileFence::at(&link).unwrap().write(&lock, token(35), &b"z"[..]).unwrap();
    assert!(link.is_symlink(), "the link is still one");
    assert_eq!(scene.contents(), "z");
}

#[test]
fn what_is_no_file_is_refused_and_nothing_is_made() {
    let scene = Scene::new();
    let fifo = scene.path("fifo");
    let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
    rustix::fs::mknodat(rustix::fs::CWD, &fifo, rustix::fs::FileType::Fifo, mode, 0).unwrap();
    let _socket = UnixListener::bind(scene.path("socket")).unwrap();
    symlink("nothing", scene.path("dangling")).unwrap();
    symlink("loop", scene.path("loop")).unwrap();
    std::fs::write(scene.path("plain"), "x").unwrap();
    let before = names_in(scene.directory.path());
    for (path, words) in [
        (fifo.as_path(), "no regular file"),
        (&scene.path("socket"), "no regular file"),
        (&scene.path("dangling"), "link to nothing"),
        (scene.directory.path(), "no regular file"),
        (Path::new("/"), "a directory"),
        (Path::new("/dev/null"), "no regular file"),
        (Path::new(""), "names no file"),
        (&scene.path("plain/"), "through a file"),
        (&scene.path("plain/x"), "through a file"),
        (&scene.path("new/"), "ends with a slash"),
        (&scene.path("new/."), "ends with a slash"),
        (&scene.path("loop"), "back to itself"),
    ] {
        assert_kind(FileFence::at(path), &ErrorKind::Invalid, words);
    }
    let nowhere = FileFence::at(scene.path("no/such/directory"));
    assert_kind(nowhere, &ErrorKind::Unreachable, "make its directory");
    let long = FileFence::at(scene.path(&"x".repeat(250))).unwrap();
    assert_kind(long.enter(&lock(), token(1)), &ErrorKind::Refused, "too long");
    assert_eq!(names_in(scene.directory.path()), before);
}

/// It was a file when the fence was made.
#[test]
fn what_became_something_else_is_not_replaced() {
    let (scene, lock) = (Scene::new(), lock());
    let file = scene.fence();
    std::fs::create_dir(scene.target()).unwrap();
    assert_kind(file.write(&lock, token(1), &b"x"[..]), &ErrorKind::Invalid, "no regular file");
    std::fs::remove_dir(scene.target()).unwrap();
    std::fs::write(scene.path("other"), "other").unwrap();
    symlink("other", scene.target()).unwrap();
    assert_kind(file.write(&lock, token(1), &b"x"[..]), &ErrorKind::Invalid, "no regular file");
    assert_eq!(std::fs::read_to_string(scene.path("other")).unwrap(), "other");
}

#[test]
fn a_place_that_is_taken_is_named() {
    let (scene, lock) = (Scene::new(), lock());
    let file = scene.fence();
    std::fs::write(scene.path(".report.fence"), "mine").unwrap();
    assert_kind(file.enter(&lock, token(1)), &ErrorKind::Refused, "move it away");
    assert_kind(file.show(None), &ErrorKind::Refused, ".report.fence");
}

/// To look makes nothing.
#[test]
fn a_file_that_nobody_entered_has_no_marks_and_gets_no_company() {
    let (scene, lock) = (Scene::new(), lock());
    let file = scene.fence();
    assert!(file.show(None).unwrap().is_empty());
    assert!(file.audit(None).unwrap().is_empty());
    assert!(file.reset(&lock, None, "ops", "a typo").unwrap().is_none());
    assert!(names_in(scene.directory.path()).is_empty());
}
