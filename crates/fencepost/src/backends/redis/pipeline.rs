//! Sends the requests of several callers as one batch.
//!
//! A connection writes a request as soon as it gets one, and wakes the server for it. Callers that were woken together
//! send at almost the same time; one by one they would cost a write, a wake-up and a reply each, which is more than the
//! scripts cost. So the first one starts a task that lets the others run first, and then sends all requests that have
//! gathered.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

use super::socket::End;
use crate::race::race;

/// The requests that wait to be sent on one connection.
#[derive(Default)]
pub(super) struct Pipeline(Mutex<Vec<Request>>);

type Request = (Cmd, oneshot::Sender<RedisResult<Value>>);

impl Pipeline {
    /// Sends a command in a batch with those of other callers. It is sent even if the reply is dropped. No batch outlasts
    /// `end`, since it would keep an unused connection open.
    pub(super) fn send(
        self: &Arc<Self>,
        command: Cmd,
        connection: &MultiplexedConnection,
        home: &Handle,
        end: &Arc<End>,
    ) -> oneshot::Receiver<RedisResult<Value>> {
        let (sender, reply) = oneshot::channel();
        let first = {
            let mut waiting = self.0.lock();
            waiting.push((command, sender));
            waiting.len() == 1
        };
        if first {
            let (pipeline, connection, end) =
                (Arc::clone(self), connection.clone(), Arc::clone(end));
            home.spawn(async move {
                tokio::task::yield_now().await;
                race(pipeline.flush(connection), end.wait()).await;
            });
        }
        reply
    }

    /// A caller may be gone when its reply comes; the server still has its request.
    async fn flush(&self, mut connection: MultiplexedConnection) {
        let mut waiting = std::mem::take(&mut *self.0.lock());
        if let [_] = waiting.as_slice() {
            if let Some((command, sender)) = waiting.pop() {
                let _ = sender.send(connection.send_packed_command(&command).await);
            }
            return;
        }
        let count = waiting.len();
        let mut batch = redis::Pipeline::with_capacity(count);
        let mut senders = Vec::with_capacity(count);
        for (command, sender) in waiting {
            batch.add_command(command);
            senders.push(sender);
        }
        match connection.send_packed_commands(&batch, 0, count).await {
            Ok(values) => {
                for (sender, value) in senders.into_iter().zip(values) {
                    let _ = sender.send(Ok(value));
                }
            }
            Err(error) => {
                for sender in senders {
                    let _ = sender.send(Err(error.clone()));
                }
            }
        }
    }
}
