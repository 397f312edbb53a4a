//! A body on its way: in memory while it is small, beyond that in a file that has no name.
//!
//! A request is admitted, and its answer sent, only when the whole of it is here: so neither a slow sender nor a slow
//! reader keeps a lock's name busy.
//!
//! The files lie beside the marks. All of them together have a bound ([`Room`]): a disk that is full of bodies could take no
//! more marks.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// What is kept in memory.
const MEMORY: usize = 64 * 1024;

/// Where files are made, and how much room there is for all of them.
#[derive(Debug)]
pub(crate) struct Room {
    directory: PathBuf,
    limit: u64,
    used: AtomicU64,
}

/// A part of the room, given back when it is dropped.
#[derive(Debug)]
struct Share {
    room: Arc<Room>,
    bytes: u64,
}

/// A body, or what has come of it.
#[derive(Debug, Default)]
pub(crate) struct Spool {
    /// What came first, if it was too much for the memory.
    file: Option<(Arc<File>, u64)>,
    share: Option<Share>,
    memory: Vec<u8>,
}

impl Room {
    pub(crate) fn new(directory: PathBuf, limit: u64) -> Arc<Self> {
        Arc::new(Self { directory, limit, used: AtomicU64::new(0) })
    }
}

impl Share {
    /// Takes more.
    fn grow(&mut self, bytes: u64) -> io::Result<()> {
        let fits = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.room.limit);
        let taken = self.room.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if taken.is_err() {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "all bodies on disk together have {} bytes: see --max-spool",
                    self.room.limit
                ),
            ));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Spool {
    /// A body that is there already.
    pub(crate) fn of(memory: Vec<u8>) -> Self {
        Self { memory, ..Self::default() }
    }

    /// How long it is.
    pub(crate) fn len(&self) -> u64 {
        self.file.as_ref().map_or(0, |(_, length)| *length) + self.memory.len() as u64
    }

    /// The whole, if it is in memory.
    pub(crate) fn in_memory(&self) -> Option<&[u8]> {
        self.file.is_none().then_some(self.memory.as_slice())
    }

    /// Adds to it. A file takes its part of the room; if there is none left, the error is `StorageFull`.
    pub(crate) async fn push(&mut self, data: &[u8], room: &Arc<Room>) -> io::Result<()> {
        self.memory.extend_from_slice(data);
        if self.memory.len() <= MEMORY {
            return Ok(());
        }
        let share = self.share.get_or_insert_with(|| Share { room: Arc::clone(room), bytes: 0 });
        share.grow(self.memory.len() as u64)?;
        let (file, length) = match self.file.take() {
            Some(there) => there,
            None => (Arc::new(tempfile::tempfile_in(&room.directory)?), 0),
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
        let room = Room::new(directory.path().to_owned(), 500_000);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            for pieces in [0, 1, 6, 7, 50] {
                let (mut spool, mut expected) = (Spool::default(), Vec::new());
                for piece in 0..pieces {
                    let data = vec![piece; 10_000];
                    spool.push(&data, &room).await.unwrap();
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
        assert_eq!(room.used.load(Ordering::Relaxed), 0, "all room was given back");
    }

    #[test]
    fn all_files_together_have_a_bound() {
        let directory = tempfile::tempdir().unwrap();
        let room = Room::new(directory.path().to_owned(), 250_000);
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let large = vec![0; 100_000];
            let (mut one, mut other) = (Spool::default(), Spool::default());
            one.push(&large, &room).await.unwrap();
            other.push(&large, &room).await.unwrap();
            let full = other.push(&large, &room).await.unwrap_err();
            assert_eq!(full.kind(), io::ErrorKind::StorageFull);
            assert!(Spool::default().push(&large, &room).await.is_err());
            // What fits in memory needs none, and room comes back.
            Spool::default().push(b"small", &room).await.unwrap();
            drop((one, other));
            Spool::default().push(&large, &room).await.unwrap();
        });
    }
}
