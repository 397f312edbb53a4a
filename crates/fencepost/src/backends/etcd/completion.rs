//! Work that is completed even if its caller is gone.

use std::future::{Future, poll_fn};
use std::task::Poll;

use crate::backend::{BoxFuture, Surroundings};

struct Work<'a, T: Send + 'static> {
    future: Option<BoxFuture<'static, T>>,
    around: &'a Surroundings,
}

impl<T: Send + 'static> Drop for Work<'_, T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.around.tasks.spawn_on(future, &self.around.runtime);
        }
    }
}

/// Runs on the caller. If the caller drops it, the client's runtime completes it, and a client that closes waits for it.
/// The usual case spawns no task.
pub(super) async fn to_completion<T: Send + 'static>(
    around: &Surroundings,
    work: impl Future<Output = T> + Send + 'static,
) -> T {
    let mut work = Work { future: Some(Box::pin(work)), around };
    poll_fn(|context| {
        // Taken out, so that one that panics is not run again.
        let Some(mut future) = work.future.take() else { return Poll::Pending };
        let polled = future.as_mut().poll(context);
        if polled.is_pending() {
            work.future = Some(future);
        }
        polled
    })
    .await
}
