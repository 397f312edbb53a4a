//! The stores that can arbitrate, one module each.

pub mod memory;
#[cfg(feature = "sqlite")]
pub mod sqlite;

use crate::backend::{Store, Surroundings};
use crate::error::Result;
use crate::url::Url;

#[cfg_attr(
    not(feature = "sqlite"),
    expect(clippy::unused_async, reason = "the other stores have to be waited for")
)]
pub(crate) async fn open(url: Url, around: Surroundings) -> Result<Store> {
    #[cfg(not(feature = "sqlite"))]
    let _ = around;
    match url {
        Url::Memory { name } => Ok(memory::Memory::of_this_process(&name).into()),
        #[cfg(feature = "sqlite")]
        Url::Sqlite { path, adopt } => {
            let open = move || sqlite::Sqlite::open(&path, adopt, &around);
            // Opening waits for the disk and, at worst, for other processes.
            let opened = tokio::task::spawn_blocking(open).await;
            opened
                .map_err(|_| crate::Error::unreachable("opening the file panicked"))?
                .map(Store::from)
        }
    }
}
