//! Redis for the fence suite: a server of its own for each case, because marks are listed for the whole server.

use std::sync::Arc;

use fencepost::backend::BoxFuture;
use fencepost::fences::redis::redis::aio::MultiplexedConnection;
use fencepost::fences::redis::redis::{Client, RedisError, cmd};
use fencepost::fences::redis::{self, Fence};
use fencepost::fences::{Mark, Reset};
use fencepost::{Error, Label, LockName, Result, Token};
use fencepost_conformance::Unable;
use fencepost_conformance::fences::{Fence as Kind, Marks, Resource};
use fencepost_testkit::Redis;

use super::fencing;

/// A single server, or a cluster of one node.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum InRedis {
    Alone,
    Cluster,
}

impl Kind for InRedis {
    fn name(&self) -> &'static str {
        match self {
            Self::Alone => "redis",
            Self::Cluster => "redis_cluster",
        }
    }

    fn fresh(&self) -> BoxFuture<'_, Result<Box<dyn Resource>, Unable>> {
        Box::pin(async {
            let server = match self {
                Self::Alone => Redis::builder().start()?,
                Self::Cluster => {
                    let server = Redis::builder().config("cluster-enabled", "yes").start()?;
                    server.command(&["CLUSTER", "ADDSLOTSRANGE", "0", "16383"])?;
                    fencepost_testkit::wait::until(
                        fencepost_testkit::wait::SOON,
                        "the cluster is up",
                        || Ok(server.command(&["CLUSTER", "INFO"])?.text()?.contains("state:ok")),
                    )?;
                    server
                }
            };
            Ok(Box::new(Counters::open(*self, Arc::new(server)).await?) as Box<dyn Resource>)
        })
    }
}

struct Counters {
    kind: InRedis,
    connection: MultiplexedConnection,
    server: Arc<Redis>,
}

#[expect(clippy::needless_pass_by_value, reason = "the shape that `map_err` takes")]
fn failed(error: RedisError) -> Error {
    redis::explain(&error)
}

impl Counters {
    async fn open(kind: InRedis, server: Arc<Redis>) -> Result<Self> {
        let client = Client::open(server.url()).map_err(failed)?;
        let connection = client.get_multiplexed_async_connection().await.map_err(failed)?;
        Ok(Self { kind, connection, server })
    }

    /// The key of a lock's counter, and its fence.
    fn of(&self, name: &LockName) -> Result<(String, Fence)> {
        match self.kind {
            InRedis::Alone => Ok((format!("counter:{name}"), Fence::new())),
            InRedis::Cluster => {
                let key = format!("{{{name}}}:counter");
                let fence = Fence::new().beside(&key)?;
                Ok((key, fence))
            }
        }
    }
}

impl Resource for Counters {
    fn another(&self) -> BoxFuture<'_, Result<Box<dyn Resource>>> {
        Box::pin(async {
            let other = Self::open(self.kind, Arc::clone(&self.server)).await?;
            Ok(Box::new(other) as Box<dyn Resource>)
        })
    }

    fn read<'a>(&'a self, name: &'a LockName, token: Option<Token>) -> BoxFuture<'a, Result<i64>> {
        Box::pin(async move {
            let (mut connection, (key, fence)) = (self.connection.clone(), self.of(name)?);
            let value: Option<i64> = match token {
                Some(token) => {
                    let read = fence.checked(&fencing(name, token)).get(&key);
                    read.run::<(Option<i64>,)>(&mut connection).await?.0
                }
                None => cmd("GET").arg(&key).query_async(&mut connection).await.map_err(failed)?,
            };
            Ok(value.unwrap_or(0))
        })
    }

    fn write<'a>(
        &'a self,
        name: &'a LockName,
        token: Option<Token>,
        value: i64,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            let (mut connection, (key, fence)) = (self.connection.clone(), self.of(name)?);
            if let Some(token) = token {
                return fence
                    .checked(&fencing(name, token))
                    .set(&key, value)
                    .run(&mut connection)
                    .await;
            }
            let set = cmd("SET").arg(&key).arg(value).take();
            set.query_async(&mut connection).await.map_err(failed)
        })
    }

    fn marks(&self) -> Option<&dyn Marks> {
        Some(self)
    }
}

impl Marks for Counters {
    fn enter<'a>(
        &'a self,
        name: &'a LockName,
        token: Token,
        who: &'a Label,
    ) -> BoxFuture<'a, Result<()>> {
        Box::pin(async move {
            self.of(name)?
                .1
                .enter_as(&mut self.connection.clone(), &fencing(name, token), who)
                .await
        })
    }

    fn mark<'a>(&'a self, name: &'a LockName) -> BoxFuture<'a, Result<Option<Mark>>> {
        Box::pin(async move { self.of(name)?.1.mark(&mut self.connection.clone(), name).await })
    }

    fn show<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Mark>>> {
        Box::pin(async move { redis::show(&mut self.connection.clone(), name).await })
    }

    fn reset<'a>(
        &'a self,
        name: &'a LockName,
        to: Option<Token>,
        by: &'a str,
        why: &'a str,
    ) -> BoxFuture<'a, Result<Option<Mark>>> {
        Box::pin(async move {
            self.of(name)?.1.reset(&mut self.connection.clone(), name, to, by, why).await
        })
    }

    fn audit<'a>(&'a self, name: Option<&'a LockName>) -> BoxFuture<'a, Result<Vec<Reset>>> {
        Box::pin(async move { redis::audit(&mut self.connection.clone(), name).await })
    }
}
