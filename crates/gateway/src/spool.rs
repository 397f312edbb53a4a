//! A buffered body: in memory while it is small, beyond that in an unnamed file.
//!
//! A request waits for its name, and its response is sent, only when its body is complete. So neither a slow sender nor a
//! slow reader blocks a lock's name.
//!
//! The files are beside the marks. Their total size is limited ([`SpoolSpace`]): bodies must not fill the disk that the
//! marks need.

use std::fs::File;
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;

/// The most bytes that a body keeps in memory.
const MEMORY: usize = 64 * 1024;

/// Where the files are, and how much space all of them may use.
#[derive(Debug)]
pub(crate) struct SpoolSpace {
    directory: PathBuf,
    limit: u64,
    used: AtomicU64,
}

/// Reserved space, freed on drop.
#[derive(Debug)]
struct Reservation {
    room: Arc<SpoolSpace>,
    bytes: u64,
}

/// A body, or the part of it that has arrived.
#[derive(Debug, Default)]
pub(crate) struct Spool {
    /// The first part, if the body is too large for memory.
    file: Option<(Arc<File>, u64)>,
    share: Option<Reservation>,
    memory: Vec<u8>,
}

impl SpoolSpace {
    pub(crate) fn new(directory: PathBuf, limit: u64) -> Arc<Self> {
        Arc::new(Self { directory, limit, used: AtomicU64::new(0) })
    }
}

impl Reservation {
    /// Reserves more.
    fn grow(&mut self, bytes: u64) -> io::Result<()> {
        let fits = |used: u64| used.checked_add(bytes).filter(|used| *used <= self.room.limit);
        let taken = self.room.used.fetch_update(Ordering::Relaxed, Ordering::Relaxed, fits);
        if taken.is_err() {
            let limit = self.room.limit;
            let full = format!("all bodies on disk together exceed {limit} bytes (--max-spool)");
            return Err(io::Error::new(io::ErrorKind::StorageFull, full));
        }
        self.bytes += bytes;
        Ok(())
    }
}

impl Drop for Reservation {
    fn drop(&mut self) {
        self.room.used.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

impl Spool {
    /// A body that is already complete.
    pub(crate) fn of(memory: Vec<u8>) -> Self {
        Self { memory, ..Self::default() }
    }

    /// Its length.
    pub(crate) fn len(&self) -> u64 {
        self.file.as_ref().map_or(0, |(_, length)| *length) + self.memory.len() as u64
    }

    /// The whole body, if it is in memory.
    pub(crate) fn in_memory(&self) -> Option<&[u8]> {
        self.file.is_none().then_some(self.memory.as_slice())
    }

    /// Appends to it. Fails with `StorageFull` if no space is left for a file.
    pub(crate) async fn push(&mut self, data: &[u8], room: &Arc<SpoolSpace>) -> io::Result<()> {
        self.memory.extend_from_slice(data);
        if self.memory.len() <= MEMORY {
            return Ok(());
        }
        let share =
            self.share.get_or_insert_with(|| Reservation { room: Arc::clone(room), bytes: 0 });
        share.grow(self.memory.len() as u64)?;
        let (file, length) = match self.file.take() {
            Some(there) => there,
            None => (Arc::new(tempfile::tempfile_in(&room.directory)?), 0),
        };
        let mut memory = std::mem::take(&mut self.memory);
        let added = memory.len() as u64;
        // A slow disk must not block the other requests on this thread.
        let (file, memory) = off_this_thread(move || {
            (&*file).write_all(&memory)?;
            memory.clear();
            Ok((file, memory))
        })
        .await?;
        (self.file, self.memory) = (Some((file, length + added)), memory);
        Ok(())
    }

    /// A piece of the body from `at` on; none at its end.
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
    fn bodies_of_any_size_are_read_back() {
        let directory = tempfile::tempdir().unwrap();
        let room = SpoolSpace::new(directory.path().to_owned(), 500_000);
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
    fn total_size_of_all_files_is_limited() {
        let directory = tempfile::tempdir().unwrap();
        let room = SpoolSpace::new(directory.path().to_owned(), 250_000);
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
