//! Sends the requests of several callers in one go.
//!
//! A connection writes a request as soon as it is given one, and wakes the server for it. Callers that were woken
//! together send together, one after the other; one by one they cost a write, a wake-up and a reply each, which is more
//! than the scripts cost. So the first one starts a task that lets the others have their turn, and sends what has
//! gathered by then.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// The requests that wait to be sent on one connection.
#[derive(Default)]
pub(super) struct Pipeline(Mutex<Vec<Request>>);

type Request = (Cmd, oneshot::Sender<RedisResult<Value>>);

impl Pipeline {
    /// Sends a command with whatever others send now. It is sent also if the reply is dropped.
    pub(super) fn send(
        self: &Arc<Self>,
        command: Cmd,
        connection: &MultiplexedConnection,
        home: &Handle,
    ) -> oneshot::Receiver<RedisResult<Value>> {
        let (sender, reply) = oneshot::channel();
        let first = {
            let mut waiting = self.0.lock();
            waiting.push((command, sender));
            waiting.len() == 1
        };
        if first {
            let (pipeline, connection) = (Arc::clone(self), connection.clone());
            home.spawn(async move {
                tokio::task::yield_now().await;
                pipeline.flush(connection).await;
            });
        }
        reply
    }

    /// A caller may be gone when its reply comes; the server has its request all the same.
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
