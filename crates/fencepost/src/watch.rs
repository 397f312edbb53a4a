//! Follows one lock.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use fencepost_core::LockName;
use futures_core::Stream;

use crate::backend::{BoxFuture, LockInfo, LockVersion};
use crate::client::Client;
use crate::error::Result;

/// The states of one lock, one after the other; also a stream, which does not end. Made by
/// [`Fencepost::watch`](crate::Fencepost::watch).
///
/// It always ends on the latest state; states in between may be skipped.
pub struct Watch {
    client: Arc<Client>,
    name: LockName,
    seen: Option<LockVersion>,
    /// The request that a poll of the stream waits for. Nothing is lost if it is dropped.
    request: Option<BoxFuture<'static, Result<LockInfo>>>,
}

impl Watch {
    pub(crate) fn new(client: &Arc<Client>, name: LockName) -> Self {
        Self { client: Arc::clone(client), name, seen: None, request: None }
    }

    /// The current state on the first call, then each one that differs from the last. Dropping the future loses
    /// nothing, and after an error the next call continues. While the store cannot be reached, each call fails at once:
    /// pause before the next one.
    pub async fn next(&mut self) -> Result<LockInfo> {
        // Its answer may be older than ours.
        self.request = None;
        let info = self.client.store.changed(self.name.clone(), self.seen.clone()).await?;
        self.seen = Some(info.version());
        Ok(info)
    }
}

impl Stream for Watch {
    type Item = Result<LockInfo>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        let request = this.request.get_or_insert_with(|| {
            let (client, name) = (Arc::clone(&this.client), this.name.clone());
            let seen = this.seen.clone();
            Box::pin(async move { client.store.changed(name, seen).await })
        });
        let answer = std::task::ready!(request.as_mut().poll(context));
        this.request = None;
        if let Ok(info) = &answer {
            this.seen = Some(info.version());
        }
        Poll::Ready(Some(answer))
    }
}

impl fmt::Debug for Watch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Watch").field("name", &self.name).finish_non_exhaustive()
    }
}
