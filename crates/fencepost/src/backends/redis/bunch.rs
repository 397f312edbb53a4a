//! Sends what several callers ask at the same time in one go.
//!
//! A connection writes a request as soon as it hears of it, and wakes the server for it. Callers that were
//! woken together ask together, one after the other; sent one by one they cost a write, a wake-up and an
//! answer each, which is more than the scripts cost. So the first one starts a task that lets the others
//! have their turn, and sends what has gathered by then. A caller that is alone waits for nobody.

use std::sync::Arc;

use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{Cmd, RedisResult, Value};
use tokio::runtime::Handle;
use tokio::sync::oneshot;

/// What waits to be sent on one connection.
#[derive(Default)]
pub(super) struct Bunch(Mutex<Vec<Asked>>);

type Asked = (Cmd, oneshot::Sender<RedisResult<Value>>);

impl Bunch {
    /// Sends a command with whatever others ask now. The command is sent, and answered to nobody, if the
    /// answer is dropped.
    pub(super) fn send(
        self: &Arc<Self>,
        command: Cmd,
        connection: &MultiplexedConnection,
        home: &Handle,
    ) -> oneshot::Receiver<RedisResult<Value>> {
        let (answer, answered) = oneshot::channel();
        let first = {
            let mut waiting = self.0.lock();
            waiting.push((command, answer));
            waiting.len() == 1
        };
        if first {
            let (bunch, connection) = (Arc::clone(self), connection.clone());
            home.spawn(async move {
                tokio::task::yield_now().await;
                bunch.go(connection).await;
            });
        }
        answered
    }

    async fn go(&self, mut connection: MultiplexedConnection) {
        let mut waiting = std::mem::take(&mut *self.0.lock());
        if let [_] = waiting.as_slice() {
            if let Some((command, answer)) = waiting.pop() {
                // Whoever asked may have gone; the server has heard it all the same.
                let _ = answer.send(connection.send_packed_command(&command).await);
            }
            return;
        }
        let count = waiting.len();
        let mut pipeline = redis::Pipeline::with_capacity(count);
        let mut answers = Vec::with_capacity(count);
        for (command, answer) in waiting {
            pipeline.add_command(command);
            answers.push(answer);
        }
        match connection.send_packed_commands(&pipeline, 0, count).await {
            Ok(values) => {
                for (answer, value) in answers.into_iter().zip(values) {
                    let _ = answer.send(Ok(value));
                }
            }
            Err(error) => {
                for answer in answers {
                    let _ = answer.send(Err(error.clone()));
                }
            }
        }
    }
}
