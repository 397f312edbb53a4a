//! Counts what is under way, for whoever waits until nothing is.

use tokio::sync::watch;

/// Counts a task until it ends, however it ends.
pub(crate) struct Counted(watch::Sender<usize>);

impl Counted {
    pub(crate) fn new(count: &watch::Sender<usize>) -> Self {
        count.send_modify(|count| *count += 1);
        Self(count.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}
