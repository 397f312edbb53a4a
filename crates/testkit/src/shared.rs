//! Servers that tests share, because they start slowly.

use std::io;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

/// The slot of a shared server, filled while a test uses it.
pub type Slot<T> = Mutex<Weak<T>>;

/// The server in the slot, or a new one if no test uses it. It ends with the last test that uses it, and its files are
/// removed: a static would keep them until the process ends.
pub fn shared<T>(slot: &Slot<T>, start: impl FnOnce() -> io::Result<T>) -> io::Result<Arc<T>> {
    let mut slot = slot.lock();
    if let Some(there) = slot.upgrade() {
        return Ok(there);
    }
    let new = Arc::new(start()?);
    *slot = Arc::downgrade(&new);
    Ok(new)
}
