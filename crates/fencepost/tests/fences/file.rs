//! Files for the fence suite: one file per counter, in a directory of its own for each case.

use std::path::PathBuf;
use std::sync::Arc;

use fencepost::backend::BoxFuture;
use fencepost::fences::file::FileFence;
use fencepost::fences::{Mark, Reset};
use fencepost::{Error, Label, LockName, Result, Token};
use fencepost_conformance::Unable;
use fencepost_conformance::fences::{Fence, Marks, Resource};

use super::fencing;

/// Each name has a file of its own.
pub(crate) struct InFiles;

impl Fence for InFiles {
    fn name(&self) -> &'static str {
        "file"
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Resource>, Unable>> {
        Box::pin(async {
            // The suite is not about crashes: in memory a sync costs nothing.
            let memory = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir());
            let directory = Arc::new(memory?);
            Ok(Box::new(Counters { directory }) as Box<dyn Resource>)
        })
    }
}

struct Counters {
    directory: Arc<tempfile::TempDir>,
}

fn ready<T: Send + 'static>(result: Result<T>) -> BoxFuture<'static, Result<T>> {
    Box::pin(async move { result })
}

impl Counters {
    fn path(&self, name: &LockName) -> PathBuf {
        // The names of the suite differ in their first 60 characters.
        let start: String = name.as_str().chars().take(60).collect();
        self.directory.path().join(start.replace('/', "_"))
    }

    fn of(&self, name: &LockName) -> Result<FileFence> {
        FileFence::at(self.path(name))
    }

    /// Every file of the directory.
    fn all(&self) -> Result<Vec<FileFence>> {
        let failed = |error: std::io::Error| Error::unreachable(error.to_string());
        let mut paths = Vec::new();
        for entry in std::fs::read_dir(self.directory.path()).map_err(failed)? {
            let name = entry.map_err(failed)?.file_name().into_string().unwrap_or_default();
            // A file that was entered but not written has only its marks.
            let base = name.strip_prefix('.').and_then(|name| name.strip_suffix(".fence"));
            paths.extend(base.map(|base| self.directory.path().join(base)));
        }
        paths.iter().map(FileFence::at).collect()
    }
}

fn parsed(contents: Option<Vec<u8>>) -> Result<i64> {
    let Some(contents) = contents else { return Ok(0) };
    let text = String::from_utf8_lossy(&contents);
    text.parse().map_err(|_| Error::refused(format!("torn: {text:?}")))
}

impl Resource for Counters {
    fn another(&self) -> BoxFuture<'_, Result<Box<dyn Resource>>> {
        ready(Ok(Box::new(Self { directory: Arc::clone(&self.directory) }) as Box<dyn Resource>))
    }

    fn read<'a>(&'a self, name: &'a LockName, token: Option<Token>) -> BoxFuture<'a, Result<i64>> {
        ready(
            match token {
                Some(token) => self.of(name).and_then(|file| file.read(&fencing(name, token))),
                None => Ok(std::fs::read(self.path(name)).ok()),
            }
            .and_then(parsed),
        )
    }

    fn write<'a>(
        &'a self,
        name: &'a LockName,
        token: Option<Token>,
        value: i64,
    ) -> BoxFuture<'a, Result<()>> {
        let text = value.to_string();
        let Some(token) = token else {
            // Atomically, as the fence writes it, but without the fence.
            let failed = |error: std::io::Error| Error::unreachable(error.to_string());
            let written = tempfile::NamedTempFile::new_in(self.directory.path())
                .and_then(|file| std::fs::write(file.path(), text).map(|()| file))
                .and_then(|file| Ok(file.persist(self.path(name)).map(|_| ())?));
            return ready(written.map_err(failed));
        };
        ready(
            self.of(name)
                .and_then(|file| file.write(&fencing(name, token), text.as_bytes()))
                .map(|_| ()),
        )
    }

    fn marks(&self) -> Option<&dyn Marks> {
        Some(self)
    }
}

impl Marks for Counters {
    fn enter<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        who: &'a Label,
    ) -> BoxFuture<'a, Result<()>> {
        ready(self.of(name).and_then(|file| file.enter_as(&fencing(name, token), who)))
    }

    fn mark<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Option<Mark>>> {
        ready(self.of(name).and_then(|file| file.mark(name)))
    }

    fn show<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Mark>>> {
        ready(match name {
            Some(name) => self.of(name).and_then(|file| file.show(Some(name))),
            None => self.all().and_then(|all| {
                all.iter().try_fold(Vec::new(), |mut marks, file| {
                    marks.extend(file.show(None)?);
                    Ok(marks)
                })
            }),
        })
    }

    fn reset<'a>(
        &'a self,
        name: &'a LockName,
        to: Option<Token>,
        by: &'a str,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Option<Mark>>> {
        ready(self.of(name).and_then(|file| file.reset(name, to, by, why)))
    }

    fn audit<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Reset>>> {
        ready(match name {
            Some(name) => self.of(name).and_then(|file| file.audit(Some(name))),
            None => self.all().and_then(|all| {
                all.iter().try_fold(Vec::new(), |mut resets, file| {
                    resets.extend(file.audit(None)?);
                    Ok(resets)
                })
            }),
        })
    }
}
