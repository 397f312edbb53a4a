//! What a write leaves, and what it does not touch.

use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;

use fencepost::ErrorKind;

use super::common::*;

#[test]
fn a_write_is_all_or_nothing() {
    let (scene, lock) = (Scene::new(), lock());
    let file = scene.fence();
    assert_eq!(file.read(&lock, token(1)).unwrap(), None);
    assert_eq!(file.write(&lock, token(1), &b"one"[..]).unwrap(), 3);
    let large: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(file.write(&lock, token(2), &*large).unwrap(), 4_000_000);
    assert!(file.read(&lock, token(2)).unwrap().unwrap() == large);
    assert_eq!(file.write(&lock, token(2), io::empty()).unwrap(), 0);
    assert_eq!(scene.contents(), "");
    assert_kind(file.write(&lock, token(1), &b"late"[..]), &ErrorKind::Stale, "2 has entered");
    assert_eq!(scene.contents(), "");
    assert_eq!(scene.kept(), ["lock", "marks"], "nothing else is left");
}

/// Who reads on is not disturbed by a later write: it has the file as it was when it entered.
#[test]
fn an_open_file_stays_as_it_was() {
    let (scene, lock) = (Scene::new(), lock());
    let file = scene.fence();
    file.write(&lock, token(1), &b"old"[..]).unwrap();
    let mut open = file.open(&lock, token(1)).unwrap().unwrap();
    file.write(&lock, token(2), &b"new"[..]).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), scene.contents().as_str()), ("old", "new"));
}

/// Input that fails in the middle.
struct Fails(bool);

impl Read for Fails {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if std::mem::replace(&mut self.0, true) {
            return Err(io::Error::other("the producer is gone"));
        }
        buffer[0] = b'x';
        Ok(1)
    }
}

#[test]
fn input_that_fails_leaves_the_file_and_the_mark() {
    let (scene, lock) = (Scene::new(), lock());
    let file = scene.fence();
    file.write(&lock, token(1), &b"whole"[..]).unwrap();
    let failed = file.write(&lock, token(5), Fails(false));
    assert_kind(failed, &ErrorKind::Unreachable, "the producer is gone");
    assert_eq!(scene.contents(), "whole");
    file.write(&lock, token(2), &b"next"[..]).unwrap();
    assert_eq!(scene.kept(), ["lock", "marks"]);
}

/// Input that stands still until it is told to go on.
struct Stands(mpsc::Receiver<()>);

impl Read for Stands {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(0)
    }
}

#[test]
fn a_slow_producer_holds_nobody_up_and_comes_too_late() {
    let (scene, lock) = (Scene::new(), lock());
    let (go_on, stands) = mpsc::channel();
    let slow = std::thread::spawn({
        let (file, lock) = (scene.fence(), lock.clone());
        move || file.write(&lock, token(33), Stands(stands))
    });
    fencepost_testkit::wait::until(fencepost_testkit::wait::SOON, "the slow one has begun", || {
        Ok(scene.path(".report.fence").is_dir()
            && scene.kept().iter().any(|n| n.starts_with("new-")))
    })
    .unwrap();
    scene.fence().write(&lock, token(34), &b"new"[..]).unwrap();
    // Its spooled input is its own: the other's sweep left it alone.
    assert_eq!(scene.kept().iter().filter(|name| name.starts_with("new-")).count(), 1);
    go_on.send(()).unwrap();
    assert_kind(slow.join().unwrap(), &ErrorKind::Stale, "34 has entered");
    assert_eq!(scene.contents(), "new");
    assert_eq!(scene.kept(), ["lock", "marks"]);
}

#[test]
fn permissions_are_kept() {
    let (scene, lock) = (Scene::new(), lock());
    let file = scene.fence();
    let mode = || std::fs::metadata(scene.target()).unwrap().permissions().mode() & 0o7777;
    file.write(&lock, token(1), &b"x"[..]).unwrap();
    for wanted in [0o600, 0o640, 0o755, 0o444] {
        std::fs::set_permissions(scene.target(), PermissionsExt::from_mode(wanted)).unwrap();
        file.write(&lock, token(1), &b"y"[..]).unwrap();
        assert_eq!(mode(), wanted);
    }
}

/// Several locks may guard one file; each has a mark of its own.
#[test]
fn marks_of_several_locks_lie_beside_one_file() {
    let (scene, lock) = (Scene::new(), lock());
    let other = fencepost::LockName::new("other").unwrap();
    let file = scene.fence();
    file.write(&lock, token(50), &b"a"[..]).unwrap();
    file.write(&other, token(3), &b"b"[..]).unwrap();
    assert_kind(file.enter(&other, token(2)), &ErrorKind::Stale, "\"other\"");
    assert_kind(file.enter(&lock, token(49)), &ErrorKind::Stale, "\"report\"");
    let shown: Vec<_> = file
        .show(None)
        .unwrap()
        .iter()
        .map(|mark| (mark.name.to_string(), mark.token.get()))
        .collect();
    assert_eq!(shown, [("other".to_owned(), 3), ("report".to_owned(), 50)]);
}

/// A mark that can not be read may have been a high one.
#[test]
fn damaged_marks_keep_everybody_out() {
    let (scene, lock) = (Scene::new(), lock());
    let file = scene.fence();
    file.write(&lock, token(34), &b"x"[..]).unwrap();
    let marks = scene.beside("marks");
    let good = std::fs::read(&marks).unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    let lowered = text.replace("\t34\t", "\t33\t");
    let newer = text.replace("fencepost marks 1", "fencepost marks 2");
    for damage in ["", "fencepost marks 1\n", &text[..text.len() - 1], &lowered, &newer, "\0\0\0"] {
        std::fs::write(&marks, damage).unwrap();
        assert_kind(file.enter(&lock, token(99)), &ErrorKind::Refused, ".report.fence/marks");
        assert_kind(file.write(&lock, token(99), &b"y"[..]), &ErrorKind::Refused, "marks");
        assert_kind(file.show(None), &ErrorKind::Refused, "marks");
        assert_kind(file.reset(&lock, None, "ops", "x"), &ErrorKind::Refused, "marks");
    }
    std::fs::remove_file(&marks).unwrap();
    std::fs::create_dir(&marks).unwrap();
    assert_kind(file.enter(&lock, token(99)), &ErrorKind::Unreachable, "marks");
    assert_eq!(scene.contents(), "x");
    std::fs::remove_dir(&marks).unwrap();
    std::fs::write(&marks, good).unwrap();
    assert_kind(file.enter(&lock, token(33)), &ErrorKind::Stale, "34");
}

/// What a killed process left: input half read, marks half written.
#[test]
fn leftovers_are_ignored_and_swept() {
    let (scene, lock) = (Scene::new(), lock());
    let file = scene.fence();
    file.enter(&lock, token(1)).unwrap();
    for name in ["new-0000000000000001", "new-torn"] {
        std::fs::write(scene.beside(name), "fencepost marks 1\nmark\t99").unwrap();
    }
    file.enter(&lock, token(2)).unwrap();
    file.write(&lock, token(2), &b"x"[..]).unwrap();
    assert_eq!(scene.kept(), ["lock", "marks"]);
}

#[test]
fn a_lock_file_that_somebody_removed_is_made_again() {
    let (scene, lock) = (Scene::new(), lock());
    let file = scene.fence();
    file.enter(&lock, token(2)).unwrap();
    std::fs::remove_file(scene.beside("lock")).unwrap();
    assert_kind(file.enter(&lock, token(1)), &ErrorKind::Stale, "2 has entered");
    file.enter(&lock, token(3)).unwrap();
    assert_eq!(scene.kept(), ["lock", "marks"]);
}
