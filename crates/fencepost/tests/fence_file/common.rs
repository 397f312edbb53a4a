//! A directory with a protected file.

use std::path::{Path, PathBuf};

use fencepost::fences::file::FileFence;
use fencepost::{Error, ErrorKind, FencingToken, LockName, Token};
use tempfile::TempDir;

pub(crate) struct Fixture {
    pub(crate) directory: TempDir,
}

impl Fixture {
    pub(crate) fn new() -> Self {
        Self { directory: tempfile::tempdir().unwrap() }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// The file that is protected.
    pub(crate) fn target(&self) -> PathBuf {
        self.path("report")
    }

    /// A path in the fence's own directory.
    pub(crate) fn beside(&self, name: &str) -> PathBuf {
        self.path(".report.fence").join(name)
    }

    pub(crate) fn fence(&self) -> FileFence {
        FileFence::at(self.target()).unwrap()
    }

    pub(crate) fn contents(&self) -> String {
        std::fs::read_to_string(self.target()).unwrap()
    }

    /// The names in the fence's own directory.
    pub(crate) fn fence_files(&self) -> Vec<String> {
        names_in(&self.path(".report.fence"))
    }
}

pub(crate) fn names_in(directory: &Path) -> Vec<String> {
    let entries = std::fs::read_dir(directory).unwrap();
    let mut names: Vec<_> =
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

pub(crate) fn lock() -> LockName {
    LockName::new("report").unwrap()
}

pub(crate) fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

pub(crate) fn fencing(name: &LockName, number: u64) -> FencingToken {
    FencingToken::new(name.clone(), token(number))
}

pub(crate) fn error_of<T>(result: Result<T, Error>) -> Error {
    match result {
        Ok(_) => panic!("it was accepted"),
        Err(error) => {
            assert!(!error.one_line().contains('\n'), "an error is one line: {error}");
            error
        }
    }
}

pub(crate) fn assert_kind<T>(result: Result<T, Error>, kind: ErrorKind, words: &str) {
    let error = error_of(result);
    let message = error.one_line();
    assert_eq!(error.kind(), kind, "{message}");
    assert!(message.contains(words), "{message}");
}
