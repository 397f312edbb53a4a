//! Work that is done to its end, even if nobody waits for it any more.

use std::future::Future;
use std::pin::Pin;
use std::task::{Context, Poll};

use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use super::faults::Fault;

type Work<T> = Pin<Box<dyn Future<Output = Result<T, Fault>> + Send>>;

/// Done by whoever awaits it, as long as somebody does; then by `ours`. So the usual case costs no task.
pub(super) enum Through<T: Send + 'static> {
    Here { work: Option<Work<T>>, ours: Handle },
    There(JoinHandle<Result<T, Fault>>),
}

impl<T: Send + 'static> Through<T> {
    /// `here` for a caller that makes its calls on its own runtime.
    pub(super) fn new(
        here: bool,
        ours: &Handle,
        work: impl Future<Output = Result<T, Fault>> + Send + 'static,
    ) -> Self {
        if here {
            Self::Here { work: Some(Box::pin(work)), ours: ours.clone() }
        } else {
            Self::There(ours.spawn(work))
        }
    }
}

impl<T: Send + 'static> Future for Through<T> {
    type Output = Result<T, Fault>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        let panicked = || Err(Fault::Unreachable("a call to etcd panicked".into()));
        match &mut *self {
            Self::There(task) => {
                Pin::new(task).poll(context).map(|done| done.unwrap_or_else(|_| panicked()))
            }
            Self::Here { work: slot, .. } => {
                let Some(work) = slot else { return Poll::Ready(panicked()) };
                let polled = work.as_mut().poll(context);
                if polled.is_ready() {
                    *slot = None;
                }
                polled
            }
        }
    }
}

impl<T: Send + 'static> Drop for Through<T> {
    fn drop(&mut self) {
        if let Self::Here { work, ours } = self
            && let Some(work) = work.take()
        {
            ours.spawn(work);
        }
    }
}
