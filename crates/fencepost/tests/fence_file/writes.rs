//! What a write changes, and what it does not.

use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::sync::mpsc;

use fencepost::ErrorKind;

use super::common::*;

#[test]
fn write_is_all_or_nothing() {
    let (fixture, lock) = (Fixture::new(), lock());
    let file = fixture.fence();
    assert_eq!(file.read(&fencing(&lock, 1)).unwrap(), None);
    assert_eq!(file.write(&fencing(&lock, 1), &b"one"[..]).unwrap(), 3);
    let large: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
    assert_eq!(file.write(&fencing(&lock, 2), &*large).unwrap(), 4_000_000);
    assert!(file.read(&fencing(&lock, 2)).unwrap().unwrap() == large);
    assert_eq!(file.write(&fencing(&lock, 2), io::empty()).unwrap(), 0);
    assert_eq!(fixture.contents(), "");
    assert_kind(file.write(&fencing(&lock, 1), &b"late"[..]), ErrorKind::Stale, "2 has entered");
    assert_eq!(fixture.contents(), "");
    assert_eq!(fixture.fence_files(), ["lock", "marks"], "nothing else is left");
}

/// A reader keeps the version that it opened.
#[test]
fn open_file_does_not_change() {
    let (fixture, lock) = (Fixture::new(), lock());
    let file = fixture.fence();
    file.write(&fencing(&lock, 1), &b"old"[..]).unwrap();
    let mut open = file.open(&fencing(&lock, 1)).unwrap().unwrap();
    file.write(&fencing(&lock, 2), &b"new"[..]).unwrap();
    let mut text = String::new();
    open.read_to_string(&mut text).unwrap();
    assert_eq!((text.as_str(), fixture.contents().as_str()), ("old", "new"));
}

/// Input that fails in the middle.
struct FailingInput(bool);

impl Read for FailingInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if std::mem::replace(&mut self.0, true) {
            return Err(io::Error::other("the producer is gone"));
        }
        buffer[0] = b'x';
        Ok(1)
    }
}

#[test]
fn failed_input_leaves_the_file_and_the_mark() {
    let (fixture, lock) = (Fixture::new(), lock());
    let file = fixture.fence();
    file.write(&fencing(&lock, 1), &b"whole"[..]).unwrap();
    let failed = file.write(&fencing(&lock, 5), FailingInput(false));
    assert_kind(failed, ErrorKind::Unreachable, "the producer is gone");
    assert_eq!(fixture.contents(), "whole");
    file.write(&fencing(&lock, 2), &b"next"[..]).unwrap();
    assert_eq!(fixture.fence_files(), ["lock", "marks"]);
}

/// Input that blocks until it may continue.
struct BlockedInput(mpsc::Receiver<()>);

impl Read for BlockedInput {
    fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
        let _ = self.0.recv();
        Ok(0)
    }
}

#[test]
fn slow_producer_blocks_nobody_and_is_stale() {
    let (fixture, lock) = (Fixture::new(), lock());
    let (go_on, stands) = mpsc::channel();
    let slow = std::thread::spawn({
        let (file, lock) = (fixture.fence(), lock.clone());
        move || file.write(&fencing(&lock, 33), BlockedInput(stands))
    });
    fencepost_testkit::wait::until(fencepost_testkit::wait::SOON, "the slow one has begun", || {
        Ok(fixture.path(".report.fence").is_dir()
            && fixture.fence_files().iter().any(|n| n.starts_with("new-")))
    })
    .unwrap();
    fixture.fence().write(&fencing(&lock, 34), &b"new"[..]).unwrap();
    // Its spooled input survives the gc of the other writer.
    assert_eq!(fixture.fence_files().iter().filter(|name| name.starts_with("new-")).count(), 1);
    go_on.send(()).unwrap();
    assert_kind(slow.join().unwrap(), ErrorKind::Stale, "34 has entered");
    assert_eq!(fixture.contents(), "new");
    assert_eq!(fixture.fence_files(), ["lock", "marks"]);
}

#[test]
fn permissions_are_kept() {
    let (fixture, lock) = (Fixture::new(), lock());
    let file = fixture.fence();
    let mode = || std::fs::metadata(fixture.target()).unwrap().permissions().mode() & 0o7777;
    file.write(&fencing(&lock, 1), &b"x"[..]).unwrap();
    for wanted in [0o600, 0o640, 0o755, 0o444] {
        std::fs::set_permissions(fixture.target(), PermissionsExt::from_mode(wanted)).unwrap();
        file.write(&fencing(&lock, 1), &b"y"[..]).unwrap();
        assert_eq!(mode(), wanted);
    }
}

/// Several locks may guard one file; each has its own mark.
#[test]
fn marks_of_several_locks_share_one_directory() {
    let (fixture, lock) = (Fixture::new(), lock());
    let other = fencepost::LockName::new("other").unwrap();
    let file = fixture.fence();
    file.write(&fencing(&lock, 50), &b"a"[..]).unwrap();
    file.write(&fencing(&other, 3), &b"b"[..]).unwrap();
    assert_kind(file.enter(&fencing(&other, 2)), ErrorKind::Stale, "\"other\"");
    assert_kind(file.enter(&fencing(&lock, 49)), ErrorKind::Stale, "\"report\"");
    let shown: Vec<_> = file
        .show(None)
        .unwrap()
        .iter()
        .map(|mark| (mark.name.to_string(), mark.token.get()))
        .collect();
    assert_eq!(shown, [("other".to_owned(), 3), ("report".to_owned(), 50)]);
}

/// An unreadable mark may have been a high one.
#[test]
fn damaged_marks_refuse_everybody() {
    let (fixture, lock) = (Fixture::new(), lock());
    let file = fixture.fence();
    file.write(&fencing(&lock, 34), &b"x"[..]).unwrap();
    let marks = fixture.beside("marks");
    let good = std::fs::read(&marks).unwrap();
    let text = String::from_utf8(good.clone()).unwrap();
    let lowered = text.replace("\t34\t", "\t33\t");
    let newer = text.replace("fencepost marks 1", "fencepost marks 2");
    for damage in ["", "fencepost marks 1\n", &text[..text.len() - 1], &lowered, &newer, "\0\0\0"] {
        std::fs::write(&marks, damage).unwrap();
        assert_kind(file.enter(&fencing(&lock, 99)), ErrorKind::Refused, ".report.fence/marks");
        assert_kind(file.write(&fencing(&lock, 99), &b"y"[..]), ErrorKind::Refused, "marks");
        assert_kind(file.show(None), ErrorKind::Refused, "marks");
        assert_kind(file.reset(&lock, None, "ops", "x"), ErrorKind::Refused, "marks");
    }
    std::fs::remove_file(&marks).unwrap();
    std::fs::create_dir(&marks).unwrap();
    assert_kind(file.enter(&fencing(&lock, 99)), ErrorKind::Unreachable, "marks");
    assert_eq!(fixture.contents(), "x");
    std::fs::remove_dir(&marks).unwrap();
    std::fs::write(&marks, good).unwrap();
    assert_kind(file.enter(&fencing(&lock, 33)), ErrorKind::Stale, "34");
}

/// Leftovers of a killed process: half-read input, half-written marks.
#[test]
fn leftovers_are_ignored_and_removed() {
    let (fixture, lock) = (Fixture::new(), lock());
    let file = fixture.fence();
    file.enter(&fencing(&lock, 1)).unwrap();
    for name in ["new-0000000000000001", "new-torn"] {
        std::fs::write(fixture.beside(name), "fencepost marks 1\nmark\t99").unwrap();
    }
    file.enter(&fencing(&lock, 2)).unwrap();
    file.write(&fencing(&lock, 2), &b"x"[..]).unwrap();
    assert_eq!(fixture.fence_files(), ["lock", "marks"]);
}

#[test]
fn deleted_lock_file_is_recreated() {
    let (fixture, lock) = (Fixture::new(), lock());
    let file = fixture.fence();
    file.enter(&fencing(&lock, 2)).unwrap();
    std::fs::remove_file(fixture.beside("lock")).unwrap();
    assert_kind(file.enter(&fencing(&lock, 1)), ErrorKind::Stale, "2 has entered");
    file.enter(&fencing(&lock, 3)).unwrap();
    assert_eq!(fixture.fence_files(), ["lock", "marks"]);
}
