//! Servers that tests share, since those start slowly.

use std::io;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// Where a shared server is, as long as a test uses it.
pub type Slot<T> = Mutex<Weak<T>>;

/// What is in the slot, or a new one if the last test that used it is over. It goes with the last test that
/// uses it, and so do its files: a static would keep it until the process is gone.
pub fn shared<T>(slot: &Slot<T>, start: impl FnOnce() -> io::Result<T>) -> io::Result<Arc<T>> {
    let mut slot = slot.lock();
    if let Some(there) = slot.upgrade() {
        return Ok(there);
    }
    let new = Arc::new(start()?);
    *slot = Arc::downgrade(&new);
    Ok(new)
}
