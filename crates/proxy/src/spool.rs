//! A body on its way: in memory while it is small, beyond that in a file that has no name.
//!
//! A request is admitted, and its answer sent, only when the whole of it is here: so neither a slow sender nor a slow
//! reader keeps a lock's name busy.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::Path;
use std::sync::Arc;

use bytes::Bytes;

/// What is kept in memory.
const MEMORY: usize = 64 * 1024;

/// A body, or what has come of it.
#[derive(Debug, Default)]
pub(crate) struct Spool {
    /// What came first, if it was too much for the memory.
    file: Option<(Arc<File>, u64)>,
    memory: Vec<u8>,
}

impl Spool {
    /// A body that is there already.
    pub(crate) fn of(memory: Vec<u8>) -> Self {
        Self { file: None, memory }
    }

    /// How long it is.
    pub(crate) fn len(&self) -> u64 {
        self.file.as_ref().map_or(0, |(_, length)| *length) + self.memory.len() as u64
    }

    /// The whole, if it is in memory.
    pub(crate) fn in_memory(&self) -> Option<&[u8]> {
        self.file.is_none().then_some(self.memory.as_slice())
    }

    /// Adds to it. A file is made in `directory`.
    pub(crate) async fn push(&mut self, data: &[u8], directory: &Path) -> io::Result<()> {
        self.memory.extend_from_slice(data);
        if self.memory.len() <= MEMORY {
            return Ok(());
        }
        let (file, length) = match self.file.take() {
            Some(there) => there,
            None => (Arc::new(tempfile::tempfile_in(directory)?), 0),
        };
        let mut memory = std::mem::take(&mut self.memory);
        let added = memory.len() as u64;
        // A disk can make us wait, and others are served by this thread.
        let (file, memory) = off_this_thread(move || {
            (&*file).write_all(&memory)?;
            memory.clear();
            Ok((file, memory))
        })
        .await?;
        (self.file, self.memory) = (Some((file, length + added)), memory);
        Ok(())
    }

    /// The bytes from `at` on, as many as are at hand; none at the end.
    pub(crate) async fn piece(&self, at: u64) -> io::Result<Option<Bytes>> {
        let on_disk = self.file.as_ref().map_or(0, |(_, length)| *length);
        if let Some((file, length)) = &self.file
            && at < *length
        {
            let (file, left) = (Arc::clone(file), length - at);
            let size = usize::try_from(left).map_or(MEMORY, |left| left.min(MEMORY));
            return off_this_thread(move || {
                let mut piece = vec![0; size];
                file.read_exact_at(&mut piece, at)?;
                Ok(Some(piece.into()))
            })
            .await;
        }
        let from = usize::try_from(at - on_disk).unwrap_or(usize::MAX);
        let rest = self.memory.get(from..).unwrap_or_default();
        Ok((!rest.is_empty()).then(|| Bytes::copy_from_slice(rest)))
    }
}

async fn off_this_thread<T: Send + 'static>(
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> io::Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(io::Error::other)?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_goes_in_comes_out_small_or_large() {
        let directory = tempfile::tempdir().unwrap();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for pieces in [0, 1, 6, 7, 50] {
                let (mut spool, mut expected) = (Spool::default(), Vec::new());
                for piece in 0..pieces {
                    let data = vec![piece; 10_000];
                    spool.push(&data, directory.path()).await.unwrap();
                    expected.extend(data);
                }
                assert_eq!(spool.len(), expected.len() as u64);
                assert_eq!(spool.in_memory().is_some(), pieces < 7);
                let mut found = Vec::new();
                while let Some(piece) = spool.piece(found.len() as u64).await.unwrap() {
                    found.extend_from_slice(&piece);
                }
                assert!(found == expected, "{pieces} pieces");
            }
        });
        let left = std::fs::read_dir(directory.path()).unwrap().count();
        assert_eq!(left, 0, "the files have no names");
    }
}
