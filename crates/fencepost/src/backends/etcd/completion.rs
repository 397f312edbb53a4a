//! Work that is completed even if its caller is gone.

use std::future::{Future, poll_fn};
use std::task::Poll;

use super::connection::running_caller;
use crate::backend::{BackendContext, BoxFuture, StoreError};

struct Work<'a, T: Send + 'static> {
    future: Option<BoxFuture<'static, T>>,
    context: &'a BackendContext,
}

impl<T: Send + 'static> Drop for Work<'_, T> {
    fn drop(&mut self) {
        if let Some(future) = self.future.take() {
            self.context.tasks.spawn_on(future, &self.context.runtime);
        }
    }
}

/// Runs beside the connection that it uses, so that a reply need not wake another thread: on the caller if its runtime can
/// have one, otherwise on the client's runtime. That completes it if the caller drops it, and a client that closes waits for
/// it.
pub(super) async fn to_completion<T: Send + 'static>(
    context: &BackendContext,
    work: impl Future<Output = Result<T, StoreError>> + Send + 'static,
) -> Result<T, StoreError> {
    if running_caller().is_none() {
        let task = context.tasks.spawn_on(work, &context.runtime);
        return task.await.unwrap_or_else(|error| {
            let why = if error.is_panic() { "a call panicked" } else { "this client is closing" };
            Err(StoreError::no_reply(why))
        });
    }
    let mut work = Work { future: Some(Box::pin(work)), context };
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
